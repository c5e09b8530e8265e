// A worker's queue to its monitor: one producer, one consumer, in the block's shared memory.
//
// A record is 32 bytes in two 16-byte halves, each published by one 128-bit store and each stamped with the low 32 bits
// of `seq`, the worker's count of events. There is no head word to publish and no fence on the producer's path: the
// consumer takes a slot when both stamps agree and are not older than the next one it expects. A slot's old stamp is
// always older, since the record that it belonged to has been dequeued.
//
//   half 0: t (low half) | task index | iteration      | seq
//   half 1: argument 0   | argument 1 | hook flags arg2 | seq
//
// When the queue is full the event is counted in lost[hook] and its number is used up, so a gap in `seq` is exactly
// what was lost. The producer reads the consumer's tail only when its own copy of it says that the queue is full.
#pragma once
#include "hooks_abi.cuh"
#include "ptx.cuh"

namespace ms {

constexpr u32 HOOKS = 16;

/// Words shared by a producer and its consumer, beside the slots. One writer each.
struct QueueWords {
  u32 lost[HOOKS];  // by the producer: events that found the queue full
  u32 tail;         // by the consumer: records taken
  u32 seen_mask;    // by the producer: the mask that it fires by
  u32 left;         // by the producer: 1 after its last event
};

template <u32 SLOTS>
struct alignas(16) Queue {
  static_assert((SLOTS & (SLOTS - 1)) == 0, "a power of two");
  uint4 half[SLOTS][2];
  QueueWords words;
};

/// The producer's end, in one thread's registers.
template <u32 SLOTS>
struct Producer {
  u32 slots, words;  // shared-memory addresses
  u32 mask, fetched, seq, enqueued, tail;

  MS_DEVICE void open(Queue<SLOTS>& queue) {
    slots = shared_address(queue.half);
    words = shared_address(&queue.words);
    mask = fetched = seq = enqueued = tail = 0;
  }

  /// Take over the mask that the monitor has set; between tasks, so that it costs a firing nothing. What is taken
  /// over was fetched the time before, so that nobody waits for shared memory either.
  MS_DEVICE void refresh(u32 mask_address) {
    if (fetched != mask) store_shared(words + offsetof(QueueWords, seen_mask), fetched);
    mask = fetched;
    asm volatile("ld.relaxed.cta.shared.u32 %0, [%1];" : "+r"(fetched) : "r"(mask_address) : "memory");
  }

  MS_DEVICE bool wants(u32 hook) const { return mask >> hook & 1; }

  MS_DEVICE void push(u32 hook, u32 t, u32 task, u32 iteration, u32 arg0, u32 arg1, u32 flags, u32 arg2) {
    seq++;
    if (enqueued - tail >= SLOTS) {
      tail = load_shared(words + offsetof(QueueWords, tail));
      if (enqueued - tail >= SLOTS) {
        lose(hook, 1);
        return;
      }
    }
    put(enqueued, seq, hook, t, task, iteration, arg0, arg1, flags, arg2);
    enqueued++;
  }

  /// 32 lanes push one record each where `active`, in lane order, with one look at the queue. All lanes hold the same
  /// producer state and call together.
  MS_DEVICE void push_warp(bool active, u32 hook, u32 t, u32 task, u32 iteration, u32 arg0, u32 arg1, u32 flags,
                           u32 arg2) {
    u32 who = __ballot_sync(FULL_WARP, active), n = __popc(who), rank = __popc(who & lanes_below());
    if (n == 0) return;
    if (enqueued + n - tail > SLOTS)  // one value for the warp
      tail = __shfl_sync(FULL_WARP, load_shared(words + offsetof(QueueWords, tail)), 0);
    u32 room = min(n, SLOTS - (enqueued - tail));
    if (active && rank < room) put(enqueued + rank, seq + 1 + rank, hook, t, task, iteration, arg0, arg1, flags, arg2);
    seq += n;
    enqueued += room;
    if (room < n && lane_id() == 0) lose(hook, n - room);
    __syncwarp();
  }

 private:
  MS_DEVICE void put(u32 at, u32 stamp, u32 hook, u32 t, u32 task, u32 iteration, u32 arg0, u32 arg1, u32 flags,
                     u32 arg2) {
    u32 slot = slots + (at & (SLOTS - 1)) * 32;
    store_shared_16(slot, t, task, iteration, stamp);
    store_shared_16(slot + 16, arg0, arg1, hook | flags << 8 | arg2 << 16, stamp);
  }

  /// The fence lets a consumer that sees the count also see every record before it (see Consumer::empty).
  MS_DEVICE void lose(u32 hook, u32 n) {
    fence_block();
    u32 at = words + hook * 4;
    store_shared(at, load_shared(at) + n);
    fence_block();
  }
};

/// What a lane took from a queue.
struct Record {
  u32 t, task, iteration, seq, arg0, arg1;
  u16 arg2;
  u8 hook, flags;
};

/// The consumer's end; the same in all 32 lanes of the monitor warp.
struct Consumer {
  u32 slots, words, last;  // last: number of slots - 1
  u32 taken;               // records dequeued, modulo 2^32
  u64 next;                // the seq after the last that was dequeued (or booked as lost)

  template <u32 SLOTS>
  MS_DEVICE void open(Queue<SLOTS>& queue) {
    slots = shared_address(queue.half);
    words = shared_address(&queue.words);
    last = SLOTS - 1;
    taken = 0;
    next = 1;
  }

  /// Up to 32 records, lane i the i-th; returns how many. The slots stay ours until `release`.
  MS_DEVICE u32 take(Record& r) const {
    u32 slot = slots + ((taken + lane_id()) & last) * 32;
    uint4 a = load_shared_16(slot), b = load_shared_16(slot + 16);
    bool whole = a.w == b.w && !older(a.w);
    u32 gaps = ~__ballot_sync(FULL_WARP, whole);
    r = {a.x, a.y, a.z, a.w, b.x, b.y, static_cast<u16>(b.z >> 16), static_cast<u8>(b.z), static_cast<u8>(b.z >> 8)};
    return gaps ? __ffs(gaps) - 1 : 32;
  }

  /// All 64 bits of a record's seq.
  MS_DEVICE u64 seq(const Record& r) const { return next + (r.seq - static_cast<u32>(next)); }

  MS_DEVICE void release(u32 n, u64 last_seq) {
    taken += n;
    next = last_seq + 1;
    __syncwarp();
    if (lane_id() == 0) store_shared(words + offsetof(QueueWords, tail), taken);
  }

  /// Lane h: events of hook h that the producer has counted lost so far.
  MS_DEVICE u32 lost() const { return lane_id() < HOOKS ? load_shared(words + lane_id() * 4) : 0; }

  /// Nothing is waiting: after `lost` this means that every loss counted so far comes directly after what was taken.
  MS_DEVICE bool empty() const {
    fence_block();
    return __all_sync(FULL_WARP, older(load_shared_16(slots + (taken & last) * 32).w));
  }

  MS_DEVICE u32 seen_mask() const { return load_shared(words + offsetof(QueueWords, seen_mask)); }
  MS_DEVICE bool left() const { return __all_sync(FULL_WARP, load_shared(words + offsetof(QueueWords, left)) != 0); }

 private:
  MS_DEVICE bool older(u32 stamp) const { return static_cast<int>(stamp - static_cast<u32>(next)) < 0; }
};

}  // namespace ms

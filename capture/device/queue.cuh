// A worker's queue to its monitor: one producer, one consumer, in the block's shared memory or in device memory.
//
// A record is 32 bytes in two 16-byte halves, each published by one 128-bit store and each stamped with the low 32 bits
// of `seq`, the worker's count of events. There is no head word to publish and no fence on the producer's path: the
// consumer takes a slot when both stamps agree and are not older than the next one it expects. A slot's old stamp is
// always older, since the record that it belonged to has been dequeued.
//
//   half 0: t (low half) | task index | iteration      | seq
//   half 1: argument 0   | argument 1 | hook flags arg2 | seq
//
// A task's start and complete share one record and take two sequence numbers. Half 0 is written when the task begins,
// half 1 when it ends, so that each costs the worker one store.
//
//   half 0: t of start, 64 bits    | task index                    | seq of the start
//   half 1: t of complete | t of ready | TASK, which are wanted, iteration | seq of the start
//
// When the queue is full the event is counted in lost[hook] and its number is used up, so a gap in `seq` is exactly
// what was lost. The producer reads the consumer's tail only when its own copy of it says that the queue is full.
#pragma once
#include "hooks_abi.cuh"
#include "ptx.cuh"

namespace ms {

constexpr u32 HOOKS = 16;
constexpr u32 TASK_RECORD = 1u << 31;
constexpr u32 WANTS_START = 1u << 29, WANTS_COMPLETE = 1u << 30;
constexpr u32 TASK_ITERATION = (1u << 29) - 1;
constexpr u32 TURN = 1u << 31;  // of a mask: it alternates from one change of who watches to the next

/// Words shared by a producer and its consumer, beside the slots. One writer each. Losses are counted by turn, so that
/// at a change it is known which came before: those of the turn before no longer grow.
struct alignas(8) QueueWords {
  u32 lost[2][HOOKS];  // by the producer: events that found the queue full
  u32 lost_tasks[2];   // by the producer: tasks whose record did, each a start and a complete
  u32 tail;            // by the consumer: records taken
  u32 mask;            // by the consumer: hooks to fire, and the turn; read together with the tail
  u32 sm;              // by the producer: its multiprocessor
  u32 seen_mask;       // by the producer: the mask that it fires by
  u32 seen_from;       // by the producer: the seq of the first event, fired or not, under that mask
  u32 left;            // by the producer: 1 after its last event
};

constexpr u32 NOW = sizeof(QueueWords);  // from them to the queue's NowWords
static_assert(NOW % 16 == 0, "stored 16 bytes at a time");
constexpr u32 MASK_WORD = 2 * HOOKS + 3;
static_assert(offsetof(QueueWords, mask) == 4 * MASK_WORD, "the host sets it before a launch");

/// Queues in the block's shared memory, drained by its own monitor warp.
struct SharedSpace {
  typedef u32 Address;

  MS_DEVICE static Address of(const void* p) { return shared_address(p); }
  MS_DEVICE static u32 load(Address a) { return load_shared(a); }
  MS_DEVICE static uint2 load_8(Address a) { return load_shared_8(a); }
  MS_DEVICE static uint4 load_16(Address a) { return load_shared_16(a); }
  MS_DEVICE static void store(Address a, u32 v) { store_shared(a, v); }
  MS_DEVICE static void store_if(u32 really, Address a, u32 v) { store_shared_if(really, a, v); }
  MS_DEVICE static void store_16(Address a, u32 x, u32 y, u32 z, u32 w) { store_shared_16(a, x, y, z, w); }
  MS_DEVICE static void store_16_if(u32 really, Address a, u32 x, u32 y, u32 z, u32 w) {
    store_shared_16_if(really, a, x, y, z, w);
  }
  MS_DEVICE static void fence() { fence_block(); }
};

/// Queues in device memory, drained by a monitor of another block.
struct DeviceSpace {
  typedef u64 Address;

  template <class T>
  MS_DEVICE static T* at(Address a) {
    return reinterpret_cast<T*>(a);
  }
  MS_DEVICE static Address of(const void* p) {
    return opaque(reinterpret_cast<Address>(p));
  }
  MS_DEVICE static u32 load(Address a) { return load_device(at<u32>(a)); }
  MS_DEVICE static uint2 load_8(Address a) { return load_device_8(at<void>(a)); }
  MS_DEVICE static uint4 load_16(Address a) { return load_device_16(at<void>(a)); }
  MS_DEVICE static void store(Address a, u32 v) { store_device(at<u32>(a), v); }
  MS_DEVICE static void store_if(u32 really, Address a, u32 v) { store_device_if(really, at<u32>(a), v); }
  MS_DEVICE static void store_16(Address a, u32 x, u32 y, u32 z, u32 w) { store_device_16(at<void>(a), x, y, z, w); }
  MS_DEVICE static void store_16_if(u32 really, Address a, u32 x, u32 y, u32 z, u32 w) {
    store_device_16_if(really, at<void>(a), x, y, z, w);
  }
  MS_DEVICE static void fence() { fence_device(); }
};

/// What a worker waits for, beside its queue; its monitor tells it on. The worker overwrites it as it goes, and no fence
/// orders that: `check` is the exclusive or of the words before it, and what it does not agree with is of two waits.
struct alignas(16) NowWords {
  u32 t, t_high, task, iteration;  // t: when the wait began, 0: there is none
  u32 dep, seen, wanted, check;
};

template <u32 SLOTS>
struct alignas(16) Queue {
  static_assert((SLOTS & (SLOTS - 1)) == 0, "a power of two");
  uint4 half[SLOTS][2];
  QueueWords words;
  NowWords now;
};

/// The producer's end, in registers. All threads of a warp may call together, which spares the warp a divergence: to
/// those that do not fire the mask is always 0.
template <class Space, u32 SLOTS>
struct Producer {
  typedef typename Space::Address Address;

  Address slots, words, polled;  // polled: tail and mask, or zeros
  u32 mask, tail;            // as last taken over
  uint2 fetched;             // tail and mask as last read
  u32 seq, enqueued;
  u32 mine;  // 1: this thread writes the words beside the slots

  MS_DEVICE void open(Queue<SLOTS>& queue, const uint2* zeros, bool fires, bool writes) {
    slots = Space::of(queue.half);
    words = Space::of(&queue.words);
    polled = fires ? words + offsetof(QueueWords, tail) : Space::of(zeros);
    seq = enqueued = mask = 0;
    fetched = make_uint2(0, 0);
    mine = opaque(static_cast<u32>(writes));  // or the compiler asks for threadIdx again each time
    Space::store_if(mine, words + offsetof(QueueWords, sm), multiprocessor());
    refresh(), refresh();
  }

  /// Take over the mask that the monitor has set, and how far it is; between tasks, so that it costs a firing nothing.
  /// What is taken over was fetched the time before, so that nobody waits for shared memory either.
  MS_DEVICE void refresh() {
    tail = fetched.x;
    if (fetched.y != mask) take_over(fetched.y);
    fetched = Space::load_8(polled);
  }

  MS_DEVICE bool wants(u32 hook) const { return mask >> hook & 1; }

  /// Attached or not. Two stores, as a record has: what goes to host memory is the monitor's to write, since whoever
  /// fences waits for that.
  MS_DEVICE void waits(u64 t, u32 task, u32 iteration, u32 dep, u32 seen, u32 wanted) const {
    const u32 low = static_cast<u32>(t), high = static_cast<u32>(t >> 32);
    const u32 check = low ^ high ^ task ^ iteration ^ dep ^ seen ^ wanted;
    Space::store_16(words + NOW, low, high, task, iteration);
    Space::store_16(words + NOW + 16, dep, seen, wanted, check);
  }
  MS_DEVICE void goes_on() const { Space::store_16(words + NOW, 0, 0, 0, 0); }

  MS_DEVICE void push(u32 hook, u32 t, u32 task, u32 iteration, u32 arg0, u32 arg1, u32 flags, u32 arg2) {
    seq++;
    if (enqueued - tail >= SLOTS) {
      tail = Space::load(words + offsetof(QueueWords, tail));
      if (enqueued - tail >= SLOTS) {
        if (mine) lose(hook, 1);
        return;
      }
    }
    if (mine) put(enqueued, seq, hook, t, task, iteration, arg0, arg1, flags, arg2);
    enqueued++;
  }

  /// The first half of a task's record, if `armed` and there is room: whether it was written. No branch: a predicate
  /// costs a warp a cycle or two, a branch about twenty.
  MS_DEVICE bool begin(bool armed, u64 t, u32 task) {
    bool begun = armed && enqueued - tail < SLOTS;
    Space::store_16_if(begun, slot(enqueued), static_cast<u32>(t), t >> 32, task, seq + 1);
    return begun;
  }

  /// The second half; wanted: bits WANTS_START and WANTS_COMPLETE.
  MS_DEVICE void end(u32 t, u32 ready, u32 wanted, u32 iteration) {
    Space::store_16(slot(enqueued) + 16, t, ready, TASK_RECORD | wanted | (iteration & TASK_ITERATION), seq + 1);
    enqueued++, seq += 2;
  }

  /// A task whose record found no room.
  MS_DEVICE void miss() {
    seq += 2;
    count(words + offsetof(QueueWords, lost_tasks) + (mask & TURN ? 4 : 0), 1);
  }

  /// 32 lanes push one record each where `active`, in lane order, with one look at the queue. All lanes hold the same
  /// producer state and call together.
  MS_DEVICE void push_warp(bool active, u32 hook, u32 t, u32 task, u32 iteration, u32 arg0, u32 arg1, u32 flags,
                           u32 arg2) {
    u32 who = __ballot_sync(FULL_WARP, active), n = __popc(who), rank = __popc(who & lanes_below());
    if (n == 0) return;
    t = __shfl_sync(FULL_WARP, t, 0);  // lanes that have diverged read the timer apart; a worker's time never goes back
    if (enqueued + n - tail > SLOTS)  // one value for the warp
      tail = __shfl_sync(FULL_WARP, Space::load(words + offsetof(QueueWords, tail)), 0);
    u32 room = min(n, SLOTS - (enqueued - tail));
    if (active && rank < room) put(enqueued + rank, seq + 1 + rank, hook, t, task, iteration, arg0, arg1, flags, arg2);
    seq += n;
    enqueued += room;
    if (room < n && mine) lose(hook, n - room);
    __syncwarp();
  }

 private:
  MS_DEVICE Address slot(u32 at) const { return slots + (at & (SLOTS - 1)) * 32; }

  MS_DEVICE void put(u32 at, u32 stamp, u32 hook, u32 t, u32 task, u32 iteration, u32 arg0, u32 arg1, u32 flags,
                     u32 arg2) {
    Space::store_16(slot(at), t, task, iteration & TASK_ITERATION, stamp);
    Space::store_16(slot(at) + 16, arg0, arg1, hook | flags << 8 | arg2 << 16, stamp);
  }

  MS_DEVICE void lose(u32 hook, u32 n) { count(words + ((mask & TURN ? HOOKS : 0) + hook) * 4, n); }

  /// The fence lets a consumer that sees the count also see every record before it (see Consumer::empty).
  MS_DEVICE void count(Address at, u32 n) {
    Space::fence();
    Space::store(at, Space::load(at) + n);
    Space::fence();
  }

  /// Rarely. Who sees the new mask in `seen_mask` sees all that came before it; who sees an event that came after it
  /// sees the mask too.
  MS_DEVICE void take_over(u32 told) {
    mask = told;
    Space::fence();
    Space::store_if(mine, words + offsetof(QueueWords, seen_from), seq + 1);
    Space::fence();
    Space::store_if(mine, words + offsetof(QueueWords, seen_mask), told);
    Space::fence();
  }
};

/// An event that a lane took from a queue.
struct Record {
  u32 t, task, iteration, seq, arg0, arg1;
  u64 began;  // of a start or complete: t of start
  u16 arg2;
  u8 hook, flags;
};

/// What a look at a queue gave: lanes that hold an event, those whose event was fired for nobody (the other half of a
/// task's record is wanted, this one is not), and how many records they came from.
struct Taken {
  u32 events, unwanted, records;
};

/// The consumer's end; the same in all 32 lanes of the monitor warp.
template <class Space>
struct Consumer {
  typedef typename Space::Address Address;

  Address slots, words;
  u32 last;   // number of slots - 1
  u32 pairs;  // 1: tasks' records are among them, so two lanes look at each
  u32 taken;  // records dequeued, modulo 2^32
  u64 next;   // the seq after the last that was dequeued (or booked as lost)

  template <u32 SLOTS>
  MS_DEVICE void open(Queue<SLOTS>& queue, bool tasks) {
    slots = Space::of(queue.half);
    words = Space::of(&queue.words);
    last = SLOTS - 1;
    pairs = tasks;
    taken = 0;
    next = 1;
  }

  /// Up to 32 records, or 16 where each may hold two events; lanes in order of seq. The slots are ours until `release`.
  /// until: none from that seq on, if not 0.
  MS_DEVICE Taken take(Record& r, u64 until = 0) const {
    Address slot = slots + ((taken + (lane_id() >> pairs)) & last) * 32;
    uint4 a = Space::load_16(slot), b = Space::load_16(slot + 16);
    bool whole = a.w == b.w && !older(a.w) && (until == 0 || precedes(a.w, until));
    u32 gaps = ~__ballot_sync(FULL_WARP, whole);
    // Of two lanes that look at one record, one may have looked before it was whole.
    u32 lanes = (gaps ? __ffs(gaps) - 1 : 32) & ~pairs, second = lane_id() & pairs;
    bool event = !second && lane_id() < lanes, wanted = true;
    if (b.z & TASK_RECORD) {
      u64 began = static_cast<u64>(a.y) << 32 | a.x;
      event = lane_id() < lanes;
      wanted = b.z & (second ? WANTS_COMPLETE : WANTS_START);
      u8 hook = second ? MS_HOOK_COMPLETE : MS_HOOK_START;
      r = {second ? b.x : a.x, a.z, b.z & TASK_ITERATION, a.w + second, b.y, 0, began, 0, hook, 0};
    } else {
      r = {a.x, a.y, a.z, a.w, b.x, b.y, 0, static_cast<u16>(b.z >> 16), static_cast<u8>(b.z),
           static_cast<u8>(b.z >> 8)};
    }
    return {__ballot_sync(FULL_WARP, event && wanted), __ballot_sync(FULL_WARP, event && !wanted), lanes >> pairs};
  }

  /// All 64 bits of a record's seq.
  MS_DEVICE u64 seq(const Record& r) const { return next + (r.seq - static_cast<u32>(next)); }

  MS_DEVICE void release(u32 records, u64 last_seq) {
    taken += records;
    next = last_seq + 1;
    __syncwarp();
    if (lane_id() == 0) Space::store(words + offsetof(QueueWords, tail), taken);
  }

  /// Lane h: events of hook h that the producer has counted lost so far in its turns of that parity.
  MS_DEVICE u32 lost(u32 turn) const {
    const u32 hook = lane_id();
    // One value for the warp: it counts for two hooks.
    const u32 tasks = __shfl_sync(FULL_WARP, Space::load(words + offsetof(QueueWords, lost_tasks) + turn * 4), 0);
    if (hook >= HOOKS) return 0;
    const u32 own = Space::load(words + (turn * HOOKS + hook) * 4);
    return own + (hook == MS_HOOK_START || hook == MS_HOOK_COMPLETE ? tasks : 0);
  }

  /// Where the producer took over the mask that it was told, or 0 while it has not. Asked after a look at its records,
  /// of which then none is of after it, or the answer is not 0.
  MS_DEVICE u64 taken_over() const {
    Space::fence();
    const u32 told = __shfl_sync(FULL_WARP, mask(), 0);
    if (__shfl_sync(FULL_WARP, seen_mask(), 0) != told) return 0;
    Space::fence();
    const u32 from = __shfl_sync(FULL_WARP, Space::load(words + offsetof(QueueWords, seen_from)), 0);
    return next + (from - static_cast<u32>(next));
  }

  /// Everything that was fired before `until`, where the producer took over, has been taken.
  MS_DEVICE bool reached(u64 until) const {
    const u32 stamp = Space::load_16(slots + (taken & last) * 32 + 16).w;
    return __all_sync(FULL_WARP, older(stamp) || !precedes(stamp, until));
  }

  /// As many records are waiting as one look takes.
  MS_DEVICE bool crowded() const {
    const u32 at = taken + (32 >> pairs) - 1;
    return __all_sync(FULL_WARP, !older(Space::load_16(slots + (at & last) * 32 + 16).w));
  }

  /// Nothing whole is waiting: after `lost` this means that every loss counted so far comes directly after what was
  /// taken, since a loss is counted only when the records before it are whole.
  MS_DEVICE bool empty() const {
    Space::fence();
    return __all_sync(FULL_WARP, older(Space::load_16(slots + (taken & last) * 32 + 16).w));
  }

  MS_DEVICE void set_mask(u32 mask) const { Space::store(words + offsetof(QueueWords, mask), mask); }
  MS_DEVICE u32 sm() const { return Space::load(words + offsetof(QueueWords, sm)); }
  MS_DEVICE u32 mask() const { return Space::load(words + offsetof(QueueWords, mask)); }
  MS_DEVICE u32 seen_mask() const { return Space::load(words + offsetof(QueueWords, seen_mask)); }
  /// What the producer waits for. False: it was just changing that.
  MS_DEVICE bool waits(NowWords& n) const {
    const uint4 a = Space::load_16(words + NOW), b = Space::load_16(words + NOW + 16);
    n = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    return (n.t | n.t_high) == 0 || (a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z) == b.w;
  }
  MS_DEVICE bool left() const { return __all_sync(FULL_WARP, Space::load(words + offsetof(QueueWords, left)) != 0); }

 private:
  MS_DEVICE bool older(u32 stamp) const { return precedes(stamp, next); }
  MS_DEVICE static bool precedes(u32 stamp, u64 seq) { return static_cast<int>(stamp - static_cast<u32>(seq)) < 0; }
};

}  // namespace ms

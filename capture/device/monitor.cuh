// The monitor warp: drains the queues of its block's two workers, completes records to rows, and accounts for every
// sequence number. It never makes a worker wait.
//
// Per worker and hook:  observed + lost = eligible,  written + ring_lost = observed  (the recorder asks for every row),
// and per worker:       seq_to - seq_from = dequeued + lost.
// All are cut at the same place in the worker's sequence, between two batches: at an epoch's end, when the mask has
// changed, and at the end. What cannot be cut exactly just now (losses behind records not yet taken) or has no room in
// the summary ring is cut later: that record then spans several epochs.
#pragma once
#include "hooks.cuh"
#include "completion.cuh"
#include "rows.cuh"
#include "summaries.cuh"

#if MS_HOOKS == MS_HOOKS_QUEUE

namespace ms {

constexpr u64 BEAT_NS = 250000;         // heartbeat, and publication of rows that wait for company
constexpr u64 CONTROL_NS = 64000;       // a look for a new mask
constexpr u64 LAST_CUT_NS = 200000000;  // how long the last cut waits for room in the summary ring
constexpr u64 GRACE_NS = 1000000000;    // after the deadline, for workers to leave in order
constexpr u64 PING_NS = 20000;          // how long a burst of the host's pings is listened for
constexpr u32 PUBLISH_ROWS = 512;       // rows that may be written before their publication is due
constexpr u32 CONTROL_MASK = (1u << 24) - 1;

struct MonitorShared {
  RowGroup stage[2];
  u32 observed[2][HOOKS];  // by worker and hook, in the interval that is open
  u32 refused[2][HOOKS];   // of those: the ring was full
  u32 booked[2][HOOKS];    // losses that closed intervals account for, ever
  u64 record[MS_SUMMARY_WORDS];
};

/// One worker as its monitor knows it.
struct Watched {
  Consumer queue;
  u32 worker, index;  // index: 0 compute, 1 scheduler
  u64 dequeued;       // ever
  u64 cut_seq, cut_dequeued, cut_t, due;
  bool early;  // a cut is asked for before the epoch ends

  MS_DEVICE void open(u32 id, u32 i, u64 now) {
    worker = id, index = i;
    cut_seq = 1, dequeued = cut_dequeued = 0;
    cut_t = now, due = (now / engine.epoch_ns + 1) * engine.epoch_ns;
    early = false;
  }
  MS_DEVICE void cut_early() { early = true, due = 0; }
};

struct Monitor {
  MonitorShared& shared;
  HookShared& hooks;
  RowWriter rows;
  SummaryWriter summaries;
  Watched here, other;  // the two workers, in turn, so that the code for one stands once
  u64* cursor;
  u64 now, deadline, last_beat, last_control, last_publish, pinged;
  u32 sm, control, asked, latched;
  bool switching;  // the workers fire by the mask asked for; the cut that separates it from the old one is to come

  MS_DEVICE Monitor(MonitorShared& s, HookShared& h, u64 until) : shared(s), hooks(h) {
    now = last_publish = warp_time();
    deadline = __shfl_sync(FULL_WARP, until, 0);
    rows.open(s.stage);
    summaries.open();
    here.queue.open(h.compute);
    here.open(compute_worker(), 0, now);
    other.queue.open(h.scheduler);
    other.open(scheduler_worker(), 1, now);
    cursor = engine.cursors + blockIdx.x * MS_CURSOR_WORDS;
    last_beat = last_control = pinged = 0;
    sm = multiprocessor();
    control = asked = hooks.mask;  // as launched; it belongs to no commit byte yet
    latched = 0;
    switching = false;
  }

  /// Until both workers have left and everything is told.
  MS_DEVICE void run() {
    bool left = false, last = false;
    u64 patience = 0;
    for (;;) {
      now = warp_time();
      u32 got = 0;
      bool beat = now - last_beat >= BEAT_NS || last;
#pragma unroll 1
      for (u32 i = 0; i < 2; i++) {
        got += drain(here);
        if (now >= here.due) cut(here);
        if (beat) tell_worker(here);
        swap();
      }
      if (beat) tell_monitor();
      if (switching && !here.early && !other.early) acknowledge();
      if (now - last_control >= CONTROL_NS) follow_control();
      if (rows.head - rows.published >= PUBLISH_ROWS || now - last_publish >= BEAT_NS || last) {
        rows.publish();
        last_publish = now;
      }
      if (last && ((!here.early && !other.early) || now >= patience)) return;
      if (got) continue;
      if (last || now >= deadline + GRACE_NS) {
        last = true;
        __nanosleep(1000);
      } else if (left) {  // and nothing came since: the last cut
        last = true;
        here.cut_early(), other.cut_early();
        patience = now + LAST_CUT_NS;
      } else {
        bool one = here.queue.left(), two = other.queue.left();
        left = one && two;
        if (!left) __nanosleep(100);
      }
    }
  }

 private:
  MS_DEVICE void swap() {
    Watched w = here;
    here = other;
    other = w;
  }

  MS_DEVICE u32 drain(Watched& w) {
    Record r;
    u32 n = w.queue.take(r);
    if (n == 0) return 0;
    bool mine = lane_id() < n;
    u64 seq = w.queue.seq(r);
    ms_ring_row row;
    complete(r, w.worker, sm, now, seq, row);
    u32 room = rows.admit(n, now);
    if (mine) atomicAdd(&shared.observed[w.index][r.hook & (HOOKS - 1)], 1);
    if (mine && lane_id() >= room) atomicAdd(&shared.refused[w.index][r.hook & (HOOKS - 1)], 1);
    w.dequeued += n;
    w.queue.release(n, __shfl_sync(FULL_WARP, seq, n - 1));
    rows.append(room, row);
    return n;
  }

  /// Close the open interval of a worker, if that is possible just now.
  MS_DEVICE void cut(Watched& w) {
    u32 lane = lane_id() & (HOOKS - 1);
    u32 lost = w.queue.lost(), all = __reduce_add_sync(FULL_WARP, lost);
    u32 behind = all - static_cast<u32>(w.queue.next - 1 - w.dequeued);  // lost after the last that was dequeued
    if (behind && !w.queue.empty()) return;  // records stand between: after them
    u32 hook_lost = __shfl_sync(FULL_WARP, lost, lane) - shared.booked[w.index][lane];
    u32 observed = shared.observed[w.index][lane], refused = shared.refused[w.index][lane];
    u32 fired = __ballot_sync(FULL_WARP, lane_id() < HOOKS && observed + hook_lost != 0);
    if (!summaries.room(1 + __popc(fired))) {
      w.due = now + BEAT_NS;
      return;
    }
    w.queue.next += behind;
    u64 epoch = w.cut_t / engine.epoch_ns, last = now / engine.epoch_ns;
    u64 when = epoch | (last - epoch + w.early) << 48;
    w.early = false;
    __syncwarp();
    if (lane_id() == 0) {
      u64* r = shared.record;
      for (u32 i = 0; i < MS_SUMMARY_WORDS; i++) r[i] = 0;
      r[MS_SUMMARY_WHAT] = MS_RECORD_INTERVAL | static_cast<u64>(w.worker) << 32;
      r[MS_SUMMARY_EPOCH] = when;
      r[MS_SUMMARY_T_BEGIN] = w.cut_t;
      r[MS_SUMMARY_T_END] = now;
      r[MS_SUMMARY_SEQ_FROM] = w.cut_seq;
      r[MS_SUMMARY_SEQ_TO] = w.queue.next;
      r[MS_SUMMARY_DEQUEUED] = w.dequeued - w.cut_dequeued;
      r[MS_SUMMARY_INTERVAL_LOST] = w.queue.next - w.cut_seq - (w.dequeued - w.cut_dequeued);
    }
    summaries.write(shared.record);
    for (u32 hooks_left = fired; hooks_left; hooks_left &= hooks_left - 1) {
      u32 hook = __ffs(hooks_left) - 1;
      u32 seen = __shfl_sync(FULL_WARP, observed, hook), gone = __shfl_sync(FULL_WARP, hook_lost, hook);
      u32 out = __shfl_sync(FULL_WARP, refused, hook);
      if (lane_id() == 0) {
        u64* r = shared.record;  // EPOCH to SEQ_TO stay as they are
        for (u32 i = MS_SUMMARY_ELIGIBLE; i < MS_SUMMARY_WORDS; i++) r[i] = 0;
        r[MS_SUMMARY_WHAT] =
            MS_RECORD_COVERAGE | hook << 8 | MS_PROGRAM_RECORDER << 16 | static_cast<u64>(w.worker) << 32;
        r[MS_SUMMARY_ELIGIBLE] = seen + gone;
        r[MS_SUMMARY_OBSERVED] = seen;
        r[MS_SUMMARY_LOST] = gone;
        r[MS_SUMMARY_EMITTED] = seen;
        r[MS_SUMMARY_WRITTEN] = seen - out;
        r[MS_SUMMARY_RING_LOST] = out;
      }
      summaries.write(shared.record);
    }
    summaries.publish();
    if (lane_id() < HOOKS) {
      shared.booked[w.index][lane] = lost;
      shared.observed[w.index][lane] = shared.refused[w.index][lane] = 0;
    }
    __syncwarp();
    w.cut_seq = w.queue.next, w.cut_dequeued = w.dequeued, w.cut_t = now, w.due = (last + 1) * engine.epoch_ns;
  }

  /// A new mask: tell the workers, wait until both fire by it, cut there, acknowledge.
  MS_DEVICE void follow_control() {
    last_control = now;
    if (blockIdx.x == 0) poll_host();
    if (switching) return;
    asked = __shfl_sync(FULL_WARP, load_device(&engine.run->control.word), 0);
    if (asked == control) return;
    u32 mask = asked & CONTROL_MASK;
    if (lane_id() == 0) store_shared(shared_address(&hooks.mask), mask);
    bool one = here.queue.left(), two = other.queue.left();
    bool follow = (one || here.queue.seen_mask() == mask) && (two || other.queue.seen_mask() == mask);
    if (!__all_sync(FULL_WARP, follow)) return;
    switching = true;
    here.cut_early(), other.cut_early();
  }

  MS_DEVICE void acknowledge() {
    switching = false;
    control = asked;
    if (lane_id() == 0) {
      store_host(cursor + MS_CURSOR_MASK, asked & CONTROL_MASK);
      store_host(cursor + MS_CURSOR_ACK, asked >> 24);
    }
  }

  /// The elected monitor alone reads the host's control page (two microseconds over PCIe) and hands it on in device
  /// memory. Its words are only taken when the commit byte beside them has changed.
  MS_DEVICE void poll_host() {
    u64 bytes = load_host(reinterpret_cast<const u64*>(engine.control + MS_CONTROL_COMMIT));
    u64 stop = load_host(engine.host + HOST_STOP);
    u64 ping = load_host(engine.host + HOST_PING);
    answer(__shfl_sync(FULL_WARP, ping, 0));
    bytes = __shfl_sync(FULL_WARP, bytes, 0);
    stop = __shfl_sync(FULL_WARP, stop, 0);
    u32 commit = bytes & 0xff;
    if ((stop || (bytes >> 8 * (MS_CONTROL_STOP - MS_CONTROL_COMMIT) & 0xff)) && lane_id() == 0)
      store_device(&engine.run->stop.word, 1);
    if (commit == latched) return;
    latched = commit;
    fence_system();
    u32 mask = load_host(reinterpret_cast<const u64*>(engine.control + MS_CONTROL_MASK)) & engine.exported;
    if (lane_id() == 0) store_device(&engine.run->control.word, (mask & CONTROL_MASK) | commit << 24);
    __syncwarp();
  }

  /// A reading of both clocks: the host pings, and takes the best of a burst's round trips.
  MS_DEVICE void answer(u64 ping) {
    if (ping == pinged) return;
    u64 until = warp_time() + PING_NS;
    while (ping != pinged || warp_time() < until) {
      if (ping != pinged && lane_id() == 0) {
        store_host(engine.host + HOST_PING_TIME, device_time());
        fence_system();
        store_host(engine.host + HOST_PING_ECHO, ping);
      }
      pinged = ping;
      ping = __shfl_sync(FULL_WARP, load_host(engine.host + HOST_PING), 0);
    }
  }

  MS_DEVICE void tell_monitor() {
    last_beat = now;
    if (lane_id() == 0) {
      store_host(cursor + MS_CURSOR_HEARTBEAT, now);
      store_host(cursor + MS_CURSOR_EPOCH, now / engine.epoch_ns);
      store_host(cursor + MS_CURSOR_RING_LOST, rows.ring_lost);
    }
  }

  MS_DEVICE void tell_worker(const Watched& w) {
    if (lane_id() == 0) {
      u64* line = engine.workers + w.worker * MS_WORKER_WORDS;
      store_host(line + MS_WORKER_FIRED, w.queue.next - 1);
      store_host(line + MS_WORKER_DEQUEUED, w.dequeued);
      store_host(line + MS_WORKER_LOST, w.queue.next - 1 - w.dequeued);
    }
  }
};

}  // namespace ms

#endif

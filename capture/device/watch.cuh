// What a monitor knows of its workers, and the intervals that it closes.
//
// Per worker:                     seq_to - seq_from = dequeued + lost, and of those dequeued some are unclaimed: no
//                                 program was attached to their hook, the recorder neither
// per worker, program and hook:   eligible = observed + throttled + lost + faulted
//                                 emitted = written + ring_lost + emit_throttled
//
// All are cut at the same place in the worker's sequence, between two batches: at an epoch's end, when who runs has
// changed, and at the end. What cannot be cut exactly just now (losses behind records not yet taken) or has no room in
// the summary ring is cut later: that interval then spans several epochs.
#pragma once
#include "programs.cuh"
#include "rows.cuh"
#include "summaries.cuh"

namespace ms {

constexpr u32 WATCHED = MS_HOOKS == MS_HOOKS_DEVICE ? 16 : 2;  // workers of a monitor, at most
constexpr u64 RETRY_NS = 250000;                               // to the next try of a cut that had no room

/// One worker; in shared memory between visits.
struct Watched {
  Consumer<HookSpace> queue;
  u32 worker;
  u32 turn;    // the parity of the turn that its open interval is of
  bool early;  // a cut is asked for before the epoch ends
  bool over;   // while who watches changes: it is watched by the new party
  u64 until;   // while who watches changes: the seq from which it will be, 0: not known yet
  u64 dequeued;       // ever
  u64 unclaimed;      // in the interval that is open
  u64 cut_seq, cut_dequeued, cut_t, due;
  u64 rung;     // the epoch that its epoch hook has been fired for
  u64 drained;  // when its records were last taken, if there were any

  MS_DEVICE void open(u32 id, u64 now) {
    worker = id;
    cut_seq = 1, dequeued = cut_dequeued = unclaimed = 0;
    cut_t = drained = now, due = (now / segment.epoch_ns + 1) * segment.epoch_ns;
    rung = now / segment.epoch_ns;
    turn = 0, until = 0;
    early = over = false;
  }
  MS_DEVICE void cut_early() { early = true, due = 0; }
};

struct MonitorShared {
  RowGroup stage[2];
  VmScratch scratch;
  Watched watched[WATCHED];
  u32 observed[WATCHED][HOOKS];  // by the recorder, in the interval that is open
  u32 refused[WATCHED][HOOKS];   // of those: the ring was full
  u32 booked[WATCHED][HOOKS];    // losses that closed intervals account for, ever
  u32 before[WATCHED][HOOKS];    // losses of turns of the other parity, which is not on
  u64 waiting[WATCHED];          // since when it waits, as its line in the segment says; 0: it does not
  u64 record[MS_SUMMARY_WORDS];
};

/// Who runs: the recorder at some hooks, and programs.
struct Party {
  u32 recorded;  // hooks that the recorder takes
  u32 active;    // bit p: the program in place p runs
  u32 hooks;     // of all of them
  Running* running;
};

/// What became of a program's events at the hook of this lane, in one interval.
struct Counts {
  u32 observed, throttled, lost, faulted, emitted, ring_lost, emit_throttled;

  MS_DEVICE u32 eligible() const { return observed + throttled + lost + faulted; }
};

/// One monitor's accounts. All 32 lanes hold the same state and call together.
struct Accounts {
  MonitorShared& shared;
  SummaryWriter summaries;

  MS_DEVICE Accounts(MonitorShared& s, u32 monitor) : shared(s) { summaries.open(monitor); }

  /// Close the open interval of worker `i` of the monitor, if that is possible just now: at `until`, which has been
  /// reached, or after what was dequeued and lost. Its records are to be published when its rows are.
  MS_DEVICE bool cut(Watched& w, u32 i, u64 now, const Party& party) {
    const u32 hook = lane_id() & (HOOKS - 1);
    const u32 of_turn = w.queue.lost(w.turn), lost = lane_id() < HOOKS ? of_turn + shared.before[i][hook] : 0;
    const u32 all = __reduce_add_sync(FULL_WARP, lost);
    const u32 behind = all - static_cast<u32>(w.queue.next - 1 - w.dequeued);  // lost after the last that was dequeued
    if (!w.until && behind && !w.queue.empty()) return false;  // records stand between: after them
    const u32 gone = __shfl_sync(FULL_WARP, lost, hook) - shared.booked[i][hook];
    u32 records = 1 + __popc(told(recorder(i, gone, party)));
#pragma unroll 1
    for (u32 left = party.active; left; left &= left - 1)
      records += __popc(told(program(__ffs(left) - 1, w.worker, gone, party)));
    if (!summaries.room(records)) {
      w.due = now + RETRY_NS;
      return false;
    }
    w.queue.next += behind;
    interval(w, now);
    coverage(w, MS_PROGRAM_RECORDER, recorder(i, gone, party));
#pragma unroll 1
    for (u32 left = party.active; left; left &= left - 1) {
      const u32 place = __ffs(left) - 1;
      const Counts c = program(place, w.worker, gone, party);
      coverage(w, party.running[place].program, c);
      settle(place, w.worker, c, party);
    }
    if (lane_id() < HOOKS) {
      shared.booked[i][hook] = lost;
      shared.observed[i][hook] = shared.refused[i][hook] = 0;
      if (w.until) shared.before[i][hook] = of_turn;
    }
    __syncwarp();
    if (w.until) w.turn ^= 1, w.until = 0;
    w.early = false;
    w.unclaimed = 0;
    w.cut_seq = w.queue.next, w.cut_dequeued = w.dequeued, w.cut_t = now;
    w.due = (now / segment.epoch_ns + 1) * segment.epoch_ns;
    return true;
  }

 private:
  MS_DEVICE static u32 told(const Counts& c) { return __ballot_sync(FULL_WARP, lane_id() < HOOKS && c.eligible()); }

  MS_DEVICE Counts recorder(u32 i, u32 gone, const Party& party) const {
    const u32 hook = lane_id() & (HOOKS - 1);
    if (!(party.recorded >> hook & 1)) return {};
    const u32 seen = shared.observed[i][hook];
    return {seen, 0, gone, 0, seen, shared.refused[i][hook], 0};
  }

  MS_DEVICE static Counts program(u32 place, u32 worker, u32 gone, const Party& party) {
    const u32 hook = lane_id() & (HOOKS - 1);
    const Running& r = party.running[place];
    if (!(r.hooks >> hook & 1)) return {};
    const Book& b = book_of(place, worker);
    const u64* now = r.vm.part(worker) + PART_COUNTERS + hook * VM_COUNTS;
    const u32* then = b.cut + hook * VM_COUNTS;
    return {static_cast<u32>(now[VM_OBSERVED]) - then[VM_OBSERVED],
            static_cast<u32>(now[VM_THROTTLED]) - then[VM_THROTTLED],
            hook == MS_HOOK_EPOCH ? 0 : gone,
            static_cast<u32>(now[VM_FAULTED]) - then[VM_FAULTED],
            static_cast<u32>(now[VM_EMITTED]) - then[VM_EMITTED],
            b.refused[hook] - b.refused_cut[hook],
            static_cast<u32>(now[VM_EMIT_THROTTLED]) - then[VM_EMIT_THROTTLED]};
  }

  /// What has been told is not told again.
  MS_DEVICE static void settle(u32 place, u32 worker, const Counts& c, const Party& party) {
    Book& b = book_of(place, worker);
    const u64* now = party.running[place].vm.part(worker) + PART_COUNTERS;
    for (u32 k = lane_id(); k < VM_HOOKS * VM_COUNTS; k += 32) b.cut[k] = static_cast<u32>(now[k]);
    if (lane_id() < VM_HOOKS) b.refused_cut[lane_id()] = b.refused[lane_id()];
    const bool mine = lane_id() < HOOKS;
    const u32 parts[SUMS] = {c.eligible(), c.observed, c.throttled, c.lost, c.faulted, c.emitted};
    for (u32 k = 0; k < SUMS; k++) {
      const u32 sum = __reduce_add_sync(FULL_WARP, mine ? parts[k] : 0);
      if (lane_id() == 0) b.sum[k] += sum;
    }
    __syncwarp();
  }

  /// The interval's record; words EPOCH to SEQ_TO stay for the coverage records after it.
  MS_DEVICE void interval(const Watched& w, u64 now) {
    const u64 epoch = w.cut_t / segment.epoch_ns, last = now / segment.epoch_ns;
    __syncwarp();
    if (lane_id() == 0) {
      u64* r = shared.record;
      for (u32 k = 0; k < MS_SUMMARY_WORDS; k++) r[k] = 0;
      r[MS_SUMMARY_WHAT] = MS_RECORD_INTERVAL | static_cast<u64>(w.worker) << 32;
      r[MS_SUMMARY_EPOCH] = epoch | (last - epoch + w.early) << 48;
      r[MS_SUMMARY_T_BEGIN] = w.cut_t;
      r[MS_SUMMARY_T_END] = now;
      r[MS_SUMMARY_SEQ_FROM] = w.cut_seq;
      r[MS_SUMMARY_SEQ_TO] = w.queue.next;
      r[MS_SUMMARY_DEQUEUED] = w.dequeued - w.cut_dequeued;
      r[MS_SUMMARY_INTERVAL_LOST] = w.queue.next - w.cut_seq - (w.dequeued - w.cut_dequeued);
      r[MS_SUMMARY_UNCLAIMED] = w.unclaimed;
    }
    summaries.write(shared.record);
  }

  MS_DEVICE void coverage(const Watched& w, u32 program, const Counts& c) {
#pragma unroll 1
    for (u32 left = told(c); left; left &= left - 1) {
      const u32 hook = __ffs(left) - 1;
      __syncwarp();
      if (lane_id() == hook) {
        u64* r = shared.record;
        r[MS_SUMMARY_WHAT] = MS_RECORD_COVERAGE | hook << 8 | program << 16 | static_cast<u64>(w.worker) << 32;
        r[MS_SUMMARY_ELIGIBLE] = c.eligible();
        r[MS_SUMMARY_OBSERVED] = c.observed;
        r[MS_SUMMARY_THROTTLED] = c.throttled;
        r[MS_SUMMARY_LOST] = c.lost;
        r[MS_SUMMARY_FAULTED] = c.faulted;
        r[MS_SUMMARY_EMITTED] = c.emitted;
        r[MS_SUMMARY_WRITTEN] = c.emitted - c.emit_throttled - c.ring_lost;
        r[MS_SUMMARY_RING_LOST] = c.ring_lost;
        r[MS_SUMMARY_EMIT_THROTTLED] = c.emit_throttled;
      }
      summaries.write(shared.record);
    }
  }
};

}  // namespace ms

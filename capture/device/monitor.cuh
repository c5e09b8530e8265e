// The monitor warp: drains its workers' queues, completes records to rows, lets programs see them, writes what is to be
// exported, and accounts for every sequence number. It never makes a worker wait.
#pragma once
#include "segment.cuh"

#if MS_MONITORED
#include "completion.cuh"
#include "exporting.cuh"

namespace ms {

constexpr u64 BEAT_NS = 250000;         // heartbeat, and publication of rows that wait for company
constexpr u64 COMPANY_NS = 400000;      // how long records wait for more, so that programs see many events at once
constexpr u32 FEW = 16;                 // events in a look at all workers: fewer are worth waiting for company
constexpr u32 SHORTEST_NAP_NS = 250;    // between looks; a look costs the workers of its multiprocessor some cycles
constexpr u32 LONGEST_NAP_NS = 8000;    // much less than it takes to fill a queue
constexpr u32 IDLE_NAP_NS = 64000;      // while nothing is fired: no longer than between two looks for a change
constexpr u64 LAST_CUT_NS = 200000000;  // how long the last cut waits for room in the summary ring
constexpr u64 LAST_EXPORT_NS = 1000000000;  // and the last export for the host
constexpr u64 GRACE_NS = 1000000000;    // after the deadline, for workers to leave in order
constexpr u32 PUBLISH_ROWS = 512;       // rows that may be written before their publication is due

struct Monitor : Exporting {
  RowWriter rows;
  Accounts accounts;
  u64 deadline, last_beat, last_publish;
  u32 nap;
  bool left;  // all workers have
  bool last;  // and nothing came after that

  MS_DEVICE Monitor(MonitorShared& s, u32 i, u64 until) : Exporting(s, i), accounts(s, i) {
    deadline = __shfl_sync(FULL_WARP, until, 0);
    rows.open(s.stage, i);
    last_publish = now;
    last_beat = 0;
    left = last = false;
    if (lane_id() == 0) store_release_device(&segment.progress[index].began, 1);
    nap = SHORTEST_NAP_NS;
  }

  /// One more worker to watch. mask: hooks that are recorded from the start; it belongs to no commit byte yet.
  template <u32 SLOTS>
  MS_DEVICE void watch(Queue<SLOTS>& queue, bool tasks, u32 worker, u32 mask) {
    Watched w;
    w.queue.open(queue, tasks);
    w.open(worker, now);
    control = asked = party.recorded = party.hooks = mask;
    if (lane_id() == 0) w.queue.set_mask(mask);
    put(w, workers++);
  }

  /// Until all workers have left and everything is told.
  MS_DEVICE void run() {
    watch_all();
    tell_ended();
  }

 private:
  MS_DEVICE void watch_all() {
    u64 patience = 0;
    for (;;) {
      now = warp_time();
      bool beat = now - last_beat >= BEAT_NS || last;
      u32 got = visit(beat);
      if (beat) tell_monitor();
      if (sharing) follow_shared();
      if (exporting | leaving) export_some();
      if (step != SWITCH_NONE || now - last_control >= CONTROL_NS) follow_control();
      if (rows.head - rows.published >= PUBLISH_ROWS || now - last_publish >= BEAT_NS || last) {
        rows.publish();
        last_publish = now;
      }
      if (last && step == SWITCH_NONE) {
        if (ending && !leaving) return;
        if (!ending) {  // a change that was under way is through
          ending = true;
          tell_end();
        }
      }
      if (last && now >= patience) return;
      if (got && !last) {
        nap = got < FEW ? min(2 * nap, LONGEST_NAP_NS) : SHORTEST_NAP_NS;
        if (got < FEW) __nanosleep(nap);
        continue;
      }
      if (!last && ((left && is_last()) || now >= deadline + GRACE_NS)) {  // nothing came since: the last cut
        last = true;
        patience = now + (party.active | coming.active | leaving ? LAST_EXPORT_NS : LAST_CUT_NS);
      } else if (last) {
        __nanosleep(1000);
      } else {
        nap = min(2 * nap, idle() ? IDLE_NAP_NS : LONGEST_NAP_NS);
        if (!left && all_left())
          left = true;  // what they fired last is taken before the last cut
        else
          __nanosleep(nap);
      }
    }
  }

  /// Nobody watches, and no change is under way: there is nothing in the queues, and nothing comes.
  MS_DEVICE bool idle() const { return (party.hooks | coming.hooks) == 0 && step == SWITCH_NONE; }

  /// The elected monitor does not end before the others have: it takes in changes, and tells what they share.
  MS_DEVICE bool is_last() const {
    bool gone = true;
    if (index == 0)
      for (u32 m = 1 + lane_id(); m < segment.monitors; m += 32) gone &= is_gone(m);
    return __all_sync(FULL_WARP, gone);
  }

  /// A look at every worker. Returns the events that were dequeued.
  MS_DEVICE u32 visit(bool beat) {
    u32 got = 0;
#pragma unroll 1
    for (u32 i = 0; i < workers; i++) {
      Watched w = get(i);
      if (due(w)) {
        w.drained = now;
        got += drain(w, i);
      }
      if (now >= w.due && (!w.until || w.queue.reached(w.until))) close(w, i);
      if (beat) tell_worker(w, i);
      put(w, i);
    }
    return got;
  }

  /// A batch costs much the same with one event as with 32, and what it costs is taken from the workers beside it: so
  /// records wait for company, unless there is enough of it or something else waits for them.
  MS_DEVICE bool due(const Watched& w) const {
    if (left || last || step != SWITCH_NONE || now >= w.due || now - w.drained >= COMPANY_NS) return true;
    return w.queue.crowded();
  }

  MS_DEVICE u32 drain(Watched& w, u32 i) {
    Record r;
    const Party watching = party_of(w);
    Taken took = w.queue.take(r, w.until);
    if (stays(w) && !w.until && takes_turn(w)) took = w.queue.take(r, w.until);
    if (took.records == 0) return 0;
    const bool mine = took.events >> lane_id() & 1;
    const u64 seq = w.queue.seq(r);
    ms_ring_row row;
    complete(r, w.worker, w.queue.sm(), now, seq, row);
    const u32 hook = r.hook & (HOOKS - 1);
    row.by = mine && watching.recorded >> hook & 1 ? RECORDER_BIT : 0;
    if (watching.active) run_programs(row, took.events, watching.active);
    const u32 exported = __ballot_sync(FULL_WARP, mine && row.by), n = __popc(exported);
    const u32 rank = __popc(exported & lanes_below()), room = n ? rows.admit(n, now) : 0;
    const bool out_goes = mine && row.by && rank < room;
    if (mine && row.by & RECORDER_BIT) {
      atomicAdd(&shared.observed[i][hook], 1);
      if (!out_goes) atomicAdd(&shared.refused[i][hook], 1);
    }
    if (watching.active && mine && row.by && !out_goes) refuse(row.by, w.worker, hook, watching.active);
    const u32 claimed = __ballot_sync(FULL_WARP, mine && watching.hooks >> hook & 1);
    const u32 all = took.events | took.unwanted;
    w.dequeued += __popc(all);
    w.unclaimed += __popc(all) - __popc(claimed);
    w.queue.release(took.records, __shfl_sync(FULL_WARP, seq, 31 - __clz(all)));
    if (n) rows.append(out_goes, rank, room, row);
    return __popc(all);
  }

  // --- programs ---------------------------------------------------------------------------------------------------

  MS_DEVICE VmDeep& deep() const { return static_cast<VmDeep*>(segment.deep)[index]; }

  /// Every program sees the rows of `lanes`; row.by gets the bits of those that emit them.
  MS_DEVICE void run_programs(ms_ring_row& row, u32 lanes, u32 active) {
    u64(*to)[32] = shared.scratch.row;
    const u32 lane = lane_id();
    to[0][lane] = row.t, to[1][lane] = row.seq, to[2][lane] = row.task, to[3][lane] = row.aux;
    to[4][lane] = row.request | static_cast<u64>(row.step) << 32;
    to[5][lane] = row.dep | static_cast<u64>(row.comm) << 32;
    to[6][lane] = row.tile | static_cast<u64>(row.task_class) << 32 | static_cast<u64>(row.worker) << 48;
    to[7][lane] = row.sm | static_cast<u64>(row.peer) << 16 | static_cast<u64>(row.hook) << 32 |
                  static_cast<u64>(row.dep_class) << 40 | static_cast<u64>(row.flags) << 48 |
                  static_cast<u64>(row.rank) << 56;
    __syncwarp();
    Lanes<u32> by;
    by[lane] = row.by;
#pragma unroll 1
    for (u32 left = active; left; left &= left - 1)
      vm_batch(party.running[__ffs(left) - 1].vm, shared.scratch, deep(), lanes, by);
    row.by = by[lane];
  }

  /// A row that programs asked for found the ring full.
  MS_DEVICE void refuse(u32 by, u32 worker, u32 hook, u32 active) {
#pragma unroll 1
    for (u32 left = active; left; left &= left - 1) {
      const u32 place = __ffs(left) - 1;
      if (by & party.running[place].vm.bit) atomicAdd(&book_of(place, worker).refused[hook], 1);
    }
  }

  /// The epoch hook of a worker: a row for programs only. One that a program emits is no event of the trace: it is
  /// counted as over the limit, as on the host.
  MS_DEVICE void fire_epoch(const Watched& w) {
    ms_ring_row row = {};
    row.t = now, row.aux = w.cut_t;
    row.worker = w.worker, row.sm = w.queue.sm(), row.peer = MS_PEER_NONE, row.hook = MS_HOOK_EPOCH;
    run_programs(row, 1, party_of(w).active);
    const u32 by = __shfl_sync(FULL_WARP, row.by, 0);
#pragma unroll 1
    for (u32 left = by ? party_of(w).active : 0; left; left &= left - 1) {
      const VmAttached& a = party.running[__ffs(left) - 1].vm;
      u64* counts = a.part(w.worker) + PART_COUNTERS + MS_HOOK_EPOCH * VM_COUNTS;
      if (lane_id() == 0 && by & a.bit) counts[VM_EMIT_THROTTLED]++;
    }
    __syncwarp();
  }

  /// Close a worker's interval; at an epoch's end its programs' epochs too.
  MS_DEVICE void close(Watched& w, u32 i) {
    const Party watching = party_of(w);
    const bool epoch = now / segment.epoch_ns > w.cut_t / segment.epoch_ns;
    const bool goes = stays(w) && (w.until || ending || (w.queue.left() && w.queue.empty()));
    if (epoch && w.rung != now / segment.epoch_ns) {  // once, however often it takes to be cut
      w.rung = now / segment.epoch_ns;
      if (watching.hooks >> MS_HOOK_EPOCH & 1) fire_epoch(w);
    }
    if (!accounts.cut(w, i, now, watching)) return;
    rows.publish();  // whoever reads that an interval is closed finds its rows
    accounts.summaries.publish();
    if (goes) take_along(w);
    if (!epoch) return;
    epochs++;
    exporting |= watching.active;
#pragma unroll 1
    for (u32 left = watching.active; left; left &= left - 1) {
      const u32 place = __ffs(left) - 1;
      close_part(party.running[place], w.worker, book_of(place, w.worker), now);
    }
    if (lane_id() == 0) store_release_device(&segment.progress[index].epochs, epochs / workers);
  }

  MS_DEVICE bool all_left() const {
    bool left = true;
    for (u32 i = 0; i < workers; i++) left &= shared.watched[i].queue.left();
    return left;
  }

  // --- words for everyone -----------------------------------------------------------------------------------------

  MS_DEVICE void tell_monitor() {
    last_beat = now;
    if (lane_id() == 0) {
      store_host(cursor + MS_CURSOR_HEARTBEAT, now);
      store_host(cursor + MS_CURSOR_EPOCH, now / segment.epoch_ns);
      store_host(cursor + MS_CURSOR_RING_LOST, rows.ring_lost);
    }
  }

  MS_DEVICE void tell_worker(const Watched& w, u32 i) {
    u64* line = segment.workers + w.worker * MS_WORKER_WORDS;
    if (lane_id() == 0) {
      store_host(line + MS_WORKER_FIRED, w.queue.next - 1);
      store_host(line + MS_WORKER_DEQUEUED, w.dequeued);
      store_host(line + MS_WORKER_LOST, w.queue.next - 1 - w.dequeued);
      tell_wait(w, line, shared.waiting[i]);
    }
    __syncwarp();
  }

  /// Lane 0: what it waits for, so that a hang can be read at any time, by anyone, attached or not. A reader takes the
  /// words only if their check agrees, so their order over PCIe does not matter.
  MS_DEVICE static void tell_wait(const Watched& w, u64* line, u64& told) {
    NowWords n;
    if (!w.queue.waits(n)) return;
    const u64 t = static_cast<u64>(n.t_high) << 32 | n.t;
    if (t == told) return;
    told = t;
    if (t) {
      const u64 task = static_cast<u64>(n.iteration) << 32 | n.task, counts = static_cast<u64>(n.seen) << 32 | n.wanted;
      store_host(line + MS_WORKER_NOW_TASK, task);
      store_host(line + MS_WORKER_NOW_DEP, n.dep);
      store_host(line + MS_WORKER_NOW_SEEN_WANTED, counts);
      store_host(line + MS_WORKER_NOW_CHECK, t ^ task ^ n.dep ^ counts);
    }
    store_host(line + MS_WORKER_NOW_T, t);
  }
};

}  // namespace ms

#endif

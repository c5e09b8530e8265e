// Two schedules of one graph, chosen at launch. Static: each compute worker runs its own list and waits on counters.
// Dynamic: whoever satisfies a dependency pushes the tasks that waited on it into workers' queues.
//
// Who writes what, and what orders it:
//   a task's output        128 compute threads, plain stores; then the block's counted barrier
//   mailbox (shared)       compute worker, after a block fence; the scheduler warp reads it, then fences the device:
//                          the block's output is now before anything that the scheduler writes
//   counters               any scheduler, one atomic per release; monotonic over iterations, so nothing is reset
//   queue entries          the scheduler that satisfied the dependency: its atomic's result, a device fence, the entry
//   begun, leave           rank 0's first scheduler (leave on a deadline: anyone), after a fence
// A compute worker reads an entry (or a counter, or `begun`), fences the device, and the barrier hands that order to
// the other 127 threads, which read activations through the second-level cache (__ldcg).
//
// Several ranks' blocks know nothing of each other's tasks. They meet in three places, where a fence of the system
// takes the place of the device's: in a round of communication (exchange.cuh), in the counter of the iteration's end,
// which is in rank 0's memory, and in `begun`, which rank 0's first scheduler tells every rank.
#pragma once
#include "work.cuh"

namespace ms {

/// The scheduler warp. All 32 lanes hold the same state, except `held`.
struct Scheduler {
  SchedulerHooks hooks;
  Patience patience;
  u32 slots, taken_at;
  u32 taken, cursor;
  u32 base;  // first block of the rank
  u64 step_began;
  u32 begun;
  bool ended;
  // fault controls: what this lane holds back, until when
  u32 held, held_iteration, held_word;  // task, or dependency with the top bit; 0 nothing. word: see effect
  u64 held_until;

  static constexpr u32 IS_DEP = 0x80000000u;

  MS_DEVICE void open(HookShared& shared, Mailbox& box, u64 deadline) {
    hooks.open(shared);
    patience = {deadline, 0};
    slots = shared_address(box.slot);
    taken_at = shared_address(&box.taken);
    taken = 0, cursor = blockIdx.x * 7;
    base = own_rank() * engine.rank_blocks;
    begun = 0, step_began = 0, ended = false;
    held = 0, held_until = 0, held_iteration = held_word = 0;
  }

  MS_DEVICE void run() {
    for (;;) {
      hooks.refresh();
      bool busy = take_mail();
      if (engine.faulty) busy |= let_go();
      if (blockIdx.x == base && !busy && !ended) {
        if (base == 0)
          step();
        else
          follow();
      }
      if (busy) continue;
      bool out = __shfl_sync(FULL_WARP, lane_id() == 0 && patience.out(), 0);
      if (out) break;
    }
    hooks.close();
  }

 private:
  MS_DEVICE bool take_mail() {
    uint4 mail = load_shared_16(slots + (taken & (MAIL_SLOTS - 1)) * 16);
    bool got = __shfl_sync(FULL_WARP, mail.w == taken + 1, 0);
    if (!got) return false;
    u32 task = __shfl_sync(FULL_WARP, mail.x, 0), iteration = __shfl_sync(FULL_WARP, mail.y, 0);
    u32 place = __shfl_sync(FULL_WARP, mail.z, 0);
    taken++;
    if (lane_id() == 0) store_shared(taken_at, taken);
    fence_device();
    released(task, iteration, place & ((1u << RELEASE_BITS) - 1), place >> RELEASE_BITS);
    return true;
  }

  /// Count up what a completed task releases.
  MS_DEVICE void released(u32 task, u32 iteration, u32 begin, u32 count) {
    for (u32 i = lane_id(); i < (count + 31) / 32 * 32; i += 32) {
      bool active = i < count;
      Release r = {0, 0, 0, 0};
      u32 after = 0;
      if (active) {
        uint4 words = __ldg(reinterpret_cast<const uint4*>(engine.releases + begin + i));
        r = {words.x, words.y, words.z, words.w};
        after = count_up(r.dep) + 1 - iteration * r.wanted;
      }
      u32 satisfied = __ballot_sync(FULL_WARP, active && after == r.wanted);
      if (satisfied) fence_device();
      hooks.release(active, task, iteration, r.dep, after);
      for (; satisfied; satisfied &= satisfied - 1) {
        u32 lane = __ffs(satisfied) - 1;
        u32 dep = __shfl_sync(FULL_WARP, r.dep, lane);
        u32 first = __shfl_sync(FULL_WARP, r.first, lane), waiters = __shfl_sync(FULL_WARP, r.waiters, lane);
        u32 late = 0;
        if (engine.faulty) late = postponed_ns(dep, iteration);
        if (!late || !hold(dep | IS_DEP, iteration, task, late)) announce(dep, first, waiters, iteration, task);
      }
    }
  }

  /// Only the end of the iteration is counted by all ranks.
  MS_DEVICE static u32 count_up(u32 dep) {
    if (engine.ranks == 1 || dep != engine.end_dep) return atomicAdd(engine.counters + dep, 1);
    fence_system();
    return add_system(engine.ended, 1);
  }

  /// A dependency takes effect: the tasks that waited on it are ready, and under the dynamic schedule assigned.
  MS_DEVICE void announce(u32 dep, u32 first, u32 waiters, u32 iteration, u32 releaser) {
    if (engine.faulty && lane_id() == 0) store_device(engine.satisfied + dep, iteration + 1);
    if (waiters == 0) return;
    u32 ready = device_time_low();
    const bool tells = lane_id() == 0 && !(waiters & RECEIVES);
    waiters &= ~RECEIVES;
    if (!engine.dynamic) {
      hooks.ready(tells, ready, first, waiters, iteration, releaser);
      return;
    }
    // Each group's tickets are drawn before the group before it is told of: the hooks then cost no task any time.
    const bool wide = 2 * waiters >= engine.rank_blocks;
    Pushed before = {0, 0, 0, 0};
    for (u32 i = lane_id(); i < (waiters + 31) / 32 * 32; i += 32) {
      const bool late = starved(i < waiters, first + i, iteration, ready);  // all lanes, since they vote in it
      Pushed now = draw(i < waiters && !late, first + i, iteration, wide);
      if (i == lane_id())
        hooks.ready(tells, ready, first, waiters, iteration, releaser);
      else
        tell(before, iteration);
      enter(now, iteration, ready);
      before = now;
    }
    tell(before, iteration);
  }

  /// Whether a fault control holds this lane's task back, to be pushed later. All lanes call together.
  MS_DEVICE bool starved(bool active, u32 task, u32 iteration, u32 ready) {
    if (!engine.faulty) return false;
    u32 late = active ? starved_ns(task, iteration) : 0;
    bool held_back = false;
    for (u32 which = __ballot_sync(FULL_WARP, late != 0); which; which &= which - 1) {
      u32 lane = __ffs(which) - 1;
      bool put_by = hold(__shfl_sync(FULL_WARP, task, lane), iteration, ready, __shfl_sync(FULL_WARP, late, lane));
      if (lane_id() == lane) held_back = put_by;
    }
    return held_back;
  }

  /// The next queue in turn; for a few tasks, the less loaded of that and one drawn. (Looking costs as long as pushing,
  /// and where most workers get a task anyway it finds nothing.)
  MS_DEVICE u32 choose(u32 task, u32 iteration, bool wide) const {
    u32 draw = mix(task, iteration);
    if (engine.faulty) {
      const u32* crowd = engine.fault_crowd + 2 * fault_phase(iteration);
      u32 worker = crowd[0], share = crowd[1];
      if (worker - base < engine.rank_blocks && draw < share && depth(worker) < engine.capacity / 2) return worker;
    }
    u32 a = base + (cursor + lane_id()) % engine.rank_blocks, b = base + mix(draw, cursor) % engine.rank_blocks;
    if (wide) return a;
    return depth(b) < depth(a) ? b : a;
  }

  MS_DEVICE static u32 depth(u32 worker) {
    const TaskQueue& q = engine.queues[worker];
    return load_device(&q.pushed.word) - load_device(&q.popped.word);
  }

  /// A lane's task on its way into a queue. task 0: none.
  struct Pushed {
    u32 task, worker, ticket, popped;
  };

  /// A ticket for a place in a queue. A queue has room for every task of an iteration, so the place is always free.
  MS_DEVICE Pushed draw(bool active, u32 task, u32 iteration, bool wide) {
    Pushed p = {0, 0, 0, 0};
    if (active) {
      u32 worker = choose(task, iteration, wide);
      TaskQueue& q = engine.queues[worker];
      p = {task, worker, atomicAdd(&q.pushed.word, 1), 0};
      if (hooks.wants(MS_HOOK_ASSIGN) || hooks.wants(MS_HOOK_PRESSURE)) p.popped = load_device(&q.popped.word);
    }
    cursor += __popc(__ballot_sync(FULL_WARP, active));
    return p;
  }

  /// Whoever satisfied the dependency has fenced the device before, in all lanes.
  MS_DEVICE void enter(const Pushed& p, u32 iteration, u32 ready) {
    if (p.task == 0) return;
    uint4* entries = engine.entries + static_cast<u64>(p.worker) * engine.capacity;
    store_device_16(entries + (p.ticket & (engine.capacity - 1)), p.task, iteration, ready, p.ticket + 1);
  }

  MS_DEVICE void tell(const Pushed& p, u32 iteration) {
    u32 t = device_time_low(), depth = p.ticket + 1 - p.popped;
    hooks.assign(p.task != 0, t, p.task, iteration, p.worker, depth, engine.capacity);
    hooks.pressure(p.task && depth == engine.pressure, t, p.task, depth, engine.pressure, iteration);
  }

  // --- fault controls ---------------------------------------------------------------------------------------

  /// False when there was no place to put it by: then its time has passed here, which held everything else up too.
  MS_DEVICE bool hold(u32 what, u32 iteration, u32 word, u32 ns) {
    u32 free = __ballot_sync(FULL_WARP, held == 0);
    if (free == 0) {
      pause_ns(ns, patience.deadline);
      return false;
    }
    if (lane_id() == __ffs(free) - 1) {
      held = what, held_iteration = iteration, held_word = word;
      held_until = device_time() + ns;
    }
    __syncwarp();
    return true;
  }

  MS_DEVICE void push(u32 task, u32 iteration, u32 ready) {
    Pushed p = draw(lane_id() == 0, task, iteration, false);
    enter(p, iteration, ready);
    tell(p, iteration);
  }

  MS_DEVICE bool let_go() {
    u32 due = __ballot_sync(FULL_WARP, held != 0 && device_time() >= held_until);
    for (u32 left = due; left; left &= left - 1) {
      u32 lane = __ffs(left) - 1;
      u32 what = __shfl_sync(FULL_WARP, held, lane), iteration = __shfl_sync(FULL_WARP, held_iteration, lane);
      u32 word = __shfl_sync(FULL_WARP, held_word, lane);
      if (lane_id() == lane) held = 0;
      __syncwarp();
      effect(what, iteration, word);
    }
    return due != 0;
  }

  /// word: of a dependency the task that satisfied it, of a task when it became ready.
  MS_DEVICE void effect(u32 what, u32 iteration, u32 word) {
    if (what & IS_DEP)
      announce(what & ~IS_DEP, engine.deps[what & ~IS_DEP].first, engine.deps[what & ~IS_DEP].waiters, iteration, word);
    else
      push(what, iteration, word);
  }

  // --- the first block of rank 0 begins and ends the iterations, those of the others follow ------------------

  MS_DEVICE void step() {
    if (begun) {
      u32 done = load_system(engine.ended) - (begun - 1) * engine.deps[engine.end_dep].wanted;
      if (!__shfl_sync(FULL_WARP, done == engine.deps[engine.end_dep].wanted, 0)) return;
      end_step();
    }
    u32 stop = __shfl_sync(FULL_WARP, load_device(&segment.orders->stop.word), 0);
    if (begun == engine.steps || stop) {
      ended = true;
      for (u32 rank = lane_id(); rank < engine.ranks; rank += 32)
        set_once_system(&engine.shards[rank].run->leave.word, begun == engine.steps ? DONE : STOPPED);
      __syncwarp();
      return;
    }
    if (begun == 0 && warp_load_host(segment.host + HOST_GO) == 0) return;
    fence_ranks();
    u32 iteration = begun++;
    step_began = warp_time();
    hooks.step(iteration, step_began, MS_STEP_BEGINS);
    u32 begin = engine.event_ptr[iteration], end = engine.event_ptr[iteration + 1];
    for (u32 base = begin; base < end; base += 32) {
      bool active = base + lane_id() < end;
      uint4 e = active ? engine.event[base + lane_id()] : make_uint4(0, 0, 0, 0);
      hooks.request(active, iteration, e.x, e.y, e.z);
    }
    for (u32 rank = lane_id(); rank < engine.ranks; rank += 32)
      store_system(&engine.shards[rank].run->begun.word, begun);
    __syncwarp();
    if (lane_id() == 0) {
      store_host(engine.step_begun + iteration, step_began);
      fence_system();
      store_host(segment.host + HOST_STEP, begun);
    }
    begin_rank(iteration);
  }

  /// Another rank's iteration begins when word has come.
  MS_DEVICE void follow() {
    if (__shfl_sync(FULL_WARP, load_system(&engine.run->begun.word), 0) == begun) return;
    fence_ranks();
    begin_rank(begun++);
  }

  /// The tasks that wait for nothing but the iteration's begin.
  MS_DEVICE void begin_rank(u32 iteration) {
    const u32 first = engine.deps[0].first + base / engine.rank_blocks * engine.rank_tasks;
    announce(0, first, engine.deps[0].waiters, iteration, 0);
  }

  MS_DEVICE void end_step() {
    if (begun && step_began) hooks.step(begun - 1, step_began, MS_STEP_ENDS);
    step_began = 0;
  }
};

}  // namespace ms

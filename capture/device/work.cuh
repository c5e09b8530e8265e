// The compute worker's side of scheduling: where it gets its next task under either schedule, and how it hands a
// completed one to the block's scheduler warp. scheduler.cuh says how the two are ordered.
#pragma once
#include "arrival.cuh"

namespace ms {

constexpr u32 MAIL_SLOTS = 8;
constexpr u32 POLL_NS = 20;        // between two looks at what others write: their atomics on that line come first
constexpr u32 RELEASE_BITS = 24;   // of a mail's word for the place of its releases; the rest say how many
constexpr u32 POLLS_PER_LOOK = 32;  // polls between two looks at the clock and at `leave`

/// Between a block's compute worker and its scheduler warp: completed tasks, stamped like a hook's records.
struct Mailbox {
  uint4 slot[MAIL_SLOTS];  // task, iteration, its releases, count from 1
  u32 taken;               // by the scheduler
};

/// Patience of a polling loop: it ends at the device-side deadline, or when anyone has ended the run.
struct Patience {
  u64 deadline;
  u32 polls;

  MS_DEVICE bool out() {
    if (++polls % POLLS_PER_LOOK) return false;
    if (load_system(&engine.run->leave.word) != RUNNING) return true;
    if (device_time() < deadline) return false;
    set_once_system(&engine.run->leave.word, DEADLINE);
    return true;
  }
};

/// What the compute worker runs next.
struct Work {
  u32 task, iteration, ready;  // task 0: leave; ready: when it became so, low half, 0 not known
};

struct Source {
  Patience patience;
  u32 popped;         // dynamic: entries taken
  u32 at, iteration;  // static: place in the list; iterations that it was gone through

  MS_DEVICE void open(u64 deadline) {
    patience = {deadline, 0};
    popped = 0, iteration = ~0u;
    at = engine.dynamic ? 0 : engine.list_ptr[compute_worker() + 1];
    if (engine.dynamic) iteration = 0;
  }

  MS_DEVICE Work next(ComputeHooks& hooks) {
    Work work = engine.dynamic ? pop(hooks) : advance(hooks);
    if (engine.ranks > 1 && work.task && receives(engine.tasks[work.task].op)) await_peers(hooks, work);
    return work;
  }

 private:
  MS_DEVICE Work pop(ComputeHooks& hooks) {
    TaskQueue& queue = engine.queues[blockIdx.x];
    const uint4* entry =
        engine.entries + static_cast<u64>(blockIdx.x) * engine.capacity + (popped & (engine.capacity - 1));
    u32 stamp = popped + 1, pushed = 0;
    uint4 e = load_device_16(entry);
    if (e.w != stamp) {
      hooks.wait(0, iteration, 0, 0, 1);
      do {
        if (patience.out()) return {0, 0, 0};
        hooks.refresh();
        __nanosleep(POLL_NS);
        e = load_device_16(entry);
      } while (e.w != stamp);
      if (hooks.wants(MS_HOOK_PRESSURE)) pushed = load_device(&queue.pushed.word);
      acquire(queue);
      hooks.resume(0, iteration, 0);
    } else {
      if (hooks.wants(MS_HOOK_PRESSURE)) pushed = load_device(&queue.pushed.word);
      acquire(queue);
    }
    iteration = e.y;
    if (hooks.wants(MS_HOOK_PRESSURE)) {
      const u32 depth = pushed - popped;  // falls by one at a time, so that below the threshold is one below it
      if (depth + 1 == engine.pressure) hooks.pressure(e.x, depth, engine.pressure, iteration);
    }
    return {e.x, e.y, e.z};
  }

  /// Before anything is told: a fence waits for every store that is under way, and those to host memory take long.
  MS_DEVICE void acquire(TaskQueue& queue) {
    fence_device();
    store_device(&queue.popped.word, ++popped);
  }

  MS_DEVICE Work advance(ComputeHooks& hooks) {
    const u32 begin = engine.list_ptr[compute_worker()], end = engine.list_ptr[compute_worker() + 1];
    while (at == end) {  // the list is done: on with it when the next iteration has begun
      u32 done = iteration++;
      u32 wanted = engine.deps[engine.end_dep].wanted;
      const u32* word = &engine.run->begun.word;
      if (load_system(word) <= iteration) {
        if (iteration == 0)
          hooks.wait(0, 0, 0, 0, 1);
        else {
          // It is over when the next iteration begins, and before that nobody who waits for it sees the last release.
          const u32 seen = load_system(engine.ended) - done * wanted;
          hooks.wait(0, done, engine.end_dep, min(seen, wanted - 1), wanted);
        }
        if (!until<true>(hooks, word, iteration, 1)) return {0, 0, 0};
        hooks.resume(0, iteration ? done : 0, iteration ? engine.end_dep : 0);
      } else {
        fence_ranks();
      }
      at = begin;
    }
    const u32 task = engine.list_task[at++], dep = engine.tasks[task].dep;
    if (dep) {
      // Counters run on over iterations; what is reported is relative to this one. A fault control may postpone what a
      // counter means, so then its announcement is waited for.
      const u32 wanted = engine.deps[dep].wanted, before = iteration * wanted;
      const u32* word = engine.faulty ? engine.satisfied + dep : engine.counters + dep;
      const u32 base = engine.faulty ? iteration : before, goal = engine.faulty ? 1 : wanted;
      u32 seen = load_device(word) - base;
      if (static_cast<int>(seen - goal) < 0) {
        // Of a postponed dependency all releases have been counted, but nobody who waits can see the last.
        u32 counted = engine.faulty ? min(load_device(engine.counters + dep) - before, wanted - 1) : seen;
        hooks.wait(task, iteration, dep, counted, wanted);
        if (!until<false>(hooks, word, base, goal)) return {0, 0, 0};
        hooks.resume(task, iteration, dep);
      } else {
        fence_device();
      }
    }
    if (engine.faulty) {
      u32 starve = starved_ns(task, iteration);
      if (starve) pause_ns(starve, patience.deadline);
    }
    return {task, iteration, 0};
  }

  /// A receive waits for its peers. If the run ends meanwhile, there is no work any more.
  MS_DEVICE void await_peers(ComputeHooks& hooks, Work& work) {
    const Task& task = engine.tasks[work.task];
    const Arrival arrival(shard(), task, work.iteration);
    const u32 wanted = engine.ranks - 1, seen = arrival.seen();
    if (seen < wanted) {
      hooks.wait(work.task, work.iteration, task.n0, seen, wanted, true);
      do {
        if (patience.out()) {
          work = {0, 0, 0};
          return;
        }
        hooks.refresh();
        __nanosleep(POLL_NS);
      } while (arrival.seen() < wanted);
      fence_system();
      hooks.resume(work.task, work.iteration, task.n0, true);
    } else {
      fence_system();
    }
    // The task before a receive is its round's send, and the peer's is as many tasks away as the ranks are apart.
    const u32 sender = work.task - 1 + (arrival.last() - arrival.rank) * engine.rank_tasks;
    work.ready = hooks.receive(work.task, work.iteration, sender, seen < wanted);
  }

  /// Poll until *word - base has reached the goal, and fence. False when the run has ended instead. RANKS: the word may
  /// be another rank's doing.
  template <bool RANKS>
  MS_DEVICE bool until(ComputeHooks& hooks, const u32* word, u32 base, u32 goal) {
    do {
      if (patience.out()) return false;
      hooks.refresh();
      __nanosleep(POLL_NS);
    } while (static_cast<int>((RANKS ? load_system(word) : load_device(word)) - base - goal) < 0);
    if (RANKS)
      fence_ranks();
    else
      fence_device();
    return true;
  }
};

/// Hand a completed task to the block's scheduler warp. False when the run has ended meanwhile.
struct Outbox {
  u32 slots, taken_at;
  u32 sent, taken;

  MS_DEVICE void open(Mailbox& box) {
    slots = shared_address(box.slot);
    taken_at = shared_address(&box.taken);
    sent = taken = 0;
  }
  MS_DEVICE bool send(u32 number, const Task& task, u32 iteration, Patience& patience) {
    while (sent - taken >= MAIL_SLOTS) {
      taken = load_shared(taken_at);
      if (sent - taken >= MAIL_SLOTS && patience.out()) return false;
    }
    fence_block();
    u32 place = task.release | task.releases << RELEASE_BITS;
    store_shared_16(slots + (sent & (MAIL_SLOTS - 1)) * 16, number, iteration, place, sent + 1);
    sent++;
    return true;
  }
};

}  // namespace ms

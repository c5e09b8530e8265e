// Firing hooks, in four builds of one interface: compiled out, through the queues of queue.cuh in shared or in device
// memory, and as a compiler-native profiler would. A block has two workers: the compute worker (thread 0 of the compute
// threads) and the scheduler worker (a warp, which fires for up to 32 things at once).
#pragma once
#include "segment.cuh"
#include "queue.cuh"

namespace ms {

constexpr u32 COMPUTE_SLOTS = MS_HOOKS == MS_HOOKS_DEVICE ? 512 : 128;
constexpr u32 SCHEDULER_SLOTS = MS_HOOKS == MS_HOOKS_DEVICE ? 2048 : 512;

MS_DEVICE u32 compute_worker() { return blockIdx.x; }
MS_DEVICE u32 scheduler_worker() { return segment.blocks + blockIdx.x; }

#if MS_MONITORED

/// The queues of a block's workers.
struct HookQueues {
  Queue<COMPUTE_SLOTS> compute;
  Queue<SCHEDULER_SLOTS> scheduler;
  uint2 zeros;  // what threads that fire nothing poll
};

#if MS_HOOKS == MS_HOOKS_QUEUE
typedef SharedSpace HookSpace;

/// The part of a block's shared memory that the hooks need.
struct HookShared : HookQueues {
  MS_DEVICE HookQueues& queues() { return *this; }
};
#else
typedef DeviceSpace HookSpace;

struct HookShared {
  MS_DEVICE HookQueues& queues() { return static_cast<HookQueues*>(segment.hook_queues)[blockIdx.x]; }
};
#endif

/// What a wait is for: the task's dependency (or work, without a task), the iteration's end, the arrival of what peers
/// send to a task that receives, or FOR_THIS + d: dependency d. Those beyond MOST_AWAITED are told as the task's.
enum Awaited : u32 { FOR_DEP = 0, FOR_END = 1, FOR_ARRIVAL = 2, FOR_THIS = 3 };
constexpr u32 MOST_AWAITED = 0xffff - FOR_THIS;

/// The compute worker's hooks. refresh, start, done and complete may be called by all threads of the block together:
/// its one thread fires, and no warp diverges for it.
struct ComputeHooks {
  Producer<HookSpace, COMPUTE_SLOTS> out;
  u64 waited;
  u32 ready_since, finished;
  bool armed, begun;  // a task's record is wanted; its first half has been written

  /// thread: of the block's; thread 0 is the worker.
  MS_DEVICE void open(HookShared& shared, u32 thread = 0) {
    HookQueues& queues = shared.queues();
    out.open(queues.compute, &queues.zeros, thread == 0, thread == 0);
    waited = 0;
    ready_since = finished = 0;
    armed = begun = false;
  }
  MS_DEVICE void refresh() { out.refresh(); }
  MS_DEVICE bool wants(u32 hook) const { return out.wants(hook); }

  /// ready_at: when its last dependency was satisfied (the time's low half), 0 not known.
  MS_DEVICE void start(u32 task, u32 ready_at) {
    ready_since = ready_at;
    armed = out.mask & (1u << MS_HOOK_START | 1u << MS_HOOK_COMPLETE);
    begun = out.begin(armed, device_time(), task);
  }
  /// The work is done: its time. `complete` tells of it when the scheduler has the task.
  MS_DEVICE void done() {
    if (armed) finished = device_time_low();
  }
  MS_DEVICE void complete(u32 iteration) {
    static_assert(WANTS_START == 1u << 29 && WANTS_COMPLETE == 1u << 30 && MS_HOOK_COMPLETE == MS_HOOK_START + 1);
    if (!armed) return;
    u32 wanted = out.mask << (29 - MS_HOOK_START) & (WANTS_START | WANTS_COMPLETE);
    if (begun)
      out.end(finished, ready_since, wanted, iteration);
    else
      out.miss();
  }
  /// task 0: the worker is idle, or (dep not 0) done with the iteration whose end it waits for.
  MS_DEVICE void wait(u32 task, u32 iteration, u32 dep, u32 seen, u32 wanted, bool arrival = false) {
    waited = device_time();
    out.waits(waited, task, task ? iteration : 0, dep, seen, wanted);
    if (out.wants(MS_HOOK_WAIT))
      out.push(MS_HOOK_WAIT, waited, task, iteration, seen, wanted, 0, awaited(task, dep, arrival));
  }
  MS_DEVICE void resume(u32 task, u32 iteration, u32 dep, bool arrival = false) {
    out.goes_on();
    if (out.wants(MS_HOOK_RESUME))
      out.push(MS_HOOK_RESUME, device_time_low(), task, iteration, waited, waited >> 32, 0,
               awaited(task, dep, arrival));
  }
  /// A task that receives has its peers' data, so that it is ready: when, low half. sender: the task that sent last;
  /// after_wait: it has been waited for.
  MS_DEVICE u32 receive(u32 task, u32 iteration, u32 sender, bool after_wait) {
    const u64 t = device_time(), since = after_wait ? waited : t;
    if (out.wants(MS_HOOK_READY)) out.push(MS_HOOK_READY, t, task, iteration, sender, 1, 0, FOR_ARRIVAL);
    if (out.wants(MS_HOOK_RECEIVE)) out.push(MS_HOOK_RECEIVE, t, task, iteration, since, since >> 32, 0, 0);
    return t;
  }
  /// After `complete`, whose record is under way until then: the task has sent.
  MS_DEVICE void send(u32 task, u32 iteration) {
    if (out.wants(MS_HOOK_SEND))
      out.push(MS_HOOK_SEND, armed ? finished : device_time_low(), task, iteration, 0, 0, 0, 0);
  }
  MS_DEVICE void pressure(u32 task, u32 depth, u32 threshold, u32 iteration) {
    if (out.wants(MS_HOOK_PRESSURE))
      out.push(MS_HOOK_PRESSURE, device_time_low(), task, iteration, depth, threshold, MS_PRESSURE_FALLS, 0);
  }
  // Of kernels without scheduler warps, whose compute workers count up dependencies and begin iterations themselves.

  /// after: releases counted in this iteration, with this one.
  MS_DEVICE void release(u32 task, u32 iteration, u32 dep, u32 after) {
    if (out.wants(MS_HOOK_RELEASE)) out.push(MS_HOOK_RELEASE, device_time_low(), task, iteration, dep, after, 0, 0);
  }
  /// `count` consecutive tasks of one class may start, since `releaser` (0: the iteration's begin) satisfied what they
  /// waited for.
  MS_DEVICE void ready(u32 first, u32 count, u32 iteration, u32 releaser) {
    const u32 range = count > 1 ? MS_FLAG_RANGE : 0;
    if (out.wants(MS_HOOK_READY))
      out.push(MS_HOOK_READY, device_time_low(), first, iteration, releaser, count, range, 0);
  }
  /// By one worker of the kernel. flags: MS_STEP_BEGINS or MS_STEP_ENDS; began: the time of the former.
  MS_DEVICE void step(u32 iteration, u64 began, u32 flags) {
    if (flags & MS_STEP_BEGINS) store_host(segment.host + HOST_STEP, iteration + 1);
    if (out.wants(MS_HOOK_STEP))
      out.push(MS_HOOK_STEP, device_time_low(), 0, iteration, began, began >> 32, flags, 0);
  }
  MS_DEVICE void close() {
    HookSpace::fence();
    HookSpace::store(out.words + offsetof(QueueWords, left), 1);
  }

 private:
  MS_DEVICE static u32 awaited(u32 task, u32 dep, bool arrival) {
    if (arrival || dep == 0) return arrival ? FOR_ARRIVAL : FOR_DEP;
    return dep <= MOST_AWAITED ? FOR_THIS + dep : task ? FOR_DEP : FOR_END;
  }
};

/// All 32 lanes call together.
struct SchedulerHooks {
  Producer<HookSpace, SCHEDULER_SLOTS> out;

  MS_DEVICE void open(HookShared& shared) {
    HookQueues& queues = shared.queues();
    out.open(queues.scheduler, &queues.zeros, true, lane_id() == 0);
  }
  MS_DEVICE void refresh() {  // the same in all lanes
    out.fetched.x = __shfl_sync(FULL_WARP, out.fetched.x, 0);
    out.fetched.y = __shfl_sync(FULL_WARP, out.fetched.y, 0);
    out.refresh();
  }

  MS_DEVICE bool wants(u32 hook) const { return out.wants(hook); }

  MS_DEVICE void fire(bool active, u32 hook, u32 t, u32 task, u32 iteration, u32 arg0, u32 arg1, u32 flags, u32 arg2) {
    if (out.wants(hook)) out.push_warp(active, hook, t, task, iteration, arg0, arg1, flags, arg2);
  }
  MS_DEVICE void release(bool active, u32 task, u32 iteration, u32 dep, u32 after) {
    fire(active, MS_HOOK_RELEASE, device_time_low(), task, iteration, dep, after, 0, 0);
  }
  /// One record for `count` consecutive tasks of one class.
  MS_DEVICE void ready(bool active, u32 t, u32 first, u32 count, u32 iteration, u32 releaser) {
    fire(active, MS_HOOK_READY, t, first, iteration, releaser, count, count > 1 ? MS_FLAG_RANGE : 0, 0);
  }
  MS_DEVICE void assign(bool active, u32 t, u32 task, u32 iteration, u32 worker, u32 depth, u32 capacity) {
    fire(active, MS_HOOK_ASSIGN, t, task, iteration, depth, capacity, 0, worker);
  }
  MS_DEVICE void pressure(bool active, u32 t, u32 task, u32 depth, u32 threshold, u32 iteration) {
    fire(active, MS_HOOK_PRESSURE, t, task, iteration, depth, threshold, MS_PRESSURE_RISES, 0);
  }
  MS_DEVICE void step(u32 iteration, u64 began, u32 flags) {
    fire(lane_id() == 0, MS_HOOK_STEP, device_time_low(), 0, iteration, began, began >> 32, flags, 0);
  }
  MS_DEVICE void request(bool active, u32 iteration, u32 slot, u32 request, u32 state) {
    fire(active, MS_HOOK_REQUEST, device_time_low(), 0, iteration, slot, request, 0, state);
  }
  MS_DEVICE void close() {
    HookSpace::fence();
    if (lane_id() == 0) HookSpace::store(out.words + offsetof(QueueWords, left), 1);
  }
};

#else

/// What a compiler-native profiler writes (FlashInfer's and MPK's way): a tag and the timer's low half, 8 bytes to the
/// worker's own region of device memory, wrapping; nobody drains it. Compiled to nothing in the third build.
struct NativeLog {
  uint2* region;
  u32 count;
  bool mine;

  MS_DEVICE void open(u32 worker, bool writes = true) {
    count = 0, mine = writes;
    if (MS_HOOKS == MS_HOOKS_NATIVE) region = segment.native + static_cast<u64>(worker) * segment.native_slots;
  }
  MS_DEVICE void write(u32 hook, u32 task) {
    if (MS_HOOKS == MS_HOOKS_NATIVE && mine) {
      region[count & (segment.native_slots - 1)] = make_uint2(task << 4 | hook, device_time_low());
      count++;
    }
  }
  MS_DEVICE void write_warp(bool active, u32 hook, u32 task) {
    if (MS_HOOKS == MS_HOOKS_NATIVE) {
      u32 who = __ballot_sync(FULL_WARP, active), at = count + __popc(who & lanes_below());
      if (active) region[at & (segment.native_slots - 1)] = make_uint2(task << 4 | hook, device_time_low());
      count += __popc(who);
    }
  }
};

struct HookShared {};

struct ComputeHooks {
  NativeLog log;

  MS_DEVICE void open(HookShared&, u32 thread = 0) { log.open(compute_worker(), thread == 0); }
  MS_DEVICE void refresh() {}
  MS_DEVICE bool wants(u32) const { return false; }  // asked before work that is done for a hook alone
  MS_DEVICE void start(u32 task, u32) { log.write(MS_HOOK_START, task); }
  MS_DEVICE void done() { log.write(MS_HOOK_COMPLETE, 0); }
  MS_DEVICE void complete(u32) {}
  MS_DEVICE void wait(u32 task, u32, u32, u32, u32, bool = false) { log.write(MS_HOOK_WAIT, task); }
  MS_DEVICE void resume(u32 task, u32, u32, bool = false) { log.write(MS_HOOK_RESUME, task); }
  MS_DEVICE u32 receive(u32 task, u32, u32, bool) {
    log.write(MS_HOOK_RECEIVE, task);
    return 0;
  }
  MS_DEVICE void send(u32 task, u32) { log.write(MS_HOOK_SEND, task); }
  MS_DEVICE void pressure(u32, u32, u32, u32) { log.write(MS_HOOK_PRESSURE, 0); }
  MS_DEVICE void release(u32 task, u32, u32, u32) { log.write(MS_HOOK_RELEASE, task); }
  MS_DEVICE void ready(u32 first, u32, u32, u32) { log.write(MS_HOOK_READY, first); }
  MS_DEVICE void step(u32, u64, u32) { log.write(MS_HOOK_STEP, 0); }
  MS_DEVICE void close() {}
};

struct SchedulerHooks {
  NativeLog log;

  MS_DEVICE void open(HookShared&) { log.open(scheduler_worker()); }
  MS_DEVICE void refresh() {}
  MS_DEVICE bool wants(u32) const { return false; }  // asked before work that is done for a hook alone
  MS_DEVICE void release(bool active, u32 task, u32, u32, u32) { log.write_warp(active, MS_HOOK_RELEASE, task); }
  MS_DEVICE void ready(bool active, u32, u32 first, u32, u32, u32) { log.write_warp(active, MS_HOOK_READY, first); }
  MS_DEVICE void assign(bool active, u32, u32 task, u32, u32, u32, u32) {
    log.write_warp(active, MS_HOOK_ASSIGN, task);
  }
  MS_DEVICE void pressure(bool active, u32, u32, u32, u32, u32) { log.write_warp(active, MS_HOOK_PRESSURE, 0); }
  MS_DEVICE void step(u32, u64, u32) { log.write_warp(lane_id() == 0, MS_HOOK_STEP, 0); }
  MS_DEVICE void request(bool active, u32, u32, u32, u32) { log.write_warp(active, MS_HOOK_REQUEST, 0); }
  MS_DEVICE void close() {}
};

#endif

}  // namespace ms

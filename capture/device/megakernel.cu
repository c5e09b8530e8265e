// The decode step of a dense transformer as one persistent kernel: a block per multiprocessor, many iterations per
// launch. Threads 0 to 127 compute (thread 0 is the compute worker), the next warp schedules, the last one monitors.
#include "monitor.cuh"
#include "operators.cuh"
#include "scheduler.cuh"

namespace ms {

struct BlockShared {
  HookShared hooks;
#if MS_HOOKS == MS_HOOKS_QUEUE
  MonitorShared monitor;
#endif
  Mailbox mailbox;
  Work work;
};

/// A fault control: the task takes `factor` times as long.
MS_DEVICE void stretch(u32 task_class, u32 iteration, u64 began, u64 deadline) {
  float factor = engine.fault_factor[fault_phase(iteration) * engine.n_classes + task_class];
  if (factor > 1.0f) pause_ns(static_cast<u64>((device_time() - began) * (factor - 1.0f)), deadline);
}

MS_DEVICE void compute_role(BlockShared& shared, u64 deadline) {
  ComputeHooks hooks;
  Source source;
  Outbox outbox;
  bool worker = threadIdx.x == 0, running = true;
  hooks.open(shared.hooks, threadIdx.x);
  if (worker) {
    source.open(deadline);
    outbox.open(shared.mailbox);
  }
  for (;;) {
    hooks.refresh();
    if (worker) {
      shared.work = running ? source.next(hooks) : Work{0, 0, 0};
    }
    together();
    Work work = shared.work;
    if (work.task == 0) break;
    const Task& task = engine.tasks[work.task];
    u64 began = 0;
    hooks.start(work.task, work.ready);
    if (worker && engine.faulty) began = device_time();
    execute(task, work.iteration);
    together();
    if (worker) {
      if (engine.faulty) stretch(task.task_class, work.iteration, began, deadline);
      hooks.done();
      running = outbox.send(work.task, task, work.iteration, source.patience);
      hooks.complete(work.iteration);  // nobody waits for it any more
    }
  }
  if (worker) hooks.close();
}

}  // namespace ms

extern "C" __global__ void __launch_bounds__(ms::BLOCK_THREADS, 1) megakernel() {
  using namespace ms;
  BlockShared& shared = *reinterpret_cast<BlockShared*>(block_memory() + engine.operator_bytes);
  u32* words = reinterpret_cast<u32*>(&shared);
  for (u32 i = threadIdx.x; i < sizeof(BlockShared) / 4; i += BLOCK_THREADS) words[i] = 0;
  u64 deadline = device_time() + segment.limit_ns;
  __syncthreads();  // the last one: from here on the roles part
#if MS_HOOKS == MS_HOOKS_QUEUE
  const u32 mask = load_device(&segment.orders->control.word) & CONTROL_MASK;
  if (threadIdx.x == 0) shared.hooks.compute.words.mask = shared.hooks.scheduler.words.mask = mask;
  __syncthreads();
#endif
  if (threadIdx.x < COMPUTE_THREADS) {
    compute_role(shared, deadline);
  } else if (threadIdx.x < COMPUTE_THREADS + 32) {
    Scheduler scheduler;
    scheduler.open(shared.hooks, shared.mailbox, deadline);
    scheduler.run();
  } else {
#if MS_HOOKS == MS_HOOKS_QUEUE
    Monitor monitor(shared.monitor, blockIdx.x, deadline);
    monitor.watch(shared.hooks.compute, true, compute_worker(), mask);
    monitor.watch(shared.hooks.scheduler, false, scheduler_worker(), mask);
    monitor.run();
#endif
  }
}

#if MS_HOOKS == MS_HOOKS_DEVICE
/// The monitors, launched before the megakernel: one warp a block, for every gridDim-th worker. A block of theirs fits
/// beside one of the megakernel's.
extern "C" __global__ void __launch_bounds__(32, 1) monitors() {
  using namespace ms;
  MS_SHARED(MonitorShared, shared);
  u32* words = reinterpret_cast<u32*>(&shared);
  for (u32 i = threadIdx.x; i < sizeof(shared) / 4; i += 32) words[i] = 0;
  __syncwarp();
  const u32 mask = load_device(&segment.orders->control.word) & CONTROL_MASK;
  Monitor monitor(shared, blockIdx.x, device_time() + segment.limit_ns);
#pragma unroll 1
  for (u32 worker = blockIdx.x; worker < 2 * engine.blocks; worker += gridDim.x) {
    const bool compute = worker < engine.blocks;
    HookQueues& queues = static_cast<HookQueues*>(segment.hook_queues)[compute ? worker : worker - engine.blocks];
    if (compute)
      monitor.watch(queues.compute, true, worker, mask);
    else
      monitor.watch(queues.scheduler, false, worker, mask);
  }
  monitor.run();
}
#endif

/// Sizes in bytes that the host allocates by; `struct Sizes` of capture/engines/cuda/monitors.py, in its order.
extern "C" {
__constant__ unsigned sizes[] = {
    sizeof(ms::BlockShared),  // of a block's shared memory, beside the operators' own, which comes first
#if MS_MONITORED
    sizeof(ms::HookQueues), sizeof(ms::Programs),     sizeof(ms::Running), sizeof(ms::Book),
    sizeof(ms::VmDeep),     sizeof(ms::MonitorShared), ms::EXPORT_WORDS * 8, ms::PLACES, ms::WATCHED,
#endif
};
}

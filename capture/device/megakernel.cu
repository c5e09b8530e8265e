// The decode step of a transformer, dense or with a mixture of experts, as one persistent kernel: a block per
// multiprocessor, many iterations per launch. Tensor-parallel ranks are groups of blocks. Threads 0 to 127 compute
// (thread 0 is the compute worker), the next warp schedules, the last one monitors.
#include "megascope.cuh"
#include "operators.cuh"
#include "scheduler.cuh"

namespace ms {

struct BlockShared {
  Scope scope;
  Mailbox mailbox;
  Work work;
};

MS_DEVICE void compute_role(BlockShared& shared, u64 deadline) {
  ComputeHooks hooks;
  Source source;
  Outbox outbox;
  bool worker = threadIdx.x == 0, running = true;
  hooks.open(shared.scope.hooks, threadIdx.x);
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
      const bool sent = engine.ranks > 1 && sends(task.op);
      if (sent) signal(task, work.iteration);
      running = outbox.send(work.task, task, work.iteration, source.patience);
      hooks.complete(work.iteration);  // nobody waits for it any more
      if (sent) hooks.send(work.task, work.iteration);
    }
  }
  if (worker) hooks.close();
}

}  // namespace ms

extern "C" __global__ void __launch_bounds__(ms::BLOCK_THREADS, 1) megakernel() {
  using namespace ms;
  BlockShared& shared = *reinterpret_cast<BlockShared*>(block_memory() + engine.operator_bytes);
  const u64 deadline = device_time() + segment.limit_ns;
  if (threadIdx.x == 0) shared.mailbox = {};
  copy_shard();
  shared.scope.open();
  __syncthreads();  // the last one: from here on the roles part
  if (threadIdx.x < COMPUTE_THREADS) {
    compute_role(shared, deadline);
  } else if (threadIdx.x < COMPUTE_THREADS + 32) {
    Scheduler scheduler;
    scheduler.open(shared.scope.hooks, shared.mailbox, deadline);
    scheduler.run();
  } else {
    shared.scope.watch(deadline);
  }
}

/// Of a block's shared memory, beside the operators' own, which comes first; for the host.
extern "C" {
__constant__ unsigned shared_bytes = sizeof(ms::BlockShared);
}

// What a firing costs, on the very code that the megakernel fires with. Two measurements, each its own kernel:
//   firing_*  128 threads run a chain of dependent multiply-adds per task; thread 0 fires `events` hooks around it.
//             "inside": the block waits for thread 0, as at a task's end. "beside": its work overlaps the next task's.
//   burst     every worker fires as fast as it can into a real monitor: rows per second to host memory.
#include "monitor.cuh"

namespace ms {

struct FiringShared {
  HookShared hooks;
#if MS_HOOKS == MS_HOOKS_QUEUE
  MonitorShared monitor;
#endif
};

MS_DEVICE void compute_barrier() { barrier(COMPUTE_BARRIER, COMPUTE_THREADS); }

/// cycles: by block, of the whole loop. events: 0, 1 (complete) or 2 (start and complete).
template <u32 EVENTS, bool INSIDE>
MS_DEVICE void firing(u64* cycles, float* sink, u32 tasks, u32 length, u32 mask) {
  __shared__ FiringShared shared;
#if MS_HOOKS == MS_HOOKS_QUEUE
  u32* words = reinterpret_cast<u32*>(&shared);
  for (u32 i = threadIdx.x; i < sizeof(FiringShared) / 4; i += blockDim.x) words[i] = 0;
  __syncthreads();
  if (threadIdx.x == 0) shared.hooks.mask = mask;
  __syncthreads();
  if (threadIdx.x >= COMPUTE_THREADS) {  // a consumer that only takes, so that the queue is never full
    Consumer queue;
    queue.open(shared.hooks.compute);
    while (threadIdx.x < COMPUTE_THREADS + 32) {
      Record r;
      u32 n = queue.take(r);
      if (n)
        queue.release(n, __shfl_sync(FULL_WARP, queue.seq(r), n - 1));
      else if (queue.left())
        break;
      else
        __nanosleep(100);  // as the monitor does
    }
    return;
  }
#else
  if (threadIdx.x >= COMPUTE_THREADS) return;
#endif
  bool worker = threadIdx.x == 0;
  ComputeHooks hooks;
  hooks.open(shared.hooks);
  float x = threadIdx.x;
  u64 began = clock64();
  for (u32 t = 1; t <= tasks; t++) {
    if (EVENTS > 0 && worker) {
      hooks.refresh();
      if (EVENTS == 2) hooks.start(t, 0, 0);
    }
    for (u32 i = 0; i < length; i++) x = x * 1.0000001f + 0.5f;
    compute_barrier();
    if (EVENTS > 0 && worker) {
      hooks.done();
      hooks.complete(t, 0);
    }
    if (INSIDE) compute_barrier();
  }
  u64 ended = clock64();
  if (worker) {
    cycles[blockIdx.x] = ended - began;
    hooks.close();
  }
  sink[blockIdx.x * COMPUTE_THREADS + threadIdx.x] = x;
}

}  // namespace ms

#define FIRING(EVENTS, PLACE, INSIDE)                                                                                 \
  extern "C" __global__ void __launch_bounds__(ms::BLOCK_THREADS, 1) firing_##EVENTS##_##PLACE(                       \
      unsigned long long* cycles, float* sink, unsigned tasks, unsigned length, unsigned mask) {                      \
    ms::firing<EVENTS, INSIDE>(reinterpret_cast<u64*>(cycles), sink, tasks, length, mask);                        \
  }
FIRING(0, inside, true)
FIRING(0, beside, false)
FIRING(1, inside, true)
FIRING(1, beside, false)
FIRING(2, inside, true)
FIRING(2, beside, false)

#if MS_HOOKS == MS_HOOKS_QUEUE
/// Each compute worker fires `events` times (start and complete), each scheduler worker `events` times 32 at once. An
/// event that finds its queue full is lost and counted, as always.
extern "C" __global__ void __launch_bounds__(ms::BLOCK_THREADS, 1) burst(unsigned events) {
  using namespace ms;
  __shared__ FiringShared shared;
  u32* words = reinterpret_cast<u32*>(&shared);
  for (u32 i = threadIdx.x; i < sizeof(FiringShared) / 4; i += BLOCK_THREADS) words[i] = 0;
  u64 deadline = device_time() + engine.limit_ns;
  __syncthreads();
  if (threadIdx.x == 0) shared.hooks.mask = load_device(&engine.run->control.word) & CONTROL_MASK;
  __syncthreads();
  if (threadIdx.x == 0) {
    ComputeHooks hooks;
    hooks.open(shared.hooks);
    for (u32 i = 0; i < events && device_time() < deadline; i++) {
      hooks.start(1 + i % engine.n_tasks, 0, 0);
      hooks.done();
      hooks.complete(1 + i % engine.n_tasks, 0);
    }
    hooks.close();
  } else if (threadIdx.x >= COMPUTE_THREADS && threadIdx.x < COMPUTE_THREADS + 32) {
    SchedulerHooks hooks;
    hooks.open(shared.hooks);
    for (u32 i = 0; i < events / 32 && __all_sync(FULL_WARP, device_time() < deadline); i++)
      hooks.assign(true, device_time_low(), 1 + i % engine.n_tasks, 0, 0, 0, 0);
    hooks.close();
  } else if (threadIdx.x >= COMPUTE_THREADS + 32) {
    Monitor(shared.monitor, shared.hooks, deadline).run();
  }
}
#endif

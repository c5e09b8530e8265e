// What a firing costs, on the very code that the megakernel fires with. Three measurements, each its own kernel:
//   firing_*  128 threads run a chain of dependent multiply-adds per task; thread 0 fires `events` hooks around it.
//             "inside": the block waits for thread 0, as at a task's end. "beside": its work overlaps the next task's.
//   tasks     tasks of a given length with monitors and programs as they are attached: what all of it costs.
//   burst     every worker fires as fast as it can into a real monitor: rows per second to host memory.
#include "engine.cuh"
#include "megascope.cuh"

namespace ms {

MS_DEVICE void compute_barrier() { barrier(COMPUTE_BARRIER, COMPUTE_THREADS); }

/// `rounds` times a hundred dependent multiply-adds. Long rounds, since a short loop's speed depends on where in the
/// instruction cache it happens to stand, by more than a hook costs.
MS_DEVICE void multiply_add(float& x, u32 rounds) {
#pragma unroll 1
  for (; rounds > 0; rounds--) {
#pragma unroll
    for (u32 k = 0; k < 100; k++) x = x * 1.0000001f + 0.5f;
  }
}

/// cycles: by block, of the whole loop. EVENTS: 0 no hooks, 2 those of a task; which of them fire, the mask says.
template <u32 EVENTS, bool INSIDE>
MS_DEVICE void firing(u64* cycles, float* sink, u32 tasks, u32 length, u32 mask) {
  MS_SHARED(Scope, shared);
  shared.open(mask);
#if MS_HOOKS == MS_HOOKS_QUEUE
  if (threadIdx.x >= COMPUTE_THREADS) {  // a consumer that only takes, in the monitor's place
    Consumer<HookSpace> queue;
    queue.open(shared.hooks.compute, true);
    while (threadIdx.x >= COMPUTE_THREADS + 32) {
      Record r;
      Taken took = queue.take(r);
      if (took.records)
        queue.release(took.records, __shfl_sync(FULL_WARP, queue.seq(r), 31 - __clz(took.events | took.unwanted)));
      else if (queue.left())
        break;
      else
        __nanosleep(LONGEST_NAP_NS);
    }
    return;
  }
#else
  if (threadIdx.x >= COMPUTE_THREADS) return;
#endif
  ComputeHooks hooks;
  hooks.open(shared.hooks, threadIdx.x);
  float x = threadIdx.x;
  u64 began = clock64();
  for (u32 t = 1; t <= tasks; t++) {
    if (EVENTS > 0) {
      hooks.refresh();
      hooks.start(t, 0);
    }
    multiply_add(x, length);
    compute_barrier();
    if (EVENTS > 0) {
      hooks.done();
      hooks.complete(0);
    }
    if (INSIDE) compute_barrier();
  }
  u64 ended = clock64();
  if (threadIdx.x == 0) {
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
FIRING(2, inside, true)
FIRING(2, beside, false)

/// Every block does `count` tasks of `rounds` rounds, from when the host says go; elapsed: by block, ns. Monitors and
/// programs are as in the megakernel.
extern "C" __global__ void __launch_bounds__(ms::BLOCK_THREADS, 1) tasks(unsigned count, unsigned rounds,
                                                                        unsigned long long* elapsed, float* sink) {
  using namespace ms;
  MS_SHARED(Scope, shared);
  const u64 deadline = device_time() + segment.limit_ns;
  shared.open();
  if (threadIdx.x >= COMPUTE_THREADS + 32) return shared.watch(deadline);
  if (threadIdx.x >= COMPUTE_THREADS) {  // a scheduler that has nothing to do
    SchedulerHooks hooks;
    hooks.open(shared.hooks);
    hooks.close();
    return;
  }
  ComputeHooks hooks;
  hooks.open(shared.hooks, threadIdx.x);
  // One thread of a block asks, and not often: reads over PCIe queue up, and those of the elected monitor behind them.
  while (threadIdx.x == 0 && load_host(segment.host + HOST_GO) == 0 && device_time() < deadline) {
    hooks.refresh();
    __nanosleep(20000);
  }
  compute_barrier();
  hooks.refresh(), hooks.refresh();
  float x = threadIdx.x;
  const u64 began = device_time();
  for (u32 t = 1; t <= count; t++) {
    hooks.refresh();
    hooks.start(1 + t % segment.n_tasks, 0);
    multiply_add(x, rounds);
    compute_barrier();
    hooks.done();
    hooks.complete(0);
    if ((t & 255) == 0 && device_time() > deadline) break;
  }
  if (threadIdx.x == 0) {
    elapsed[blockIdx.x] = device_time() - began;
    hooks.close();
  }
  sink[blockIdx.x * COMPUTE_THREADS + threadIdx.x] = x;
}

#if MS_HOOKS == MS_HOOKS_QUEUE
/// Each compute worker fires `events` times (start and complete), each scheduler worker `events` times 32 at once. An
/// event that finds its queue full is lost and counted, as always.
extern "C" __global__ void __launch_bounds__(ms::BLOCK_THREADS, 1) burst(unsigned events) {
  using namespace ms;
  MS_SHARED(Scope, shared);
  const u64 deadline = device_time() + segment.limit_ns;
  shared.open();
  if (threadIdx.x == 0) {
    ComputeHooks hooks;
    hooks.open(shared.hooks);
    for (u32 i = 0; i < events && device_time() < deadline; i++) {
      hooks.refresh();
      hooks.start(1 + i % segment.n_tasks, 0);
      hooks.done();
      hooks.complete(0);
    }
    hooks.close();
  } else if (threadIdx.x >= COMPUTE_THREADS && threadIdx.x < COMPUTE_THREADS + 32) {
    SchedulerHooks hooks;
    hooks.open(shared.hooks);
    for (u32 i = 0; i < events / 32 && __all_sync(FULL_WARP, device_time() < deadline); i++) {
      hooks.refresh();
      hooks.assign(true, device_time_low(), 1 + i % segment.n_tasks, 0, 0, 0, 0);
    }
    hooks.close();
  } else if (threadIdx.x >= COMPUTE_THREADS + 32) {
    shared.watch(deadline);
  }
}
#endif

// All that a kernel includes to be seen: its hooks, their monitors, and the constant `segment` that its host fills.
// docs/integrate.md has a whole kernel for each transport.
//
//   MS_HOOKS_QUEUE    a monitor warp of MONITOR_THREADS in every block, behind the kernel's own threads, which must not
//                     use __syncthreads() after `open`, but counted barriers; sizeof(Scope) bytes of shared memory
//   MS_HOOKS_DEVICE   neither; the kernel `monitors` is launched before, as many blocks of 32 threads as it takes to
//                     watch all workers
//   MS_HOOKS_NONE     nothing at all
// The hooks use no barrier. A monitor takes up to 252 registers a thread; the launch bounds of a block that hosts one
// must leave them.
#pragma once
#include "hooks.cuh"
#include "monitor.cuh"

namespace ms {

constexpr u32 MONITOR_THREADS = MS_HOOKS == MS_HOOKS_QUEUE ? 32 : 0;

/// A block's part, in its shared memory.
struct Scope {
  HookShared hooks;
#if MS_HOOKS == MS_HOOKS_QUEUE
  MonitorShared monitor;
#endif

  /// By all threads of the block, before anything else; they meet twice in it.
  MS_DEVICE void open() {
#if MS_HOOKS == MS_HOOKS_QUEUE
    // One look for all: the elected monitor may be writing it.
    open(threadIdx.x == 0 ? load_device(&segment.orders->control.word) & CONTROL_MASK : 0);
#endif
  }

  /// The same where no segment says what to fire: `mask` of thread 0 does.
  MS_DEVICE void open(u32 mask) {
#if MS_HOOKS == MS_HOOKS_QUEUE
    u32* words = reinterpret_cast<u32*>(this);
    for (u32 i = threadIdx.x; i < sizeof(Scope) / 4; i += blockDim.x) words[i] = 0;
    __syncthreads();
    if (threadIdx.x == 0) hooks.compute.words.mask = hooks.scheduler.words.mask = mask;
    __syncthreads();
#endif
  }

#if MS_HOOKS == MS_HOOKS_QUEUE
  /// What the monitor warp does, until the block's workers have closed their hooks and everything is told.
  MS_DEVICE void watch(u64 deadline) {
    const u32 mask = hooks.compute.words.mask;
    Monitor m(monitor, blockIdx.x, deadline);
    m.watch(hooks.compute, true, compute_worker(), mask);
    if (segment.roles > 1) m.watch(hooks.scheduler, false, scheduler_worker(), mask);
    m.run();
  }
#else
  MS_DEVICE void watch(u64) {}
#endif
};

}  // namespace ms

#if MS_HOOKS == MS_HOOKS_DEVICE
/// The monitors: one warp a block, for every gridDim-th worker. A block of theirs fits beside one of the kernel's.
extern "C" __global__ void __launch_bounds__(32, 1) monitors() {
  using namespace ms;
  MS_SHARED(MonitorShared, shared);
  u32* words = reinterpret_cast<u32*>(&shared);
  for (u32 i = threadIdx.x; i < sizeof(shared) / 4; i += 32) words[i] = 0;
  __syncwarp();
  const u32 mask = __shfl_sync(FULL_WARP, load_device(&segment.orders->control.word), 0) & CONTROL_MASK;
  Monitor monitor(shared, blockIdx.x, device_time() + segment.limit_ns);
#pragma unroll 1
  for (u32 worker = blockIdx.x; worker < all_workers(); worker += gridDim.x) {
    const bool compute = worker < segment.blocks;
    HookQueues& queues = static_cast<HookQueues*>(segment.hook_queues)[compute ? worker : worker - segment.blocks];
    if (compute)
      monitor.watch(queues.compute, true, worker, mask);
    else
      monitor.watch(queues.scheduler, false, worker, mask);
  }
  monitor.run();
}
#endif

#if MS_MONITORED
/// Sizes in bytes that the host allocates by; `struct Sizes` of capture/engines/cuda/monitors.py, in its order.
extern "C" {
__constant__ unsigned segment_sizes[] = {
    sizeof(ms::HookQueues), sizeof(ms::Programs),      sizeof(ms::Running), sizeof(ms::Book),
    sizeof(ms::VmDeep),     ms::EXPORT_WORDS * 8, ms::PLACES,          ms::WATCHED,
    ms::COMPUTE_SLOTS * 32 + 4 * ms::MASK_WORD,
    sizeof(ms::Queue<ms::COMPUTE_SLOTS>) + ms::SCHEDULER_SLOTS * 32 + 4 * ms::MASK_WORD,
};
}
#endif

// A persistent kernel with a static schedule that hosts its monitor warps. Every iteration scales all tiles of x into
// y, then blends each with its neighbours back into x. Block b runs tasks b + 1, b + 1 + gridDim.x, …
#include "megascope.cuh"
using namespace ms;

constexpr u32 THREADS = 128, TILES = 96;      // tasks 1 … 96 scale a tile each, 97 … 192 blend
enum Dep : u32 { SCALED = 1, BLENDED = 2 };   // each wants TILES releases; BLENDED ends the iteration
struct Shared { u32 begun, count[3]; };       // of all blocks; zero before a launch

/// Thread 0: until *word reaches goal; false at the deadline. task 0: the worker has none before an iteration has ended
/// (dep BLENDED) or the first has begun (dep 0).
MS_DEVICE bool await(ComputeHooks& hooks, const Shared& all, const u32* word, u32 goal, u32 task, u32 i, u32 dep,
                     u64 end) {
  if (load_acquire_device(word) >= goal) return true;
  hooks.wait(task, i, dep, dep ? min(load_device(&all.count[dep]) - i * TILES, TILES - 1) : 0, dep ? TILES : 1);
  while (load_acquire_device(word) < goal) {
    if (device_time() > end) return false;
    hooks.refresh();
    __nanosleep(100);
  }
  hooks.resume(task, i, dep);
  return true;
}

/// Thread 0: until the task may run. Block 0 ends and begins the iterations.
MS_DEVICE bool may_run(ComputeHooks& hooks, Shared& all, u32 task, u32 i, u64 end) {
  if (task > TILES) return await(hooks, all, &all.count[SCALED], (i + 1) * TILES, task, i, SCALED, end);
  const u32 before = i > 0 ? i - 1 : 0, dep = i > 0 ? BLENDED : 0;
  if (task > 1) return await(hooks, all, &all.begun, i + 1, 0, before, dep, end);
  if (!await(hooks, all, &all.count[BLENDED], i * TILES, 0, before, dep, end)) return false;
  hooks.step(i, device_time(), MS_STEP_BEGINS);
  hooks.ready(1, TILES, i, 0);
  store_release_device(&all.begun, i + 1);
  return true;
}

extern "C" __global__ void __launch_bounds__(THREADS + MONITOR_THREADS, 1)
smooth(float* x, float* y, Shared* all, u32 iterations) {
  MS_SHARED(Scope, scope);
  MS_SHARED(bool, run);
  const u64 end = device_time() + segment.limit_ns;
  scope.open();
  if (threadIdx.x >= THREADS) return scope.watch(end);  // from here on only barriers of THREADS threads
  ComputeHooks hooks;
  hooks.open(scope.hooks, threadIdx.x);
  const bool worker = threadIdx.x == 0;
  for (u32 i = 0; i < iterations; i++) {
    for (u32 task = blockIdx.x + 1; task <= 2 * TILES; task += gridDim.x) {
      hooks.refresh();
      if (worker) run = may_run(hooks, *all, task, i, end);
      barrier(1, THREADS);
      if (!run) {
        if (worker) hooks.close();
        return;
      }
      hooks.start(task, 0);
      const Dep dep = task <= TILES ? SCALED : BLENDED;
      const u32 tile = (task - 1) % TILES, at = threadIdx.x;
      if (dep == SCALED)
        y[tile * THREADS + at] = 0.9f * __ldcg(x + tile * THREADS + at);
      else
        x[tile * THREADS + at] = 0.5f * (__ldcg(y + (tile + TILES - 1) % TILES * THREADS + at) +
                                         __ldcg(y + (tile + 1) % TILES * THREADS + at));
      barrier(1, THREADS);
      hooks.done();
      hooks.complete(i);
      if (!worker) continue;
      fence_device();
      const u32 after = atomicAdd(&all->count[dep], 1) + 1 - i * TILES;
      hooks.release(task, i, dep, after);
      if (after == TILES && dep == SCALED) hooks.ready(TILES + 1, TILES, i, task);
    }
  }
  if (worker) hooks.close();
}

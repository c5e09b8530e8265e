// A kernel of several ranks for test_integrate.py. Every iteration each block gives a number, then adds up those of its
// own rank. Ranks know nothing of each other's numbers, and end an iteration together.
#include "megascope.cuh"
using namespace ms;

constexpr u32 THREADS = 32;  // of which one works

/// Until *word reaches goal; false at the deadline. counts: releases by dependency.
MS_DEVICE bool await(ComputeHooks& hooks, const u32* word, u32 goal, const u32* counts, u32 task, u32 i, u32 dep,
                     u32 wanted, u64 end) {
  if (load_acquire_device(word) >= goal) return true;
  hooks.wait(task, i, dep, dep ? min(load_device(counts + dep) - i * wanted, wanted - 1) : 0, dep ? wanted : 1);
  while (load_acquire_device(word) < goal) {
    if (device_time() > end) return false;
    hooks.refresh();
    __nanosleep(100);
  }
  hooks.resume(task, i, dep);
  return true;
}

/// The last of `wanted` releases of a dependency.
MS_DEVICE bool release(ComputeHooks& hooks, u32* counts, u32 task, u32 i, u32 dep, u32 wanted) {
  fence_device();
  const u32 after = atomicAdd(counts + dep, 1) + 1 - i * wanted;
  hooks.release(task, i, dep, after);
  return after == wanted;
}

// Dependency r + 1 wants a number of each block of rank r, ranks + 1 the sums of all. counts: [ranks + 2]. begun: by
// rank, iterations; then by rank, those whose numbers are all there, which is said after their `ready` has been fired.
// sums: [iterations, blocks]. Everything but `given` is zero before a launch.
extern "C" __global__ void ranks(const u32* given, u32* number, u32* sums, u32* counts, u32* begun, u32 iterations) {
  MS_SHARED(Scope, scope);
  const u64 deadline = device_time() + segment.limit_ns;
  scope.open();
  if (threadIdx.x >= THREADS) return scope.watch(deadline);
  if (threadIdx.x) return;
  ComputeHooks hooks;
  hooks.open(scope.hooks);
  const u32 blocks = gridDim.x, each = segment.rank_blocks, rank = rank_of(compute_worker()), first = rank * each;
  const u32 give = blockIdx.x + 1, add = blocks + give, gathered = rank + 1, all = segment.ranks + 1;
  for (u32 i = 0; i < iterations; i++) {
    hooks.refresh();
    const bool leads = blockIdx.x == 0;
    const u32* word = leads ? counts + all : begun + (blockIdx.x == first ? 0 : rank);
    const u32 goal = leads ? i * blocks : i + 1, before = i > 0 ? i - 1 : 0, over = i > 0 ? all : 0;
    if (!await(hooks, word, goal, counts, 0, before, over, blocks, deadline)) break;
    if (leads) hooks.step(i, device_time(), MS_STEP_BEGINS);
    if (blockIdx.x == first) {
      hooks.ready(give, each, i, 0);
      store_release_device(begun + rank, i + 1);
    }
    hooks.start(give, 0);
    number[blockIdx.x] = given[blockIdx.x] + i;
    hooks.done();
    hooks.complete(i);
    u32* const all_there = begun + segment.ranks + rank;
    if (release(hooks, counts, give, i, gathered, each)) {
      hooks.ready(blocks + first + 1, each, i, give);
      store_release_device(all_there, i + 1);
    }
    hooks.refresh();
    if (!await(hooks, all_there, i + 1, counts, add, i, gathered, each, deadline)) break;
    hooks.start(add, 0);
    u32 sum = 0;
    for (u32 block = first; block < first + each; block++) sum += __ldcg(number + block);
    sums[i * blocks + blockIdx.x] = sum;
    hooks.done();
    hooks.complete(i);
    release(hooks, counts, add, i, all, blocks);
  }
  hooks.close();
}

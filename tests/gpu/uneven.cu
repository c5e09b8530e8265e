// A kernel for test_shared_maps.py of which one block leaves long before the others.
#include "megascope.cuh"
using namespace ms;

constexpr u32 THREADS = 32;  // of which one works

extern "C" __global__ void uneven(u32 early, u32 milliseconds) {
  MS_SHARED(Scope, scope);
  const u64 deadline = device_time() + segment.limit_ns;
  scope.open();
  if (threadIdx.x >= THREADS) return scope.watch(deadline);
  if (threadIdx.x) return;
  ComputeHooks hooks;
  hooks.open(scope.hooks);
  const u64 end = device_time() + (blockIdx.x == early ? 1 : milliseconds) * 1000000ull;
  for (u32 i = 0; device_time() < end; i++) {
    hooks.refresh();
    hooks.start(1 + i % 2, 0);
    __nanosleep(200000);
    hooks.done();
    hooks.complete(i);
  }
  hooks.close();
}

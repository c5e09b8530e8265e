// What a monitor does with the VM, each step as a kernel of its own, in a block as large as the megakernel's: compiled
// to see that it compiles, what registers it takes, and that nothing is spilled.
#include "vm_check.cuh"
#include "vm_epochs.cuh"
#include "vm_programs.cuh"

using namespace ms;

/// Every worker's monitor runs.
struct Everybody {
  MS_DEVICE bool operator()(u32) const { return true; }
};

extern "C" __global__ void __launch_bounds__(192, 1)
    vm_kernel_batch(VmAttached a, VmDeep* deep, const u64* rows, u32* by) {
  __shared__ VmScratch scratch;
  Lanes<u32> out;
  MS_LANES(lane) {
    out[lane] = 0;
    for (u32 k = 0; k < 8; k++) scratch.row[k][lane] = rows[32 * k + lane];
  }
  warp_sync();
  vm_batch(a, scratch, *deep, FULL_WARP, out);
  MS_LANES(lane) by[lane] = out[lane];
}

extern "C" __global__ void __launch_bounds__(192, 1)
    vm_kernel_check(const u64* words, u64 n, u64 arena, u32 workers, u32* out) {
  const bool sound = vm_check(words, n, arena, workers, 1);
  MS_LANES(lane) if (lane == 0)* out = sound;
}

extern "C" __global__ void __launch_bounds__(192, 1) vm_kernel_epoch(VmAttached a, u64* cursor, u64* out, u32* used) {
  u64* part = a.part(blockIdx.x);
  u64 from = *cursor;
  if (!vm_prepare(a, part, false, 0, from, 4096)) return;
  vm_feed(a, part, 0, 0, 1, 2);
  vm_close(a, part, false);
  vm_follow(a, part);
  if (vm_followed(a, 0, Everybody())) *used = vm_export(a, part, false, out, 4096);
}

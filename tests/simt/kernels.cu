// What test_simt_executor.py runs: kernels that are right, and some that would hang.
#include "ptx.cuh"

using namespace ms;

extern "C" __global__ void collectives(u32* out) {
  const u32 lane = lane_id(), square = lane * lane;
  u32(*row)[32] = reinterpret_cast<u32(*)[32]>(out);
  row[0][lane] = __shfl_sync(FULL_WARP, square, 7);
  row[1][lane] = __shfl_xor_sync(FULL_WARP, square, 5);
  row[2][lane] = __shfl_up_sync(FULL_WARP, square, 3);
  row[3][lane] = __shfl_down_sync(FULL_WARP, square, 2, 8);
  row[4][lane] = __ballot_sync(FULL_WARP, lane & 1);
  row[5][lane] = __reduce_add_sync(FULL_WARP, lane);
  row[6][lane] = __reduce_min_sync(FULL_WARP, lane + 3);
  row[7][lane] = static_cast<u32>(__reduce_min_sync(FULL_WARP, static_cast<int>(lane) - 16));
  row[8][lane] = __match_any_sync(FULL_WARP, lane & 1);
  const u32 half = lane < 16 ? 0xffffu : 0xffff0000u;  // two at once, each by one half of the warp
  if (lane < 16)
    row[9][lane] = __reduce_add_sync(half, lane);
  else
    row[9][lane] = __reduce_add_sync(half, lane);
  row[10][lane] = __any_sync(FULL_WARP, lane == 31);
  row[11][lane] = __all_sync(FULL_WARP, lane != 31);
}

extern "C" __global__ void reversal(u32* out) {
  MS_SHARED(u32, factor);
  u32* words = reinterpret_cast<u32*>(block_memory());
  if (threadIdx.x == 0) factor = 2;
  store_shared(shared_address(words + threadIdx.x), threadIdx.x + 100 * blockIdx.x);
  __syncthreads();
  const u32 v = load_shared(shared_address(words + blockDim.x - 1 - threadIdx.x));
  barrier(2, 96);
  out[blockIdx.x * blockDim.x + threadIdx.x] = v * factor + 1;
}

extern "C" __global__ void counting(u32* out, u32 times) {
  for (u32 i = 0; i < times; i++) {
    atomicAdd(out, 1);
    const u32 seen = load_device(out + 1);
    store_device(out + 1, seen + 1);
  }
}

/// out: a word for each thread, and the count.
extern "C" __global__ void arrivals(u32* out) {
  fence_device();
  out[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(out + gridDim.x * blockDim.x, 1);
}

extern "C" __global__ void meet(u32* words, u32 who) {
  if (who == 2) {  // behind the first of its stream
    if (lane_id() == 0) atomicAdd(words, load_device(words) + 1);
    return;
  }
  if (lane_id() == 0) store_device(words + who, 1);
  __syncwarp();
  while (__any_sync(FULL_WARP, load_device(words + 1 - who) == 0)) __nanosleep(100);
}

extern "C" __global__ void diverges() {
  if (lane_id() < 4 && blockIdx.x == 1)
    __syncwarp();  // one way
  else
    __ballot_sync(FULL_WARP, 1);  // the other way
}

MS_DEVICE void together() { __syncwarp(); }

extern "C" __global__ void diverges_inside(u32* out) {
  if (lane_id() == 3) {
    together();
    if (out) store_device(out, 1);
  } else {
    together();
    if (out) store_device(out, 2);
  }
}

extern "C" __global__ void disagrees() { __syncwarp(lane_id() < 16 ? 0xffffu : FULL_WARP); }

extern "C" __global__ void crosses() {
  if (lane_id() == 0)
    __any_sync(FULL_WARP, 1);  // in a vote
  else
    barrier(1, 64);  // at a barrier
}

extern "C" __global__ void leaves() {
  if (lane_id() == 7) return;
  __syncwarp();  // without lane 7
}

extern "C" __global__ void waits() {
  if (threadIdx.x >= 32) return;
  barrier(3, 64);  // half of them
}

extern "C" __global__ void takes() {
  if (lane_id() < 16) __shfl_sync(0xffffu, 1u, 20);
}

extern "C" __global__ void reaches(u32 offset) {
  MS_SHARED(u32, mine);
  load_shared(shared_address(&mine) + offset);
}

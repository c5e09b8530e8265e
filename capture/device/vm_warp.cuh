// How the VM says "every lane": one source that is a warp on the device and a loop over 32 lanes on a CPU.
//
// Code between two collective calls is written once per lane, inside MS_LANES; what differs between lanes and lives
// across such blocks is a Lanes<T>. On the device a Lanes<T> is one register of each thread, a block runs once in each,
// and a collective call makes the warp converge. On a CPU (vm_host.h) the blocks are loops, so that lanes run in
// lockstep from block to block, lane 0 first.
#pragma once

#if !defined(__CUDACC__) && !defined(MS_SIMT)  // MS_SIMT: tests/simt, where a CPU runs every thread of a launch
#include "vm_host.h"
#else
#include "ptx.cuh"

#define MS_LANES(lane) for (u32 lane = lane_id(), done_ = 0; !done_; done_ = 1)

namespace ms {

typedef int32_t s32;
typedef int64_t s64;

template <class T>
struct Lanes {
  T own;
  MS_DEVICE T& operator[](u32) { return own; }
  MS_DEVICE const T& operator[](u32) const { return own; }
};

MS_DEVICE u32 ballot(const Lanes<bool>& x) { return __ballot_sync(FULL_WARP, x.own); }

MS_DEVICE u32 least(const Lanes<u32>& x) { return __reduce_min_sync(FULL_WARP, x.own); }

MS_DEVICE u64 total(const Lanes<u64>& x) {
  u64 sum = x.own;
#pragma unroll 1
  for (u32 step = 16; step; step /= 2) sum += __shfl_xor_sync(FULL_WARP, sum, step);
  return sum;
}

/// What one lane holds, in every lane.
MS_DEVICE u32 lane_value(const Lanes<u32>& x, u32 lane) { return __shfl_sync(FULL_WARP, x.own, lane); }
MS_DEVICE u64* lane_value(const Lanes<u64*>& x, u32 lane) {
  return reinterpret_cast<u64*>(__shfl_sync(FULL_WARP, reinterpret_cast<unsigned long long>(x.own), lane));
}

/// What lanes wrote before is seen by the others after.
MS_DEVICE void warp_sync() { __syncwarp(); }

MS_DEVICE u32 bits_in(u32 mask) { return __popc(mask); }
MS_DEVICE u32 first_bit(u32 mask) { return __ffs(static_cast<int>(mask)) - 1; }
MS_DEVICE u32 leading_zeros(u64 x) { return __clzll(static_cast<long long>(x)); }
MS_DEVICE void pause_briefly() { __nanosleep(100); }

MS_DEVICE unsigned long long* wide_word(u64* p) { return reinterpret_cast<unsigned long long*>(p); }
MS_DEVICE u64 atomic_add(u64* p, u64 v) { return atomicAdd(wide_word(p), static_cast<unsigned long long>(v)); }
MS_DEVICE u64 atomic_min(u64* p, u64 v) { return atomicMin(wide_word(p), static_cast<unsigned long long>(v)); }
MS_DEVICE u64 atomic_max(u64* p, u64 v) { return atomicMax(wide_word(p), static_cast<unsigned long long>(v)); }
MS_DEVICE u64 atomic_cas(u64* p, u64 old, u64 v) {
  return atomicCAS(wide_word(p), static_cast<unsigned long long>(old), static_cast<unsigned long long>(v));
}

MS_DEVICE u64 load_relaxed(const u64* p) { return load_device(p); }

}  // namespace ms
#endif

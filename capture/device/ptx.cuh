// The few instructions that C++ cannot say: clocks, counted barriers, loads and stores of a stated width and scope, and
// memory of a block. No other file has any, so that with another one in this one's place (tests/simt/ptx.cuh) the
// device code runs on a CPU.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

#define MS_DEVICE __device__ __forceinline__

/// Inside a function: a variable in the block's shared memory, not initialised.
#define MS_SHARED(type, name) __shared__ type name

namespace ms {

constexpr u32 FULL_WARP = 0xffffffffu;

/// The shared memory that the launch asked for.
MS_DEVICE unsigned char* block_memory() {
  extern __shared__ __align__(16) unsigned char memory[];
  return memory;
}

/// The same value, of which the compiler knows nothing: it keeps it in a register instead of making it anew.
MS_DEVICE u32 opaque(u32 v) {
  asm volatile("" : "+r"(v));
  return v;
}

MS_DEVICE u64 opaque(u64 v) {
  asm volatile("" : "+l"(v));
  return v;
}

MS_DEVICE u64 device_time() {
  u64 t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

MS_DEVICE u32 device_time_low() {
  u32 t;
  asm volatile("mov.u32 %0, %globaltimer_lo;" : "=r"(t));
  return t;
}

MS_DEVICE u32 multiprocessor() {
  u32 sm;
  asm("mov.u32 %0, %smid;" : "=r"(sm));
  return sm;
}

/// The same time in all 32 lanes, which read the timer apart where they have diverged: what a warp decides by it, all
/// its lanes must decide alike.
MS_DEVICE u64 warp_time() { return __shfl_sync(FULL_WARP, device_time(), 0); }

MS_DEVICE u32 lane_id() { return threadIdx.x & 31; }

MS_DEVICE u32 lanes_below() {
  u32 m;
  asm("mov.u32 %0, %lanemask_lt;" : "=r"(m));
  return m;
}

/// Named barrier `id` over exactly `threads` threads. __syncthreads() would wait for the scheduler and monitor warps.
MS_DEVICE void barrier(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

/// The 32-bit address of an object in shared memory. Opaque to the compiler, which would otherwise recompute it from
/// SR_CgaCtaId inside the loop (60 cycles a record).
MS_DEVICE u32 shared_address(const void* p) { return opaque(static_cast<u32>(__cvta_generic_to_shared(p))); }

MS_DEVICE u32 load_shared(u32 address) {
  u32 v;
  asm volatile("ld.relaxed.cta.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}

MS_DEVICE void store_shared(u32 address, u32 v) {
  asm volatile("st.relaxed.cta.shared.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}

MS_DEVICE uint2 load_shared_8(u32 address) {
  uint2 v;
  asm volatile("ld.relaxed.cta.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address) : "memory");
  return v;
}

/// Predicated, so that no warp branches over it.
MS_DEVICE void store_shared_if(u32 really, u32 address, u32 v) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p st.relaxed.cta.shared.u32 [%0], %1; }" ::"r"(address), "r"(v),
               "r"(really)
               : "memory");
}

/// One 16-byte access: a reader sees all of it or none. (A v4 access is four accesses in the memory model.)
MS_DEVICE void store_shared_16(u32 address, u32 x, u32 y, u32 z, u32 w) {
  asm volatile(
      "{ .reg .b64 lo, hi; .reg .b128 v; mov.b64 lo, {%1, %2}; mov.b64 hi, {%3, %4}; mov.b128 v, {lo, hi};"
      "  st.relaxed.cta.shared.b128 [%0], v; }" ::"r"(address),
      "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}

MS_DEVICE void store_shared_16_if(u32 really, u32 address, u32 x, u32 y, u32 z, u32 w) {
  asm volatile(
      "{ .reg .b64 lo, hi; .reg .b128 v; .reg .pred p; setp.ne.u32 p, %5, 0; mov.b64 lo, {%1, %2};"
      "  mov.b64 hi, {%3, %4}; mov.b128 v, {lo, hi}; @p st.relaxed.cta.shared.b128 [%0], v; }" ::"r"(address),
      "r"(x), "r"(y), "r"(z), "r"(w), "r"(really)
      : "memory");
}

MS_DEVICE uint4 load_shared_16(u32 address) {
  uint4 r;
  asm volatile(
      "{ .reg .b64 lo, hi; .reg .b128 v; ld.relaxed.cta.shared.b128 v, [%4]; mov.b128 {lo, hi}, v;"
      "  mov.b64 {%0, %1}, lo; mov.b64 {%2, %3}, hi; }"
      : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
      : "r"(address)
      : "memory");
  return r;
}

/// The same over device memory, between multiprocessors.
MS_DEVICE void store_device_16(void* p, u32 x, u32 y, u32 z, u32 w) {
  asm volatile(
      "{ .reg .b64 lo, hi; .reg .b128 v; mov.b64 lo, {%1, %2}; mov.b64 hi, {%3, %4}; mov.b128 v, {lo, hi};"
      "  st.relaxed.gpu.global.b128 [%0], v; }" ::"l"(p),
      "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}

MS_DEVICE uint4 load_device_16(const void* p) {
  uint4 r;
  asm volatile(
      "{ .reg .b64 lo, hi; .reg .b128 v; ld.relaxed.gpu.global.b128 v, [%4]; mov.b128 {lo, hi}, v;"
      "  mov.b64 {%0, %1}, lo; mov.b64 {%2, %3}, hi; }"
      : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
      : "l"(p)
      : "memory");
  return r;
}

MS_DEVICE void store_device_16_if(u32 really, void* p, u32 x, u32 y, u32 z, u32 w) {
  asm volatile(
      "{ .reg .b64 lo, hi; .reg .b128 v; .reg .pred p; setp.ne.u32 p, %5, 0; mov.b64 lo, {%1, %2};"
      "  mov.b64 hi, {%3, %4}; mov.b128 v, {lo, hi}; @p st.relaxed.gpu.global.b128 [%0], v; }" ::"l"(p),
      "r"(x), "r"(y), "r"(z), "r"(w), "r"(really)
      : "memory");
}

MS_DEVICE uint2 load_device_8(const void* p) {
  uint2 v;
  asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p) : "memory");
  return v;
}

MS_DEVICE void store_device_if(u32 really, u32* p, u32 v) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p st.relaxed.gpu.global.u32 [%0], %1; }" ::"l"(p), "r"(v),
               "r"(really)
               : "memory");
}

MS_DEVICE u32 load_device(const u32* p) {
  u32 v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

MS_DEVICE u64 load_device(const u64* p) {
  u64 v;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}

MS_DEVICE void store_device(u32* p, u32 v) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

MS_DEVICE void store_device(u64* p, u64 v) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

MS_DEVICE u32 load_acquire_device(const u32* p) {
  u32 v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

MS_DEVICE void store_release_device(u32* p, u32 v) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

/// Of device memory or the block's own.
MS_DEVICE u64 load_acquire(const u64* p) {
  u64 v;
  asm volatile("ld.acquire.gpu.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}

MS_DEVICE void store_release(u64* p, u64 v) {
  asm volatile("st.release.gpu.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

/// 16 bytes that nobody writes in this launch, past the first-level cache. Volatile, so that the compiler leaves such
/// loads together and ahead of their use.
MS_DEVICE float4 load_once_16(const float* p) {
  float4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(p));
  return v;
}

/// Words between ranks, which may be several GPUs.
MS_DEVICE u32 load_system(const u32* p) {
  u32 v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

MS_DEVICE u64 load_system(const u64* p) {
  u64 v;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}

MS_DEVICE void store_system(u32* p, u32 v) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

MS_DEVICE void store_system(u64* p, u64 v) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

/// The value before.
MS_DEVICE u32 add_system(u32* p, u32 v) {
  u32 before;
  asm volatile("atom.relaxed.sys.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(p), "r"(v) : "memory");
  return before;
}

/// v, where 0 stands.
MS_DEVICE void set_once_system(u32* p, u32 v) {
  asm volatile("{ .reg .b32 old; atom.relaxed.sys.global.cas.b32 old, [%0], 0, %1; }" ::"l"(p), "r"(v) : "memory");
}

/// Everything that this thread has seen or written before is visible in the device before what it writes after; and
/// what it reads after is no older than what it read before (the compiler also drops the first-level cache here).
MS_DEVICE void fence_device() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

MS_DEVICE void fence_block() { asm volatile("fence.acq_rel.cta;" ::: "memory"); }

MS_DEVICE void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

/// 16 bytes from device to shared memory through the second-level cache, without waiting; `copies_done` waits.
MS_DEVICE void copy_16(u32 shared, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
}

MS_DEVICE void copies_done() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/// Host memory is only ever stored to in aligned 8-byte words: over PCIe nothing wider or read-modify-write is atomic.
MS_DEVICE void store_host(u64* p, u64 v) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

MS_DEVICE u64 load_host(const u64* p) {
  u64 v;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}

MS_DEVICE u8 load_host(const u8* p) {
  u32 v;
  asm volatile("ld.relaxed.sys.global.u8 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return static_cast<u8>(v);
}

/// The same in all 32 lanes, read by one of them: a read of host memory is a round trip over PCIe for each that asks.
template <class T>
MS_DEVICE T warp_load_host(const T* p) {
  T v = 0;
  if (lane_id() == 0) v = load_host(p);
  return static_cast<T>(__shfl_sync(FULL_WARP, static_cast<u64>(v), 0));
}

}  // namespace ms

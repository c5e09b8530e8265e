// In the place of capture/device/ptx.cuh: the same functions for the executor of this folder. Every access that another
// thread may see is one where somebody else may go on.
#pragma once
#include "cuda.h"

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

#define MS_DEVICE __device__ __forceinline__

/// One for each block, found by where its declaration stands.
#define MS_SHARED(type, name) \
  static const char name##_tag = 0; \
  type& name = *static_cast<type*>(simt::static_shared(&name##_tag, sizeof(type)))

namespace ms {

constexpr u32 FULL_WARP = 0xffffffffu;

MS_DEVICE unsigned char* block_memory() { return simt::dynamic_shared(); }

MS_DEVICE u32 opaque(u32 v) { return v; }
MS_DEVICE u64 opaque(u64 v) { return v; }

MS_DEVICE u64 device_time() {
  simt::touch();
  return simt::clock_ns();
}
MS_DEVICE u32 device_time_low() { return static_cast<u32>(device_time()); }
MS_DEVICE u32 multiprocessor() { return simt::processor(); }
MS_DEVICE u64 warp_time(SIMT_HERE) { return __shfl_sync(FULL_WARP, device_time(), 0, 32, file, line); }
MS_DEVICE u32 lane_id() { return simt::lane->index; }
MS_DEVICE u32 lanes_below() { return (1u << lane_id()) - 1; }

MS_DEVICE void barrier(int id, int threads, SIMT_HERE) {
  simt::barrier(static_cast<u32>(id), static_cast<u32>(threads), "barrier", file, line);
}

// --- shared memory: by an offset into the arena, checked -----------------------------------------------------------

template <class T>
MS_DEVICE T& simt_shared(u32 address) {
  simt::touch();
  return *static_cast<T*>(simt::at_shared(address, sizeof(T)));
}

MS_DEVICE u32 shared_address(const void* p) { return static_cast<u32>(static_cast<const char*>(p) - simt::arena); }
MS_DEVICE u32 load_shared(u32 address) { return simt_shared<volatile u32>(address); }
MS_DEVICE uint2 load_shared_8(u32 address) { return simt_shared<uint2>(address); }
MS_DEVICE uint4 load_shared_16(u32 address) { return simt_shared<uint4>(address); }
MS_DEVICE void store_shared(u32 address, u32 v) { simt_shared<volatile u32>(address) = v; }
MS_DEVICE void store_shared_if(u32 really, u32 address, u32 v) {
  if (really) store_shared(address, v);
}
MS_DEVICE void store_shared_16(u32 address, u32 x, u32 y, u32 z, u32 w) {
  simt_shared<uint4>(address) = make_uint4(x, y, z, w);
}
MS_DEVICE void store_shared_16_if(u32 really, u32 address, u32 x, u32 y, u32 z, u32 w) {
  if (really) store_shared_16(address, x, y, z, w);
}
MS_DEVICE void copy_16(u32 shared, const void* from) { simt_shared<uint4>(shared) = *static_cast<const uint4*>(from); }
MS_DEVICE void copies_done() {}

// --- device memory, in which only fibres are, and host memory, in which other threads are too ------------------------

template <class T>
MS_DEVICE T* simt_seen(T* p) {
  simt::touch();
  if (reinterpret_cast<uintptr_t>(p) % sizeof(T)) simt::fail("%zu bytes at %p, which is not aligned to them", sizeof(T), p);
  return p;
}
template <class T>
MS_DEVICE T simt_load(const T* p) {
  return __atomic_load_n(simt_seen(p), __ATOMIC_ACQUIRE);
}
template <class T>
MS_DEVICE void simt_store(T* p, T v) {
  __atomic_store_n(simt_seen(p), v, __ATOMIC_RELEASE);
}

MS_DEVICE void store_device_16(void* p, u32 x, u32 y, u32 z, u32 w) {
  *simt_seen(static_cast<uint4*>(p)) = make_uint4(x, y, z, w);
}
MS_DEVICE uint4 load_device_16(const void* p) { return *simt_seen(static_cast<const uint4*>(p)); }
MS_DEVICE void store_device_16_if(u32 really, void* p, u32 x, u32 y, u32 z, u32 w) {
  if (really) store_device_16(p, x, y, z, w);
}
MS_DEVICE uint2 load_device_8(const void* p) { return *simt_seen(static_cast<const uint2*>(p)); }
MS_DEVICE u32 load_device(const u32* p) { return simt_load(p); }
MS_DEVICE u64 load_device(const u64* p) { return simt_load(p); }
MS_DEVICE void store_device(u32* p, u32 v) { simt_store(p, v); }
MS_DEVICE void store_device(u64* p, u64 v) { simt_store(p, v); }
MS_DEVICE void store_device_if(u32 really, u32* p, u32 v) {
  if (really) store_device(p, v);
}
MS_DEVICE u32 load_acquire_device(const u32* p) { return simt_load(p); }
MS_DEVICE void store_release_device(u32* p, u32 v) { simt_store(p, v); }
MS_DEVICE u64 load_acquire(const u64* p) { return simt_load(p); }
MS_DEVICE void store_release(u64* p, u64 v) { simt_store(p, v); }
MS_DEVICE float4 load_once_16(const float* p) { return *reinterpret_cast<const float4*>(p); }

MS_DEVICE u32 load_system(const u32* p) { return simt_load(p); }
MS_DEVICE u64 load_system(const u64* p) { return simt_load(p); }
MS_DEVICE void store_system(u32* p, u32 v) { simt_store(p, v); }
MS_DEVICE void store_system(u64* p, u64 v) { simt_store(p, v); }
MS_DEVICE u32 add_system(u32* p, u32 v) { return __atomic_fetch_add(simt_seen(p), v, __ATOMIC_ACQ_REL); }
MS_DEVICE void set_once_system(u32* p, u32 v) {
  u32 none = 0;
  __atomic_compare_exchange_n(simt_seen(p), &none, v, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

MS_DEVICE void fence_device() { __threadfence(); }
MS_DEVICE void fence_block() { __threadfence_block(); }
MS_DEVICE void fence_system() { __threadfence_system(); }

MS_DEVICE void store_host(u64* p, u64 v) { simt_store(p, v); }
MS_DEVICE u64 load_host(const u64* p) { return simt_load(p); }
MS_DEVICE u8 load_host(const u8* p) { return simt_load(p); }

template <class T>
MS_DEVICE T warp_load_host(const T* p, SIMT_HERE) {
  T v = 0;
  if (lane_id() == 0) v = load_host(p);
  return static_cast<T>(__shfl_sync(FULL_WARP, static_cast<u64>(v), 0, 32, file, line));
}

}  // namespace ms

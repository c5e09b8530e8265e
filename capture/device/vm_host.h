// A warp of 32 lanes in lockstep on a CPU, for vm_warp.cuh: what a monitor runs, under a CPU's sanitizers.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

#define MS_DEVICE inline
#define MS_LANES(lane) for (u32 lane = 0; lane < 32; lane++)

namespace ms {

typedef int32_t s32;
typedef int64_t s64;

template <class T>
struct Lanes {
  T of[32];
  T& operator[](u32 lane) { return of[lane]; }
  const T& operator[](u32 lane) const { return of[lane]; }
};

inline u32 ballot(const Lanes<bool>& x) {
  u32 mask = 0;
  MS_LANES(lane) mask |= static_cast<u32>(x[lane]) << lane;
  return mask;
}

inline u32 least(const Lanes<u32>& x) {
  u32 low = x[0];
  MS_LANES(lane) low = x[lane] < low ? x[lane] : low;
  return low;
}

inline u64 total(const Lanes<u64>& x) {
  u64 sum = 0;
  MS_LANES(lane) sum += x[lane];
  return sum;
}

template <class T>
inline T lane_value(const Lanes<T>& x, u32 lane) {
  return x[lane];
}

inline void warp_sync() {}

inline u32 bits_in(u32 mask) { return static_cast<u32>(__builtin_popcount(mask)); }
inline u32 first_bit(u32 mask) { return static_cast<u32>(__builtin_ctz(mask)); }
inline u32 leading_zeros(u64 x) { return x ? static_cast<u32>(__builtin_clzll(x)) : 64; }
inline void pause_briefly() {}

// Two monitors may be two threads here.
inline u64 atomic_add(u64* p, u64 v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
inline u64 atomic_cas(u64* p, u64 old, u64 v) {
  __atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  return old;
}
inline u64 atomic_min(u64* p, u64 v) {
  u64 old = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (v < old && !__atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return old;
}
inline u64 atomic_max(u64* p, u64 v) {
  u64 old = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (v > old && !__atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return old;
}
inline u64 load_relaxed(const u64* p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
inline u64 load_acquire(const u64* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
inline void store_release(u64* p, u64 v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }

}  // namespace ms

// CUDA's vocabulary for a C++ compiler, in terms of executor.h: as much of it as the device code uses.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>

#include "executor.h"

// Behind every standard header: some of them use words like these.
#define __device__
#define __global__ __attribute__((visibility("default")))
#define __constant__ __attribute__((visibility("default")))
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

#define threadIdx (::simt::lane->thread)
#define blockIdx (::simt::block_index())
#define blockDim (::simt::block_size())
#define gridDim (::simt::grid_size())

#define SIMT_INLINE inline __attribute__((always_inline))
#define SIMT_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
SIMT_INLINE uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
SIMT_INLINE uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
SIMT_INLINE float2 make_float2(float x, float y) { return {x, y}; }
SIMT_INLINE float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// --- arithmetic --------------------------------------------------------------------------------------------------

template <class A, class B>
SIMT_INLINE std::common_type_t<A, B> min(A a, B b) {
  const std::common_type_t<A, B> x = a, y = b;
  return y < x ? y : x;
}
template <class A, class B>
SIMT_INLINE std::common_type_t<A, B> max(A a, B b) {
  const std::common_type_t<A, B> x = a, y = b;
  return x < y ? y : x;
}
SIMT_INLINE int __popc(unsigned x) { return __builtin_popcount(x); }
SIMT_INLINE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
SIMT_INLINE int __ffs(int x) { return __builtin_ffs(x); }
SIMT_INLINE int __ffsll(long long x) { return __builtin_ffsll(x); }
SIMT_INLINE int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
SIMT_INLINE int __clzll(long long x) { return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64; }
SIMT_INLINE float rsqrtf(float x) { return 1.0f / sqrtf(x); }
SIMT_INLINE float __expf(float x) { return expf(x); }
SIMT_INLINE float __logf(float x) { return logf(x); }
SIMT_INLINE float __fdividef(float x, float y) { return x / y; }
SIMT_INLINE float __int_as_float(int x) {
  float f;
  memcpy(&f, &x, 4);
  return f;
}
SIMT_INLINE int __float_as_int(float f) {
  int x;
  memcpy(&x, &f, 4);
  return x;
}
SIMT_INLINE float __uint_as_float(unsigned x) { return __int_as_float(static_cast<int>(x)); }
SIMT_INLINE unsigned __float_as_uint(float f) { return static_cast<unsigned>(__float_as_int(f)); }

// --- memory ------------------------------------------------------------------------------------------------------

template <class T>
SIMT_INLINE T __ldg(const T* p) {
  return *p;
}
template <class T>
SIMT_INLINE T __ldcg(const T* p) {
  return *p;
}
template <class T>
SIMT_INLINE void __stcg(T* p, T v) {
  *p = v;
}

SIMT_INLINE void __threadfence() { simt::touch(); }
SIMT_INLINE void __threadfence_block() { simt::touch(); }
SIMT_INLINE void __threadfence_system() {
  simt::touch();
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

// Host memory is shared with other threads: what is atomic on the device is so here.
template <class T, class F>
SIMT_INLINE T simt_atomic(T* p, F f) {
  simt::touch();
  T old = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(p, &old, f(old), false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
  }
  return old;
}
template <class T, class V>
SIMT_INLINE T atomicAdd(T* p, V v) {
  return simt_atomic(p, [v](T old) { return static_cast<T>(old + static_cast<T>(v)); });
}
template <class V>
SIMT_INLINE float atomicAdd(float* p, V v) {
  simt::touch();
  const float old = *p;
  *p = old + v;
  return old;
}
template <class T, class V>
SIMT_INLINE T atomicSub(T* p, V v) {
  return simt_atomic(p, [v](T old) { return static_cast<T>(old - static_cast<T>(v)); });
}
template <class T, class V>
SIMT_INLINE T atomicExch(T* p, V v) {
  return simt_atomic(p, [v](T) { return static_cast<T>(v); });
}
template <class T, class V>
SIMT_INLINE T atomicMin(T* p, V v) {
  return simt_atomic(p, [v](T old) { return min(old, static_cast<T>(v)); });
}
template <class T, class V>
SIMT_INLINE T atomicMax(T* p, V v) {
  return simt_atomic(p, [v](T old) { return max(old, static_cast<T>(v)); });
}
template <class T, class V>
SIMT_INLINE T atomicAnd(T* p, V v) {
  return simt_atomic(p, [v](T old) { return static_cast<T>(old & static_cast<T>(v)); });
}
template <class T, class V>
SIMT_INLINE T atomicOr(T* p, V v) {
  return simt_atomic(p, [v](T old) { return static_cast<T>(old | static_cast<T>(v)); });
}
template <class T, class V>
SIMT_INLINE T atomicXor(T* p, V v) {
  return simt_atomic(p, [v](T old) { return static_cast<T>(old ^ static_cast<T>(v)); });
}
template <class T, class E, class V>
SIMT_INLINE T atomicCAS(T* p, E expected, V v) {
  simt::touch();
  T old = static_cast<T>(expected);
  __atomic_compare_exchange_n(p, &old, static_cast<T>(v), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return old;
}

// --- collectives and time ----------------------------------------------------------------------------------------

template <class T>
SIMT_INLINE T simt_shuffle(unsigned mask, T v, unsigned from, const char* what, const char* file, int line) {
  static_assert(sizeof(T) <= 8, "at most 8 bytes");
  uint64_t word = 0;
  memcpy(&word, &v, sizeof v);
  word = simt::collective(simt::SHUFFLE, mask, word, from, what, file, line);
  memcpy(&v, &word, sizeof v);
  return v;
}
/// A lane of the same group of `width`; one beyond it gives the lane its own value.
SIMT_INLINE unsigned simt_lane(int wanted, int width) {
  const int own = static_cast<int>(simt::lane->index), first = own & ~(width - 1);
  return static_cast<unsigned>(wanted < first || wanted >= first + width ? own : wanted);
}
template <class T>
SIMT_INLINE T __shfl_sync(unsigned mask, T v, int from, int width = 32, SIMT_HERE) {
  const int own = static_cast<int>(simt::lane->index);
  return simt_shuffle(mask, v, static_cast<unsigned>((own & ~(width - 1)) + (from & (width - 1))), "__shfl_sync", file,
                      line);
}
template <class T>
SIMT_INLINE T __shfl_xor_sync(unsigned mask, T v, int bits, int width = 32, SIMT_HERE) {
  const int own = static_cast<int>(simt::lane->index);
  return simt_shuffle(mask, v, simt_lane(own ^ bits, width), "__shfl_xor_sync", file, line);
}
template <class T>
SIMT_INLINE T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32, SIMT_HERE) {
  const int own = static_cast<int>(simt::lane->index);
  return simt_shuffle(mask, v, simt_lane(own - static_cast<int>(by), width), "__shfl_up_sync", file, line);
}
template <class T>
SIMT_INLINE T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32, SIMT_HERE) {
  const int own = static_cast<int>(simt::lane->index);
  return simt_shuffle(mask, v, simt_lane(own + static_cast<int>(by), width), "__shfl_down_sync", file, line);
}
SIMT_INLINE unsigned __ballot_sync(unsigned mask, int holds, SIMT_HERE) {
  return static_cast<unsigned>(simt::collective(simt::BALLOT, mask, holds != 0, 0, "__ballot_sync", file, line));
}
SIMT_INLINE int __any_sync(unsigned mask, int holds, SIMT_HERE) {
  return simt::collective(simt::BALLOT, mask, holds != 0, 0, "__any_sync", file, line) != 0;
}
SIMT_INLINE int __all_sync(unsigned mask, int holds, SIMT_HERE) {
  return simt::collective(simt::BALLOT, mask, holds == 0, 0, "__all_sync", file, line) == 0;
}
SIMT_INLINE void __syncwarp(unsigned mask = 0xffffffffu, SIMT_HERE) {
  simt::collective(simt::SYNC, mask, 0, 0, "__syncwarp", file, line);
}
#define SIMT_REDUCE(name, unsigned_kind, signed_kind)                                                              \
  SIMT_INLINE unsigned name(unsigned mask, unsigned v, SIMT_HERE) {                                                \
    return static_cast<unsigned>(simt::collective(simt::unsigned_kind, mask, v, 0, #name, file, line));            \
  }                                                                                                                \
  SIMT_INLINE int name(unsigned mask, int v, SIMT_HERE) {                                                          \
    const uint64_t word = static_cast<uint64_t>(static_cast<int64_t>(v));                                          \
    return static_cast<int>(simt::collective(simt::signed_kind, mask, word, 0, #name, file, line));                \
  }
SIMT_REDUCE(__reduce_add_sync, ADD, ADD)
SIMT_REDUCE(__reduce_min_sync, LEAST, LEAST_SIGNED)
SIMT_REDUCE(__reduce_max_sync, MOST, MOST_SIGNED)
SIMT_REDUCE(__reduce_and_sync, AND, AND)
SIMT_REDUCE(__reduce_or_sync, OR, OR)
SIMT_REDUCE(__reduce_xor_sync, XOR, XOR)
template <class T>
SIMT_INLINE unsigned __match_any_sync(unsigned mask, T v, SIMT_HERE) {
  uint64_t word = 0;
  memcpy(&word, &v, sizeof v);
  return static_cast<unsigned>(simt::collective(simt::MATCH, mask, word, 0, "__match_any_sync", file, line));
}
SIMT_INLINE void __syncthreads(SIMT_HERE) { simt::barrier(0, simt::block_threads(), "__syncthreads", file, line); }
SIMT_INLINE void __nanosleep(unsigned ns) { simt::sleep(ns); }
SIMT_INLINE long long clock64() {
  simt::touch();
  return static_cast<long long>(simt::clock_ns());
}

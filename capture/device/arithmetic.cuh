// What the operators share: their part of shared memory, 16-byte accesses, dot products, sums over the block.
#pragma once
#include "engine.cuh"

namespace ms {

/// Operators, numbered as capture/engines/graph.py numbers them.
enum Op : u32 {
  EMBED = 1, NORM1 = 2, QKV = 3, ATTN = 4, OPROJ = 5, NORM2 = 6, GATE_UP = 7, DOWN = 8,
  FINAL_NORM = 13, LM_HEAD = 14, SAMPLE = 15
};

constexpr u32 ROWS = 8;  // slots that a matrix task takes through its weights at once
constexpr u32 DEPTH = 8;  // 16-byte loads of each column that a lane has under way
constexpr float NORM_EPSILON = 1e-5f;
constexpr u32 REDUCE_WORDS = 16;

/// What the operators use of shared memory: its beginning, engine.operator_bytes in all; the buffer takes the rest.
struct OperatorShared {
  float reduce[REDUCE_WORDS];
  u32 index[REDUCE_WORDS];
  alignas(16) float buffer[4];
};

/// By value: a called function's arguments then stay in registers.
struct Operands {
  u32 slot, at;  // at: of the slot's entry in the plan
  u32 n0, n1, layer;
};

/// Operators are functions of their own in the machine code too: found by name, and apart from what the hooks do to the
/// code around them.
#define MS_OPERATOR static __device__ __noinline__

MS_DEVICE OperatorShared& operator_shared() { return *reinterpret_cast<OperatorShared*>(block_memory()); }

MS_DEVICE void together() { barrier(COMPUTE_BARRIER, COMPUTE_THREADS); }

MS_DEVICE float4 load4(const float* p) { return __ldcg(reinterpret_cast<const float4*>(p)); }
MS_DEVICE float4 weight4(const float* p) { return __ldg(reinterpret_cast<const float4*>(p)); }
/// A weight that is used once.
MS_DEVICE float4 stream4(const float* p) { return load_once_16(p); }
MS_DEVICE void store4(float* p, float4 v) { *reinterpret_cast<float4*>(p) = v; }
MS_DEVICE float dot(float4 a, float4 b, float c) {
  return fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, c))));
}

/// Sum (or maximum) over the 128 threads, the same in each.
template <bool MAXIMUM>
MS_DEVICE float reduce(float v) {
  for (u32 s = 16; s; s >>= 1) {
    float o = __shfl_xor_sync(FULL_WARP, v, s);
    v = MAXIMUM ? fmaxf(v, o) : v + o;
  }
  OperatorShared& shared = operator_shared();
  together();  // the words may still be in use
  if (lane_id() == 0) shared.reduce[threadIdx.x >> 5] = v;
  together();
  float a = shared.reduce[0], b = shared.reduce[1], c = shared.reduce[2], d = shared.reduce[3];
  return MAXIMUM ? fmaxf(fmaxf(a, b), fmaxf(c, d)) : (a + b) + (c + d);
}

}  // namespace ms

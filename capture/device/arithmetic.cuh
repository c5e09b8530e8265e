// What the operators share: their part of shared memory, 16-byte accesses, dot products, sums over the block.
#pragma once
#include "engine.cuh"

namespace ms {

/// Operators, numbered as capture/engines/graph.py numbers them.
enum Op : u32 {
  EMBED = 1, NORM1 = 2, QKV = 3, ATTN = 4, OPROJ = 5, NORM2 = 6, GATE_UP = 7, DOWN = 8,
  ROUTER = 9, EXPERT_UP = 10, EXPERT_DOWN = 11, COMBINE = 12, FINAL_NORM = 13, LM_HEAD = 14, SAMPLE = 15,
  ATTN_SEND = 16, ATTN_RECV = 17, MLP_SEND = 18, MLP_RECV = 19, LOGITS_SEND = 20, LOGITS_RECV = 21
};

constexpr u32 ROWS = 8;  // slots that a matrix task takes through its weights at once
constexpr u32 DEPTH = 8;  // 16-byte loads of each column that a lane has under way
constexpr float NORM_EPSILON = 1e-5f;
constexpr u32 REDUCE_WORDS = 16;

/// What the operators use of shared memory: its beginning, engine.operator_bytes in all; the buffer takes the rest.
struct OperatorShared {
  Shard shard;  // of the block's rank
  alignas(16) float reduce[REDUCE_WORDS];
  u32 index[REDUCE_WORDS];
  float buffer[4];
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

/// Its pointers are taken into registers before a loop that stores: a store might be to shared memory too.
MS_DEVICE const Shard& shard() { return operator_shared().shard; }

/// Before the roles part, by all threads.
MS_DEVICE void copy_shard() {
  const u32* from = reinterpret_cast<const u32*>(engine.shards + own_rank());
  u32* to = reinterpret_cast<u32*>(&operator_shared().shard);
  for (u32 i = threadIdx.x; i < sizeof(Shard) / 4; i += blockDim.x) to[i] = from[i];
}

MS_DEVICE void together() { barrier(COMPUTE_BARRIER, COMPUTE_THREADS); }

MS_DEVICE float4 load4(const float* p) { return __ldcg(reinterpret_cast<const float4*>(p)); }
MS_DEVICE float4 weight4(const float* p) { return __ldg(reinterpret_cast<const float4*>(p)); }
/// A weight that is used once.
MS_DEVICE float4 stream4(const float* p) { return load_once_16(p); }
MS_DEVICE void store4(float* p, float4 v) { *reinterpret_cast<float4*>(p) = v; }
MS_DEVICE float dot(float4 a, float4 b, float c) {
  return fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, c))));
}

/// A value and whose it is. Of equal values the lower index is the better.
struct Best {
  float value;
  u32 index;

  MS_DEVICE void take(Best other) {
    if (other.value > value || (other.value == value && other.index < index)) *this = other;
  }
  /// The best of the warp's, the same in each lane.
  MS_DEVICE void of_warp() {
    for (u32 s = 16; s; s >>= 1) {
      const float v = __shfl_xor_sync(FULL_WARP, value, s);
      const u32 i = __shfl_xor_sync(FULL_WARP, index, s);
      take({v, i});
    }
  }
};

/// Worse than any value. index: what it comes to if there is none.
MS_DEVICE Best none(u32 index) { return {-INFINITY, index}; }

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

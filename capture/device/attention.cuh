// Attention over the cache: one head of one slot at a time.
#pragma once
#include "arithmetic.cuh"

namespace ms {

/// One head of one slot: rotate, append this position to the cache, attend over all positions up to it. The first head
/// of a group appends; this step's key and value are taken from the projection, so heads need no order among them.
MS_OPERATOR void attend(Operands o) {
  const u32 hd = engine.head_dim, half = hd / 2, tid = threadIdx.x, head = o.n0;
  const u32 group = engine.heads / engine.kv_heads, kv = head / group;
  const u32 position = __ldg(engine.position + o.at), row = __ldg(engine.cache_row + o.at);
  float *q = operator_shared().buffer, *key = q + hd, *value = key + hd;
  float *mix = value + hd, *scores = mix + COMPUTE_THREADS * 4;
  const u64 width = (engine.heads + 2 * engine.kv_heads) * hd;
  const Shard& rank = shard();
  const float* projected = rank.qkv + o.slot * width;
  const float* new_key = projected + (engine.heads + kv) * hd;
  const float* new_value = projected + (engine.heads + engine.kv_heads + kv) * hd;
  const u64 line = (static_cast<u64>(o.layer) * engine.cache_rows + row) * engine.kv_heads + kv;
  const u64 cache = line * engine.context * hd;
  float *keys = rank.keys + cache, *values = rank.values + cache, *to = rank.heads_out;
  if (tid < half) {
    const float* turn = engine.rotary + (position * half + tid) * 2;
    float cosine = __ldg(turn), sine = __ldg(turn + 1);
    float a = __ldcg(projected + head * hd + tid), b = __ldcg(projected + head * hd + half + tid);
    q[tid] = a * cosine - b * sine, q[tid + half] = b * cosine + a * sine;
    a = __ldcg(new_key + tid), b = __ldcg(new_key + half + tid);
    key[tid] = a * cosine - b * sine, key[tid + half] = b * cosine + a * sine;
  }
  if (tid < hd) value[tid] = __ldcg(new_value + tid);
  together();
  if (head % group == 0 && tid < hd) {
    keys[static_cast<u64>(position) * hd + tid] = key[tid];
    values[static_cast<u64>(position) * hd + tid] = value[tid];
  }
  const float scale = rsqrtf(static_cast<float>(hd));
  float most = -INFINITY;
  for (u32 base = 0; base <= position; base += 32) {  // four threads a position
    u32 p = base + tid / 4, part = (tid & 3) * 4;
    float s = 0;
    if (p <= position)
      for (u32 i = part; i < hd; i += 16) {
        float4 k4 = p == position ? *reinterpret_cast<float4*>(key + i) : load4(keys + static_cast<u64>(p) * hd + i);
        s = dot(*reinterpret_cast<float4*>(q + i), k4, s);
      }
    s += __shfl_xor_sync(FULL_WARP, s, 1);
    s += __shfl_xor_sync(FULL_WARP, s, 2);
    s *= scale;
    if (p <= position) {
      if (part == 0) scores[p] = s;
      most = fmaxf(most, s);
    }
  }
  most = reduce<true>(most);
  float total = 0;
  for (u32 p = tid; p <= position; p += COMPUTE_THREADS) {
    float e = expf(scores[p] - most);
    scores[p] = e;
    total += e;
  }
  total = reduce<false>(total);
  const u32 lanes = hd / 4, groups = COMPUTE_THREADS / lanes, g = tid / lanes, i = tid % lanes * 4;
  float4 sum = make_float4(0, 0, 0, 0);
  for (u32 p = g; p <= position; p += groups) {
    float4 v = p == position ? *reinterpret_cast<float4*>(value + i) : load4(values + static_cast<u64>(p) * hd + i);
    float e = scores[p];
    sum = make_float4(fmaf(e, v.x, sum.x), fmaf(e, v.y, sum.y), fmaf(e, v.z, sum.z), fmaf(e, v.w, sum.w));
  }
  store4(mix + tid * 4, sum);
  together();
  if (tid < hd) {
    float out = 0;
    for (u32 j = 0; j < groups; j++) out += mix[j * hd + tid];
    to[(static_cast<u64>(o.slot) * engine.heads + head) * hd + tid] = out / total;
  }
}

}  // namespace ms

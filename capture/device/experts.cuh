// A mixture of experts: which experts a slot's token goes to is decided while the kernel runs, so what an expert's task
// has to do is known only when it starts. An expert that nobody chose costs its tasks a look at the routes.
//
// The chosen ones' weights are the softmax of their router logits, renormalised over them: the others' share cancels,
// so that only the chosen logits are needed. Choosing by logits is choosing by softmax; of equal ones the lower expert
// wins. Every rank decides for itself, on the same values in the same order, and so all decide alike.
#pragma once
#include "faults.cuh"
#include "matrix.cuh"

namespace ms {

constexpr u32 MOST_CHOSEN = 32;  // top_k: a lane holds one choice each

/// Choose top_k experts for a slot's token.
MS_OPERATOR void router(Operands o, u32 iteration) {
  const u32 d = engine.d_model, experts = engine.experts, chosen = engine.top_k;
  const float* x = shard().x + o.slot * d;
  float *staged = operator_shared().buffer, *score = staged + d;
  for (u32 i = threadIdx.x * 4; i < d; i += COMPUTE_THREADS * 4) store4(staged + i, load4(x + i));
  together();
  for (u32 e = threadIdx.x >> 5; e < experts; e += COMPUTE_THREADS / 32) {
    const float* w = engine.w_router + (static_cast<u64>(o.layer) * experts + e) * d;
    float sum = 0;
    for (u32 i = lane_id() * 4; i < d; i += 128) sum = dot(weight4(w + i), *reinterpret_cast<float4*>(staged + i), sum);
    __syncwarp();
    for (u32 s = 16; s; s >>= 1) sum += __shfl_xor_sync(FULL_WARP, sum, s);
    if (lane_id() == 0) score[e] = sum;
  }
  together();
  if (threadIdx.x >= 32) return;
  const u32 forced = engine.faulty ? skewed(o.layer, o.slot, iteration) : experts;
  Best mine = none(0);  // the choice of this lane's number
  for (u32 j = 0; j < chosen; j++) {
    Best best = none(experts - 1);
    for (u32 e = lane_id(); e < experts; e += 32) best.take({score[e], e});
    __syncwarp();
    best.of_warp();
    if (j == 0 && forced < experts) best = {score[forced], forced};
    __syncwarp();
    if (lane_id() == 0) score[best.index] = -INFINITY;  // taken
    if (lane_id() == j) mine = best;
    __syncwarp();
  }
  const bool one = lane_id() < chosen;
  float most = one ? mine.value : -INFINITY;
  for (u32 s = 16; s; s >>= 1) most = fmaxf(most, __shfl_xor_sync(FULL_WARP, most, s));
  const float weight = one ? expf(mine.value - most) : 0;
  float total = weight;
  for (u32 s = 16; s; s >>= 1) total += __shfl_xor_sync(FULL_WARP, total, s);
  if (!one) return;
  const Shard& rank = shard();
  rank.route[o.slot * chosen + lane_id()] = mine.index;
  rank.route_weight[o.slot * chosen + lane_id()] = weight / total;
  if (rank.kept_routes) {
    const u64 row = (static_cast<u64>(iteration) * engine.layers + o.layer) * engine.slots + o.slot;
    rank.kept_routes[row * chosen + lane_id()] = mine.index;
  }
}

/// The rows of an expert's product: a row for each choice of each slot (slot * top_k + which), of which those are
/// listed, in shared memory and ascending, that fell on the expert.
struct RoutedRows {
  u32 count;
  const u32* list;
  u32 fold;  // choices to a row of the input: top_k where that is by slot

  MS_DEVICE u32 output(u32 i) const { return list[i]; }
  MS_DEVICE void stage(u32 to, const float* in, u32 k, u32 first, u32 rows) const {
    for (u32 r = 0; r < rows; r++) {
      const float* from = in + static_cast<u64>(list[first + r] / fold) * k;
      for (u32 i = threadIdx.x * 4; i < k; i += COMPUTE_THREADS * 4) copy_16(to + (r * k + i) * 4, from + i);
    }
  }
};

/// List the choices that fell on an expert in this iteration; an empty slot has none, whatever stands there.
MS_DEVICE u32 list_routed(u32 expert, u32 iteration, u32* list) {
  OperatorShared& shared = operator_shared();
  if (threadIdx.x < 32) {
    const u32 chosen = engine.top_k;
    const u32 *route = shard().route, *request = engine.request + static_cast<u64>(iteration) * engine.slots;
    u32 count = 0;
    for (u32 base = 0; base < engine.slots; base += 32) {
      const u32 slot = base + lane_id();
      u32 row = ~0u;
      if (slot < engine.slots && __ldg(request + slot))
        for (u32 j = 0; j < chosen; j++)
          if (__ldcg(route + slot * chosen + j) == expert) row = slot * chosen + j;
      __syncwarp();
      const u32 there = __ballot_sync(FULL_WARP, row != ~0u);
      if (row != ~0u) list[count + __popc(there & lanes_below())] = row;
      count += __popc(there);
    }
    if (lane_id() == 0) shared.index[0] = count;
  }
  together();
  return shared.index[0];
}

/// Columns n0 to n1 of an expert's gated half (`down` not) or of its way back, for the slots that chose it.
MS_OPERATOR void expert(Operands o, u32 which, u32 iteration, bool down) {
  const Shard& rank = shard();
  const u32 d = engine.d_model, ffn = engine.ffn, padded = (engine.slots + 3) & ~3u;
  u32* list = reinterpret_cast<u32*>(operator_shared().buffer);
  const u32 count = list_routed(which, iteration, list);
  if (count == 0) return;
  float* staged = operator_shared().buffer + padded;
  const u32 own = engine.experts / engine.ranks;
  const u64 at = (static_cast<u64>(o.layer) * own + which - rank.rank * own) * ffn * d;
  const RoutedRows rows{count, list, down ? 1 : engine.top_k};
  const float *in = down ? rank.act : rank.x, *w = (down ? rank.w_down : rank.w_gate) + at;
  product(rows, staged, o.n0, o.n1, in, down ? ffn : d, w, down ? nullptr : rank.w_up + at,
          down ? rank.expert_out : rank.act, down ? d : ffn, nullptr, 0);
}

/// The weighted sum of a slot's experts, of those that this rank has.
MS_OPERATOR void combine(Operands o) {
  const Shard& rank = shard();
  const u32 d = engine.d_model, chosen = engine.top_k, own = engine.experts / engine.ranks, first = rank.rank * own;
  const u32* route = rank.route + o.slot * chosen;
  const float* weight = rank.route_weight + o.slot * chosen;
  const float* from = rank.expert_out + static_cast<u64>(o.slot) * chosen * d;
  float* to = rank.partial + o.slot * d;
  for (u32 i = threadIdx.x * 4; i < d; i += COMPUTE_THREADS * 4) {
    float4 sum = make_float4(0, 0, 0, 0);
    for (u32 j = 0; j < chosen; j++) {
      if (__ldcg(route + j) - first >= own) continue;
      const float share = __ldcg(weight + j);
      const float4 v = load4(from + static_cast<u64>(j) * d + i);
      sum = make_float4(fmaf(share, v.x, sum.x), fmaf(share, v.y, sum.y), fmaf(share, v.z, sum.z),
                        fmaf(share, v.w, sum.w));
    }
    store4(to + i, sum);
  }
}

}  // namespace ms

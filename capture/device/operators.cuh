// The arithmetic of a decode step, in fp32, one task at a time by 128 threads.
//
// A pre-norm transformer: RMSNorm, rotary positions (halves rotated), grouped-query attention over a cache, a gated
// SiLU MLP or a mixture of experts that are such, greedy sampling. Tensor-parallel: a rank has some of the heads, of
// the MLP's columns (or whole experts) and of the vocabulary; partial sums are exchanged. Weights are stored [output,
// input], so that a tile of output columns is one piece.
// Weights are constant and read through the read-only path; activations and the cache were written by other
// multiprocessors in this launch and are read through the second-level cache.
//
// A slot without a request is left alone: its rows keep finite values that nobody reads.
#pragma once
#include "attention.cuh"
#include "exchange.cuh"
#include "experts.cuh"

namespace ms {

MS_OPERATOR void embed(Operands o) {
  u32 forced = __ldg(engine.forced_token + o.at), row = __ldg(engine.cache_row + o.at);
  const Shard& rank = shard();
  u32 token = forced != ~0u ? forced : __ldcg(rank.token + row);
  const float* from = engine.embedding + static_cast<u64>(token) * engine.d_model;
  float* to = rank.residual + o.slot * engine.d_model;
  for (u32 i = threadIdx.x * 4; i < engine.d_model; i += COMPUTE_THREADS * 4) store4(to + i, weight4(from + i));
  if (threadIdx.x == 0) rank.used_token[o.at] = token;
}

/// residual += partial (unless the residual was just made), x = residual / rms * weight.
MS_OPERATOR void norm(Operands o, const float* weight, bool add) {
  u32 d = engine.d_model, base = o.slot * d;
  float *residual = shard().residual + base, *x = shard().x + base, *partial = shard().partial + base;
  float squares = 0;
  for (u32 i = threadIdx.x * 4; i < d; i += COMPUTE_THREADS * 4) {
    float4 r = load4(residual + i);
    if (add) {
      float4 p = load4(partial + i);
      r = make_float4(r.x + p.x, r.y + p.y, r.z + p.z, r.w + p.w);
      store4(residual + i, r);
    }
    store4(operator_shared().buffer + i, r);
    squares = dot(r, r, squares);
  }
  float scale = rsqrtf(reduce<false>(squares) / d + NORM_EPSILON);
  for (u32 i = threadIdx.x * 4; i < d; i += COMPUTE_THREADS * 4) {
    float4 r = *reinterpret_cast<float4*>(operator_shared().buffer + i), g = weight4(weight + i);
    r = make_float4(r.x * scale, r.y * scale, r.z * scale, r.w * scale);
    store4(x + i, make_float4(r.x * g.x, r.y * g.y, r.z * g.z, r.w * g.w));
  }
}

/// The largest logit; of equal ones the first. With several ranks they have found it together already.
MS_OPERATOR void sample(Operands o) {
  const Shard& rank = shard();
  const u32 row = __ldg(engine.cache_row + o.at);
  if (engine.ranks > 1) {
    if (threadIdx.x == 0) rank.token[row] = __ldcg(rank.best + o.slot).y;
    return;
  }
  const float* logits = rank.logits + static_cast<u64>(o.slot) * engine.vocab;
  Best best = none(0);
  for (u32 i = threadIdx.x; i < engine.vocab; i += COMPUTE_THREADS) best.take({__ldcg(logits + i), i});
  __syncwarp();
  best.of_warp();
  OperatorShared& shared = operator_shared();
  if (lane_id() == 0) shared.reduce[threadIdx.x >> 5] = best.value, shared.index[threadIdx.x >> 5] = best.index;
  together();
  if (threadIdx.x == 0) {
    for (u32 i = 1; i < COMPUTE_THREADS / 32; i++) best.take({shared.reduce[i], shared.index[i]});
    rank.token[row] = best.index;
  }
}

MS_DEVICE void execute(const Task& task, u32 iteration) {
  const Shard& rank = shard();
  const u32 d = engine.d_model, attended = engine.heads * engine.head_dim, layer = task.layer;
  const u32 width = attended + 2 * engine.kv_heads * engine.head_dim;
  const u64 gate = static_cast<u64>(layer) * engine.ffn * d;
  u32 at = 0;
  if (task.slot != NO_SLOT) {
    at = iteration * engine.slots + task.slot;
    if (__ldg(engine.request + at) == 0) return;
  }
  const Operands o{task.slot, at, task.n0, task.n1, layer};
  switch (task.op) {
    case EMBED: return embed(o);
    case NORM1: return norm(o, engine.norms + 2 * layer * d, layer != 0);
    case NORM2: return norm(o, engine.norms + (2 * layer + 1) * d, true);
    case FINAL_NORM: return norm(o, engine.norms + 2 * engine.layers * d, true);
    case ATTN: return attend(o);
    case SAMPLE: return sample(o);
    case ROUTER: return router(o, iteration);
    case EXPERT_UP: return expert(o, task.tile >> 16, iteration, false);
    case EXPERT_DOWN: return expert(o, task.tile >> 16, iteration, true);
    case COMBINE: return combine(o);
    default: break;
  }
  if (task.op >= ATTN_SEND) return exchange(task, iteration);
  const float *in = rank.x, *w = nullptr, *up = nullptr;
  float *out = rank.partial, *keep = nullptr;
  u32 k = d, columns = d;
  switch (task.op) {
    case QKV:
      w = rank.w_qkv + static_cast<u64>(layer) * width * d, out = rank.qkv, columns = width;
      break;
    case OPROJ:
      in = rank.heads_out, k = attended, w = rank.w_o + static_cast<u64>(layer) * d * attended;
      break;
    case GATE_UP:
      w = rank.w_gate + gate, up = rank.w_up + gate, out = rank.act, columns = engine.ffn;
      break;
    case DOWN:
      in = rank.act, k = engine.ffn, w = rank.w_down + gate;
      break;
    case LM_HEAD:
      w = rank.w_head, out = rank.logits, columns = engine.vocab_part;
      if (engine.keep_every && iteration % engine.keep_every == 0)
        keep = engine.kept_logits + static_cast<u64>(iteration / engine.keep_every) * engine.slots * engine.vocab +
               rank.rank * engine.vocab_part;
      break;
    default: return;
  }
  matrix(o, in, k, w, up, out, columns, keep);
}

}  // namespace ms

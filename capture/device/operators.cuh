// The arithmetic of a decode step, in fp32, one task at a time by 128 threads.
//
// A pre-norm transformer: RMSNorm, rotary positions (halves rotated), grouped-query attention over a cache, a gated
// SiLU MLP, greedy sampling. Weights are stored [output, input], so that a tile of output columns is one piece.
// Weights are constant and read through the read-only path; activations and the cache were written by other
// multiprocessors in this launch and are read through the second-level cache.
//
// A slot without a request is left alone: its rows keep finite values that nobody reads.
#pragma once
#include "attention.cuh"

namespace ms {

MS_OPERATOR void embed(Operands o) {
  u32 forced = __ldg(engine.forced_token + o.at), row = __ldg(engine.cache_row + o.at);
  u32 token = forced != ~0u ? forced : __ldcg(engine.token + row);
  const float* from = engine.embedding + static_cast<u64>(token) * engine.d_model;
  float* to = engine.residual + o.slot * engine.d_model;
  for (u32 i = threadIdx.x * 4; i < engine.d_model; i += COMPUTE_THREADS * 4) store4(to + i, weight4(from + i));
  if (threadIdx.x == 0) engine.used_token[o.at] = token;
}

/// residual += partial (unless the residual was just made), x = residual / rms * weight.
MS_OPERATOR void norm(Operands o, const float* weight, bool add) {
  u32 d = engine.d_model, base = o.slot * d;
  float squares = 0;
  for (u32 i = threadIdx.x * 4; i < d; i += COMPUTE_THREADS * 4) {
    float4 r = load4(engine.residual + base + i);
    if (add) {
      float4 p = load4(engine.partial + base + i);
      r = make_float4(r.x + p.x, r.y + p.y, r.z + p.z, r.w + p.w);
      store4(engine.residual + base + i, r);
    }
    store4(operator_shared().buffer + i, r);
    squares = dot(r, r, squares);
  }
  float scale = rsqrtf(reduce<false>(squares) / d + NORM_EPSILON);
  for (u32 i = threadIdx.x * 4; i < d; i += COMPUTE_THREADS * 4) {
    float4 r = *reinterpret_cast<float4*>(operator_shared().buffer + i), g = weight4(weight + i);
    r = make_float4(r.x * scale, r.y * scale, r.z * scale, r.w * scale);
    store4(engine.x + base + i, make_float4(r.x * g.x, r.y * g.y, r.z * g.z, r.w * g.w));
  }
}

/// A piece of two columns, N times 128 elements: all its loads are under way before the first is used, since four warps
/// have to cover the memory's latency by themselves.
template <u32 N>
MS_DEVICE void piece2(const float* w0, const float* w1, const float* in, u32 k, float (&sum)[2][ROWS]) {
  float4 a[N], b[N];
#pragma unroll
  for (u32 d = 0; d < N; d++) a[d] = stream4(w0 + d * 128), b[d] = stream4(w1 + d * 128);
#pragma unroll
  for (u32 d = 0; d < N; d++)
#pragma unroll
    for (u32 s = 0; s < ROWS; s++) {
      float4 x = *reinterpret_cast<const float4*>(in + s * k + d * 128);
      sum[0][s] = dot(a[d], x, sum[0][s]);
      sum[1][s] = dot(b[d], x, sum[1][s]);
    }
}

/// Two columns of weights against ROWS rows of input in shared memory; every lane gets all the sums.
MS_DEVICE void columns2(const float* w0, const float* w1, const float* in, u32 k, float (&sum)[2][ROWS]) {
#pragma unroll
  for (u32 s = 0; s < ROWS; s++) sum[0][s] = sum[1][s] = 0;
  u32 i = lane_id() * 4;
  for (; i + 128 * DEPTH <= k + lane_id() * 4; i += 128 * DEPTH) piece2<DEPTH>(w0 + i, w1 + i, in + i, k, sum);
  for (; i < k; i += 128) piece2<1>(w0 + i, w1 + i, in + i, k, sum);
  __syncwarp();
#pragma unroll
  for (u32 s = 0; s < ROWS; s++)
#pragma unroll
    for (u32 step = 16; step; step >>= 1) {
      sum[0][s] += __shfl_xor_sync(FULL_WARP, sum[0][s], step);
      sum[1][s] += __shfl_xor_sync(FULL_WARP, sum[1][s], step);
    }
}

MS_DEVICE float of_lane(const float (&v)[ROWS]) {
  float r = v[0];
#pragma unroll
  for (u32 s = 1; s < ROWS; s++)
    if (lane_id() == s) r = v[s];
  return r;
}

/// out[:, n0:n1] = in @ w, or silu(in @ w) * (in @ up) where `up` is given. `keep`: a second copy, or null.
MS_OPERATOR void matrix(Operands o, const float* in, u32 k, const float* w, const float* up, float* out, u32 width,
                      float* keep) {
  float* staged = operator_shared().buffer;
  u32 warp = threadIdx.x >> 5;
  for (u32 s0 = 0; s0 < engine.slots; s0 += ROWS) {
    u32 rows = min(ROWS, engine.slots - s0);
    if (s0) together();  // the rows before are still being read
    const u32 at = shared_address(staged);
    for (u32 i = threadIdx.x * 4; i < rows * k; i += COMPUTE_THREADS * 4) copy_16(at + i * 4, in + s0 * k + i);
    for (u32 i = rows * k + threadIdx.x; i < ROWS * k; i += COMPUTE_THREADS) staged[i] = 0;
    copies_done();
    together();
    u32 each = up ? 1 : 2;
    for (u32 n = o.n0 + warp * each; n < o.n1; n += 4 * each) {
      float sum[2][ROWS];
      const float* first = w + static_cast<u64>(n) * k;
      bool pair = up || n + 1 < o.n1;
      columns2(first, up ? up + static_cast<u64>(n) * k : pair ? first + k : first, staged, k, sum);
      float a = of_lane(sum[0]), b = of_lane(sum[1]);
      if (up) a = a / (1.0f + __expf(-a)) * b;
      if (lane_id() >= rows) continue;
      u64 at = static_cast<u64>(s0 + lane_id()) * width + n;
      out[at] = a;
      if (keep) keep[at] = a;
      if (!up && pair) {
        out[at + 1] = b;
        if (keep) keep[at + 1] = b;
      }
    }
  }
}

/// The largest logit; of equal ones the first.
MS_OPERATOR void sample(Operands o) {
  const float* logits = engine.logits + static_cast<u64>(o.slot) * engine.vocab;
  float best = -INFINITY;
  u32 which = 0;
  for (u32 i = threadIdx.x; i < engine.vocab; i += COMPUTE_THREADS) {
    float v = __ldcg(logits + i);
    if (v > best) best = v, which = i;
  }
  for (u32 s = 16; s; s >>= 1) {
    float v = __shfl_xor_sync(FULL_WARP, best, s);
    u32 w = __shfl_xor_sync(FULL_WARP, which, s);
    if (v > best || (v == best && w < which)) best = v, which = w;
  }
  OperatorShared& shared = operator_shared();
  if (lane_id() == 0) shared.reduce[threadIdx.x >> 5] = best, shared.index[threadIdx.x >> 5] = which;
  together();
  if (threadIdx.x == 0) {
    for (u32 i = 1; i < 4; i++) {
      float v = shared.reduce[i];
      u32 w = shared.index[i];
      if (v > best || (v == best && w < which)) best = v, which = w;
    }
    engine.token[__ldg(engine.cache_row + o.at)] = which;
  }
}

MS_DEVICE void execute(const Task& task, u32 iteration) {
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
    default: break;
  }
  const float *in = engine.x, *w = nullptr, *up = nullptr;
  float *out = engine.partial, *keep = nullptr;
  u32 k = d, columns = d;
  switch (task.op) {
    case QKV:
      w = engine.w_qkv + static_cast<u64>(layer) * width * d, out = engine.qkv, columns = width;
      break;
    case OPROJ:
      in = engine.heads_out, k = attended, w = engine.w_o + static_cast<u64>(layer) * d * attended;
      break;
    case GATE_UP:
      w = engine.w_gate + gate, up = engine.w_up + gate, out = engine.act, columns = engine.ffn;
      break;
    case DOWN:
      in = engine.act, k = engine.ffn, w = engine.w_down + gate;
      break;
    case LM_HEAD:
      w = engine.w_head, out = engine.logits, columns = engine.vocab;
      if (engine.keep_every && iteration % engine.keep_every == 0)
        keep = engine.kept_logits + static_cast<u64>(iteration / engine.keep_every) * engine.slots * engine.vocab;
      break;
    default: return;
  }
  matrix(o, in, k, w, up, out, columns, keep);
}

}  // namespace ms

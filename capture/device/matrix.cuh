// Products with weights: a tile of output columns for several rows of input at once, so that each weight is read once.
#pragma once
#include "arithmetic.cuh"

namespace ms {

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

/// Every slot's row, one after the other.
struct AllRows {
  u32 count;

  MS_DEVICE u32 output(u32 i) const { return i; }
  MS_DEVICE void stage(u32 to, const float* in, u32 k, u32 first, u32 rows) const {
    for (u32 i = threadIdx.x * 4; i < rows * k; i += COMPUTE_THREADS * 4) copy_16(to + i * 4, in + first * k + i);
  }
};

/// out[rows, n0:n1] = in[rows] @ w, or silu(in @ w) * (in @ up) where `up` is given. in: rows of k, out: of `width`.
/// keep: a second copy, in rows of `keep_width`, or null. staged: shared memory for ROWS rows of input.
template <class Rows>
MS_DEVICE void product(const Rows& rows, float* staged, u32 n0, u32 n1, const float* in, u32 k, const float* w,
                       const float* up, float* out, u32 width, float* keep, u32 keep_width) {
  u32 warp = threadIdx.x >> 5;
  for (u32 s0 = 0; s0 < rows.count; s0 += ROWS) {
    u32 some = min(ROWS, rows.count - s0);
    if (s0) together();  // the rows before are still being read
    rows.stage(shared_address(staged), in, k, s0, some);
    for (u32 i = some * k + threadIdx.x; i < ROWS * k; i += COMPUTE_THREADS) staged[i] = 0;
    copies_done();
    together();
    u32 each = up ? 1 : 2;
    for (u32 n = n0 + warp * each; n < n1; n += 4 * each) {
      float sum[2][ROWS];
      const float* first = w + static_cast<u64>(n) * k;
      bool pair = up || n + 1 < n1;
      columns2(first, up ? up + static_cast<u64>(n) * k : pair ? first + k : first, staged, k, sum);
      float a = of_lane(sum[0]), b = of_lane(sum[1]);
      if (up) a = a / (1.0f + __expf(-a)) * b;
      if (lane_id() >= some) continue;
      const u32 row = rows.output(s0 + lane_id());
      float* to = out + static_cast<u64>(row) * width + n;
      to[0] = a;
      if (!up && pair) to[1] = b;
      if (!keep) continue;
      to = keep + static_cast<u64>(row) * keep_width + n;
      to[0] = a;
      if (!up && pair) to[1] = b;
    }
  }
}

/// A product over all slots.
MS_OPERATOR void matrix(Operands o, const float* in, u32 k, const float* w, const float* up, float* out, u32 width,
                        float* keep) {
  product(AllRows{engine.slots}, operator_shared().buffer, o.n0, o.n1, in, k, w, up, out, width, keep, engine.vocab);
}

}  // namespace ms

// How ranks exchange: each has an inbox in its own memory into which every peer stores its part of a round, and flags
// that say so. A peer may be another GPU, so nothing here reads a peer's memory, and peers are reached by pointers.
//
//   sender     all threads store their part of the data into every peer's inbox, plain stores; the block's barrier; the
//              worker fences the *system* (a device's fence orders stores for readers on this GPU only, the peer's
//              memory and its readers may be on another), which ends the task, and stores the flags, relaxed at system
//              scope: each one aligned 8-byte word
//   receiver   its worker polls the flags at system scope, fences the system, and the block's barrier hands that order
//              to the other threads, which read the inbox through the second-level cache, where peers' stores have gone
//
// An inbox holds two rounds: that of comm generation g in half g & 1. A rank stores generation g only when it has taken
// out g - 1 of its own inbox (`received`), for which every peer had sent g - 1. That peer had, by the same rule, taken
// out g - 2 before: the round whose place is now written. So no round is overwritten before the slowest has read it.
// The generations run on over iterations, and the rule with them; besides, an iteration ends only when each rank has
// taken out its last round, since every SAMPLE comes after that. The rule is checked before each send: a rank that
// would break it ends the run instead.
//
// Sums are taken in the order of ranks on every rank, so that all have the same values, to the last bit.
#pragma once
#include "arithmetic.cuh"

namespace ms {

MS_DEVICE bool sends(u32 op) { return op == ATTN_SEND || op == MLP_SEND || op == LOGITS_SEND; }
MS_DEVICE bool receives(u32 op) { return op == ATTN_RECV || op == MLP_RECV || op == LOGITS_RECV; }

/// A rank's place among the flags of a round, and in units of slots * d_model in its inbox.
MS_DEVICE u32 place_of(u32 generation, u32 sender) { return (generation & 1) * engine.ranks + sender; }

MS_DEVICE float* inbox_of(const Shard& rank, u32 generation, u32 sender) {
  return rank.inbox + static_cast<u64>(place_of(generation, sender)) * engine.slots * engine.d_model;
}

/// Whether the rule holds. All threads ask, and get the same answer.
MS_DEVICE bool may_send(const Shard& own, u32 generation) {
  return load_device(own.received) + 1 == generation;
}

MS_DEVICE void sent() {
  together();
  if (threadIdx.x == 0) fence_system();
}

/// The worker tells every peer that this rank's part of a round is there, after the task's end has been timed: so a
/// receive is never earlier than the send that it waited for.
MS_DEVICE void signal(const Task& task, u32 iteration) {
  const Shard& own = shard();
  const u32 generation = comm_generation(iteration, task.tile & ROUND_MASK);
  if (!may_send(own, generation)) return set_once_system(&engine.run->leave.word, OVERTAKEN);
  const u64 flag = generation | static_cast<u64>(device_time_low()) << 32;
  for (u32 peer = 0; peer < engine.ranks; peer++)
    if (peer != own.rank) store_system(engine.shards[peer].flags + place_of(generation, own.rank), flag);
}

/// The round has been taken out.
MS_DEVICE void taken_out(const Shard& own, u32 generation) {
  together();
  if (threadIdx.x == 0) store_device(own.received, generation);
}

/// This rank's partial sums of all slots, to every peer.
MS_OPERATOR void send_sums(u32 generation) {
  const Shard& own = shard();
  if (!may_send(own, generation)) return;
  const u32 count = engine.slots * engine.d_model, rank = own.rank;
  const float* from = own.partial;
  for (u32 peer = 0; peer < engine.ranks; peer++) {
    if (peer == rank) continue;
    float* to = inbox_of(engine.shards[peer], generation, rank);
    for (u32 i = threadIdx.x * 4; i < count; i += COMPUTE_THREADS * 4) store4(to + i, load4(from + i));
  }
  sent();
}

/// partial = the sum over all ranks.
MS_OPERATOR void add_sums(u32 generation) {
  const Shard& own = shard();
  const u32 count = engine.slots * engine.d_model, ranks = engine.ranks, rank = own.rank;
  const float* in = inbox_of(own, generation, 0);
  float* partial = own.partial;
  for (u32 i = threadIdx.x * 4; i < count; i += COMPUTE_THREADS * 4) {
    const float4 mine = load4(partial + i);
    float4 sum = make_float4(0, 0, 0, 0);
    for (u32 r = 0; r < ranks; r++) {
      const float4 v = r == rank ? mine : load4(in + static_cast<u64>(r) * count + i);
      sum = make_float4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w);
    }
    store4(partial + i, sum);
  }
  taken_out(own, generation);
}

/// The largest of this rank's logits in each slot, and whose it is in the whole vocabulary, to every peer.
MS_OPERATOR void send_best(u32 generation) {
  const Shard& own = shard();
  if (!may_send(own, generation)) return;
  const u32 rank = own.rank, part = engine.vocab_part;
  for (u32 slot = threadIdx.x >> 5; slot < engine.slots; slot += COMPUTE_THREADS / 32) {
    Best best = none(rank * part);
    const float* logits = own.logits + static_cast<u64>(slot) * part;
    for (u32 i = lane_id(); i < part; i += 32) best.take({__ldcg(logits + i), rank * part + i});
    __syncwarp();
    best.of_warp();
    for (u32 r = lane_id(); r < engine.ranks; r += 32) {
      uint2* to = r == rank ? own.best : reinterpret_cast<uint2*>(inbox_of(engine.shards[r], generation, rank));
      to[slot] = make_uint2(__float_as_uint(best.value), best.index);
    }
    __syncwarp();
  }
  sent();
}

/// Of those the best over all ranks.
MS_OPERATOR void take_best(u32 generation) {
  const Shard& own = shard();
  for (u32 slot = threadIdx.x; slot < engine.slots; slot += COMPUTE_THREADS) {
    const uint2 mine = __ldcg(own.best + slot);
    Best best = {__uint_as_float(mine.x), mine.y};
    for (u32 r = 0; r < engine.ranks; r++) {
      if (r == own.rank) continue;
      const uint2 v = __ldcg(reinterpret_cast<const uint2*>(inbox_of(own, generation, r)) + slot);
      best.take({__uint_as_float(v.x), v.y});
    }
    own.best[slot] = make_uint2(__float_as_uint(best.value), best.index);
  }
  taken_out(own, generation);
}

MS_DEVICE void exchange(const Task& task, u32 iteration) {
  const u32 generation = comm_generation(iteration, task.tile & ROUND_MASK);
  switch (task.op) {
    case ATTN_SEND:
    case MLP_SEND: return send_sums(generation);
    case ATTN_RECV:
    case MLP_RECV: return add_sums(generation);
    case LOGITS_SEND: return send_best(generation);
    case LOGITS_RECV: return take_best(generation);
    default: return;
  }
}

}  // namespace ms

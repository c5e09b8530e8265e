// What the host gives the megakernel beside its segment: the graph, the serving plan, the model. Mirrored field by
// field by capture/engines/cuda/parameters.py, whose test reads this file.
#pragma once
#include "segment.cuh"

namespace ms {

constexpr u32 COMPUTE_THREADS = 128;
constexpr u32 BLOCK_THREADS = COMPUTE_THREADS + (MS_HOOKS == MS_HOOKS_QUEUE ? 64 : 32);
constexpr u32 COMPUTE_BARRIER = 1;  // of the compute threads; barrier 0 is used once, before the roles part

/// A task of every iteration. Of one that sends or receives, n0 and n1 are its CommRow.
struct alignas(16) Task : TaskRow {
  u32 n0, n1;  // output columns of the rank's own; or in n0 which of its attention heads
  u32 release, releases;  // its place in Engine::releases, and how many
};

/// An element of an event tensor. The tasks that wait on it have consecutive numbers and are of one class.
struct alignas(16) Dependency : DepRow {
  u32 first, waiters;
};

/// Of `waiters`: the one that waits is a receive. It is not ready before its peers' data has arrived, which its worker
/// sees and tells.
constexpr u32 RECEIVES = 1u << 31;

/// What a task counts up, with all that is needed when that satisfies it, in one load. Never an arrival: that is told
/// by the sender's data (exchange.cuh).
struct alignas(16) Release {
  u32 dep, wanted, first, waiters;
};

/// Why the kernel ended. OVERTAKEN: a rank was about to send before it had received the round before.
enum Leave : u32 { RUNNING = 0, DONE = 1, STOPPED = 2, DEADLINE = 3, OVERTAKEN = 4 };

/// Words that the blocks of a launch share.
struct Run {
  Line begun;    // iterations begun; written by rank 0's first scheduler
  Line leave;    // Leave; set once
};

/// A rank's part of the model and what it computes on. Blocks copy their own rank's into shared memory; of the others'
/// they touch what peers may: `inbox`, `flags` and `run`, which may be another GPU's memory.
struct Shard {
  // weights by [output, input]; with experts the MLP's are by [layer, expert of the rank, output, input]
  const float* w_qkv;
  const float* w_o;
  const float* w_gate;
  const float* w_up;
  const float* w_down;
  const float* w_head;
  // activations by [slot, …]; act by [slot, choice, …] with experts, expert_out always
  float* residual;
  float* x;
  float* qkv;
  float* heads_out;
  float* partial;
  float* act;
  float* logits;
  float* expert_out;
  u32* route;           // [slot, choice] expert
  float* route_weight;  // [slot, choice]
  u32* kept_routes;     // [step, layer, slot, choice], or null
  // requests, by cache row: keys and values of the rank's heads, the last token; used_token by [step, slot]
  float* keys;
  float* values;
  u32* token;
  u32* used_token;
  // exchange.cuh
  uint2* best;    // [slot] largest logit, and whose it is
  float* inbox;   // [2, ranks, slots * d_model], by a round's half and its sender
  u64* flags;     // [2, ranks], likewise: the round's comm generation, and when it was sent (low half) above it
  u32* received;  // comm generation of the last round that this rank has taken out of its inbox
  Run* run;       // of the launch that the rank is part of
  u64 rank;
};

/// A worker's queue of tasks in device memory. Entries are stamped like a hook's records, so that no head is published.
struct TaskQueue {
  Line pushed;  // tickets given out, by any scheduler
  Line popped;  // by its compute worker
};

struct Engine {
  // task graph
  const Task* tasks;
  const Dependency* deps;
  const Release* releases;
  const u32* list_ptr;
  const u32* list_task;
  // serving plan, [steps, slots] or by step
  const u32* request;
  const u32* position;
  const u32* cache_row;
  const u32* forced_token;
  const u32* request_set;
  const u32* event_ptr;
  const uint4* event;
  // fault controls, by phase of the run (and class, dependency or task); read only if `faulty`
  const u32* fault_phase;
  const float* fault_factor;
  const u32* fault_postpone;
  const u32* fault_starve;
  const u32* fault_crowd;
  const u32* fault_skew;
  const u32* fault_comm;
  // scheduling
  u32* counters;
  u32* satisfied;
  u32* ended;  // the counter of end_dep, in rank 0's memory: with arrivals the only one that other ranks count up
  TaskQueue* queues;
  uint4* entries;
  Run* run;
  u64* step_begun;  // [steps], in host memory
  // model: what every rank has whole, and the ranks
  const float* embedding;
  const float* norms;
  const float* w_router;
  const float* rotary;
  const Shard* shards;
  float* kept_logits;  // [kept step, slot, vocab]
  // sizes; heads, kv_heads, ffn and vocab_part are a rank's own
  u32 blocks;
  u32 rank_blocks;  // of one rank; rank r has those from r * rank_blocks
  u32 rank_tasks;   // of one rank; those of rank r are the same, r * rank_tasks later
  u32 ranks;
  u32 rounds;       // in which they exchange, in an iteration
  u32 n_tasks;
  u32 n_deps;
  u32 n_classes;
  u32 end_dep;
  u32 steps;
  u32 slots;
  u32 dynamic;
  u32 capacity;
  u32 pressure;
  u32 faulty;
  u32 operator_bytes;
  u32 layers;
  u32 d_model;
  u32 heads;
  u32 kv_heads;
  u32 head_dim;
  u32 ffn;
  u32 experts;
  u32 top_k;
  u32 vocab;
  u32 vocab_part;
  u32 context;
  u32 cache_rows;
  u32 keep_every;
};

__constant__ Engine engine;

MS_DEVICE u32 own_rank() { return engine.ranks == 1 ? 0 : blockIdx.x / engine.rank_blocks; }

/// Before what another rank writes is read, and before what another rank will read is announced. Peers may be another
/// GPU's blocks, and a device's fence orders nothing for those. One rank spares itself that: a system's fence waits for
/// stores to host memory too.
MS_DEVICE void fence_ranks() {
  if (engine.ranks > 1)
    fence_system();
  else
    fence_device();
}

}  // namespace ms

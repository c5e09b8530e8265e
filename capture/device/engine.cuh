// What the host gives the megakernel beside its segment: the graph, the serving plan, the model. Mirrored field by field by
// capture/engines/cuda/parameters.py, whose test reads this file.
#pragma once
#include "segment.cuh"

namespace ms {

constexpr u32 COMPUTE_THREADS = 128;
constexpr u32 BLOCK_THREADS = COMPUTE_THREADS + (MS_HOOKS == MS_HOOKS_QUEUE ? 64 : 32);
constexpr u32 COMPUTE_BARRIER = 1;  // of the compute threads; barrier 0 is used once, before the roles part

/// A task of every iteration.
struct alignas(16) Task : TaskRow {
  u32 n0, n1;  // output columns, or the attention head in n0
  u32 release, releases;  // its place in Engine::releases, and how many
};

/// An element of an event tensor. The tasks that wait on it have consecutive numbers and are of one class.
struct alignas(16) Dependency : DepRow {
  u32 first, waiters;
};

/// What a task counts up, with all that is needed when that satisfies it, in one load.
struct alignas(16) Release {
  u32 dep, wanted, first, waiters;
};

/// Why the kernel ended.
enum Leave : u32 { RUNNING = 0, DONE = 1, STOPPED = 2, DEADLINE = 3 };

/// Words that the blocks share.
struct Run {
  Line begun;    // iterations begun; written by block 0's scheduler
  Line leave;    // Leave; set once
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
  // scheduling
  u32* counters;
  u32* satisfied;
  TaskQueue* queues;
  uint4* entries;
  Run* run;
  u64* step_begun;  // [steps], in host memory
  // model: weights by [output, input], activations by [slot, …]
  const float* embedding;
  const float* norms;
  const float* w_qkv;
  const float* w_o;
  const float* w_gate;
  const float* w_up;
  const float* w_down;
  const float* w_head;
  const float* rotary;
  float* residual;
  float* x;
  float* qkv;
  float* heads_out;
  float* partial;
  float* act;
  float* logits;
  float* keys;
  float* values;
  u32* token;
  u32* used_token;
  float* kept_logits;
  // sizes
  u32 blocks;
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
  u32 vocab;
  u32 context;
  u32 cache_rows;
  u32 keep_every;
};

extern "C" {
__constant__ Engine engine;
}

}  // namespace ms

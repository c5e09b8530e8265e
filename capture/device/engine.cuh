// What the host gives the kernel: the graph, the serving plan, the segment, the model. Mirrored field by field by
// capture/engines/cuda/parameters.py, whose test reads this file.
#pragma once
#include "hooks_abi.cuh"
#include "ptx.cuh"

#define MS_HOOKS_NONE 0    // compiled out
#define MS_HOOKS_QUEUE 1   // queues and a monitor warp
#define MS_HOOKS_NATIVE 2  // a compiler-native profiler's record: the timer and 8 bytes to device memory
#define MS_HOOKS_DEVICE 3  // queues in device memory, drained by monitor blocks that were launched before
#ifndef MS_HOOKS
#define MS_HOOKS MS_HOOKS_QUEUE
#endif
#define MS_MONITORED (MS_HOOKS == MS_HOOKS_QUEUE || MS_HOOKS == MS_HOOKS_DEVICE)  // the builds that have monitors

namespace ms {

struct Programs;

constexpr u32 COMPUTE_THREADS = 128;
constexpr u32 BLOCK_THREADS = COMPUTE_THREADS + (MS_HOOKS == MS_HOOKS_QUEUE ? 64 : 32);
constexpr u32 COMPUTE_BARRIER = 1;  // of the compute threads; barrier 0 is used once, before the roles part
constexpr u16 NO_SLOT = 0xffff;

/// A task of every iteration. Never written while the kernel runs, so a monitor may read it at any later time.
struct alignas(16) Task {
  // what a row needs of it
  u32 tile;
  u16 task_class;
  u16 slot;  // NO_SLOT: the work is the whole batch's
  u32 dep;   // waited on before it starts; 0: it may start when the iteration begins
  u8 dep_kind;
  u8 op;
  u16 layer;
  // what executing it needs
  u32 n0, n1;  // output columns, or the attention head in n0
  u32 release, releases;  // its place in Engine::releases, and how many
};

/// An element of an event tensor. The tasks that wait on it have consecutive numbers and are of one class.
struct alignas(16) Dependency {
  u32 wanted;  // releases in one iteration
  u32 kind;
  u32 first, waiters;
};

/// What a task counts up, with all that is needed when that satisfies it, in one load.
struct alignas(16) Release {
  u32 dep, wanted, first, waiters;
};

/// One atomic word per cache line, so that no poller disturbs another's writer.
struct alignas(128) Line {
  u32 word;
};

/// Why the kernel ended.
enum Leave : u32 { RUNNING = 0, DONE = 1, STOPPED = 2, DEADLINE = 3 };

/// Words that the blocks share.
struct Run {
  Line begun;    // iterations begun; written by block 0's scheduler
  Line leave;    // Leave; set once
  Line stop;     // not zero asks for an end at the next iteration; written by the elected monitor
  Line control;  // hooks to record, in the low 24 bits, and the commit byte that they belong to; by the elected monitor
};

/// How far a monitor is, for the others; written by it alone.
struct alignas(128) Progress {
  u32 epochs;  // that it has closed
  u32 change;  // number of the change that is in force with it
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
  // segment, in host memory
  u64* cursors;
  u64* workers;
  u64* summaries;
  u8* rings;
  void* hook_queues;      // [blocks] of HookQueues, where they are in device memory
  Programs* programs;
  void* running;          // [monitors, PLACES] of Running
  void* books;            // [PLACES, workers] of Book
  void* deep;             // [monitors] of VmDeep
  Progress* progress;     // [monitors]
  u64* exports;           // [monitors, EXPORT_WORDS], in host memory
  u64* export_words;      // [monitors, MONITOR_WORDS], in host memory
  const u8* control;
  u64* host;
  u64* step_begun;
  // a compiler-native profiler's records
  uint2* native;
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
  u64 limit_ns;
  u64 epoch_ns;
  u64 block_bytes;
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
  u32 ring_blocks;
  u32 block_rows;
  u32 summary_rows;
  u32 monitors;
  u32 policy;
  u32 exported;
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
  u32 native_slots;
};

/// Words of Engine::host, the engine's own page of host memory.
enum HostWord : u32 {
  HOST_STOP = 0,
  HOST_STEP = 8,
  HOST_PING = 16,
  HOST_PING_TIME = 24,
  HOST_PING_ECHO = 32,
  HOST_GO = 40,     // of `tasks` in firing.cu
  HOST_CHANGE = 64  // ChangeWord
};

extern "C" {
__constant__ Engine engine;
}

}  // namespace ms

// What hooks and monitors know of the kernel that they are part of: where its segment is, what they keep in device
// memory, and the tables by which a monitor completes a record to a row. The host writes it once, before the launch.
// Mirrored field by field by capture/engines/cuda/parameters.py, whose test reads this file.
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

constexpr u16 NO_SLOT = 0xffff;

/// What a row needs of a task of every iteration. An engine's own, larger record may begin with it: `task_bytes` apart.
/// Never written while the kernel runs, so a monitor may read it at any later time.
struct alignas(16) TaskRow {
  u32 tile;
  u16 task_class;
  u16 slot;  // NO_SLOT: the work is the whole batch's
  u32 dep;   // waited on before it starts; 0: it may start when the iteration begins
  u8 dep_kind;
  u8 op;      // this byte and the next two are the engine's own
  u16 layer;
};

/// What a row needs besides of a task that sends to peers or receives from them: it follows the TaskRow.
struct CommRow {
  u32 arrival;  // of a receive: the dependency that its peers' data satisfies
  u32 bytes;    // of a send: to all peers together
};
constexpr u32 ROUND_MASK = 0xffff;  // of such a task's tile: the iteration's round that it belongs to

/// What a row needs of an element of an event tensor; `dep_bytes` apart.
struct DepRow {
  u32 wanted;  // releases in one iteration
  u32 kind;
};

/// One atomic word per cache line, so that no poller disturbs another's writer.
struct alignas(128) Line {
  u32 word;
};

/// What the elected monitor hands on from the host.
struct Orders {
  Line stop;     // not zero asks for an end at the next iteration
  Line control;  // hooks to record, in the low 24 bits, and the commit byte that they belong to
};

/// How far a monitor is, for the others; written by it alone.
struct alignas(128) Progress {
  u32 epochs;  // that it has closed
  u32 change;  // number of the change that is in force with it
  u32 began;   // 1: there is such a monitor
  u32 ended;   // 1: it runs nothing any more
};

/// Worker b is block b's compute worker; with two roles, blocks + b is its scheduler worker.
struct Segment {
  // in host memory: the segment's areas, words and buffers between the monitors and the engine's process
  u64* cursors;
  u64* workers;
  u64* summaries;
  u8* rings;
  const u8* control;
  u64* host;          // HostWord
  u64* exports;       // [monitors, EXPORT_WORDS]
  u64* export_words;  // [monitors, MONITOR_WORDS]
  // in device memory: what monitors keep; zero before a launch
  Orders* orders;
  void* hook_queues;  // [blocks] of HookQueues, where they are in device memory
  Programs* programs;
  void* running;      // [monitors, PLACES] of Running
  void* books;        // [PLACES, workers + ranks] of Book
  void* deep;         // [monitors] of VmDeep
  Progress* progress;  // [monitors]
  uint2* native;      // [workers, native_slots], a compiler-native profiler's records
  // in device memory: the engine's tables; entry 0 of the first two is no task and no dependency
  const u8* tasks;         // [n_tasks + 1] of TaskRow
  const u8* deps;          // [n_deps + 1] of DepRow
  const u32* request;      // [steps, slots], 0: nobody
  const u32* request_set;  // [steps]
  // sizes
  u64 limit_ns;
  u64 epoch_ns;
  u64 block_bytes;
  u32 blocks;
  u32 roles;  // workers of a block, 1 or 2
  u32 ranks;        // among which the blocks are divided, rank_blocks to each
  u32 rank_blocks;
  u32 rounds;       // in which ranks exchange, in an iteration
  u32 n_tasks;
  u32 n_deps;
  u32 task_bytes;
  u32 dep_bytes;
  u32 end_dep;  // what the end of an iteration is waited for by; 0: nothing
  u32 steps;
  u32 slots;
  u32 monitors;
  u32 ring_blocks;
  u32 block_rows;
  u32 summary_rows;
  u32 policy;
  u32 exported;
  u32 native_slots;
};

/// Words of Segment::host, the engine's own page of host memory.
enum HostWord : u32 {
  HOST_STOP = 0,
  HOST_STEP = 8,
  HOST_PING = 16,
  HOST_PING_TIME = 24,
  HOST_PING_ECHO = 32,
  HOST_GO = 40,     // not 0: the first iteration may begin
  HOST_CHANGE = 64  // ChangeWord
};

/// Filled by the host, which finds it by its mangled name.
__constant__ Segment segment;

MS_DEVICE u32 all_workers() { return segment.roles * segment.blocks; }
MS_DEVICE u32 all_ranks() { return max(segment.ranks, 1u); }

MS_DEVICE const DepRow& dep_row(u32 dep) {
  return *reinterpret_cast<const DepRow*>(segment.deps + dep * segment.dep_bytes);
}

MS_DEVICE u32 rank_of(u32 worker) {
  return segment.ranks <= 1 ? 0 : (worker < segment.blocks ? worker : worker - segment.blocks) / segment.rank_blocks;
}

/// Identity of a communication round, alike on every rank and never 0: (iteration * rounds + round) % (2^32 - 1) + 1.
MS_DEVICE u32 comm_generation(u32 iteration, u32 round) {
  const u64 all = static_cast<u64>(iteration) * segment.rounds + round;
  const u64 folded = (all & 0xffffffffu) + (all >> 32);  // of which 2^32 - 1 may be over once
  return static_cast<u32>(folded >= 0xffffffffu ? folded - 0xffffffffu : folded) + 1;
}

}  // namespace ms

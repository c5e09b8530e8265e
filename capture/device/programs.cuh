// Programs on the device: how one comes in, and what is kept of it beside its maps.
//
// The engine's host side verifies a program, renders it for the VM and asks for one change at a time, by words in
// pinned host memory (ChangeWord). The elected monitor copies the program's words into device memory, checks them
// there, makes the shared parts of its maps ready, and publishes the change's number; every monitor then makes its own
// workers' parts ready and goes over to it, worker by worker (changes.cuh).
//
//   Change, and a program's words    written by the elected monitor, before it publishes the number (device fence)
//   a worker's part and Book         written by that worker's monitor alone
//   a rank's shared part             by every monitor of its workers, through atomics
#pragma once
#include "hooks.cuh"
#include "vm_check.cuh"
#include "vm_epochs.cuh"
#include "vm_programs.cuh"

namespace ms {

constexpr u32 PLACES = 32;   // for programs that run, and those that have left and are not wholly exported
constexpr u32 NOWHERE = 32;  // no place
constexpr u32 CELLS = 80;    // of feedback, in one change
constexpr u32 SUMS = 6;      // eligible, observed, throttled, lost, faulted, emitted
constexpr u32 RECORDER_BIT = 1u << (MS_PROGRAM_RECORDER - 1);
constexpr u32 EXPORT_WORDS = 1 << 13;       // a monitor's buffer of exports
constexpr u32 SHARED_PART = 0xffff0000;     // in the place of a worker: what rank 0 shares; and so on

/// Words of the engine's page of host memory from HOST_CHANGE on. By the host, except REFUSED.
enum ChangeWord : u32 {
  CHANGE_NUMBER = 0,  // written last; never 0
  CHANGE_LEAVES,  // place of the program that is to leave, or NOWHERE
  CHANGE_PLACE,   // of the one that comes, or NOWHERE; of that:
  CHANGE_BIT,     // which of a row's `by`
  CHANGE_FROM,    // where its words are, in host memory
  CHANGE_WORDS,  // and how many
  CHANGE_CODE,   // where they go, in device memory
  CHANGE_ARENA,  // memory for its maps, in device memory
  CHANGE_ARENA_WORDS,
  CHANGE_INSTRUCTIONS,
  CHANGE_ROWS,
  CHANGE_HOOKS,
  CHANGE_PROGRAM,
  CHANGE_CELLS,   // of feedback: where they are, in host memory
  CHANGE_COUNT,   // and how many; not 0: this change feeds, and no program comes or leaves
  CHANGE_LENGTH,
  CHANGE_REFUSED = 16  // by the elected monitor: number of the last change whose words are no program
};

/// Words between a monitor and the host, in host memory.
enum MonitorWord : u32 {
  MONITOR_HEAD = 0,    // of exports, see exports.cuh
  MONITOR_CHANGE = 1,  // number of the change that is in force with it
  MONITOR_ENDED = 2,   // 1: and after that none; its workers have left
  MONITOR_SEEN = 8,    // by the host
  MONITOR_WORDS = 16
};

/// A program that a monitor runs.
struct Running {
  VmAttached vm;
  u32 hooks, program;
};

/// An engine-wide value for a feedback map.
struct Cell {
  u32 place, map, index, reserved;
  u64 value, epoch;
};

/// What is asked for: one leaves, one comes, or both at once; or cells are fed.
struct Change {
  u32 leaves, place;
  Running running;
  u32 cells, reserved;
  Cell cell[CELLS];
};

/// What a monitor keeps of a program and one worker.
struct Book {
  u32 cut[VM_HOOKS * VM_COUNTS];       // the part's counters, as of the last cut
  u32 refused[VM_HOOKS];               // rows that found the event ring full, since it was attached
  u32 refused_cut[VM_HOOKS];           // the same, as of the last cut
  u64 sum[SUMS];                       // since it was attached
  u64 sum_close[SUMS];                 // as of the last close that was accepted
  u64 closed_sum[SUMS];                // of the epochs that are being exported
  u64 closed_from, closed_to, opened;  // their time, ns; and the begin of what is open
  u32 stage, map;                      // of leaving: see exports.cuh
  u32 ended, reserved;                 // of a shared part: epochs that all monitors had ended when it was last closed
  u64 entry;
};

/// Between blocks, in device memory.
struct Programs {
  Line number;  // of the change that stands below; by the elected monitor
  Change change;
};

MS_DEVICE bool is_shared(u32 worker) { return worker >= SHARED_PART; }

/// The last of a program's are its shared parts'.
MS_DEVICE Book& book_of(u32 place, u32 worker) {
  const u32 first = place * (all_workers() + all_ranks());
  return static_cast<Book*>(segment.books)[first + (is_shared(worker) ? all_workers() + worker - SHARED_PART : worker)];
}

/// A monitor runs no program any more, or never did: its workers fire for nobody.
MS_DEVICE bool is_gone(u32 monitor) {
  const Progress& p = segment.progress[monitor];
  return load_acquire_device(&p.ended) || !load_acquire_device(&p.began);
}

/// The part of a program's maps that a worker has, or a rank shares.
MS_DEVICE u64* part_of(const Running& r, u32 worker) {
  return is_shared(worker) ? r.vm.shared(worker - SHARED_PART) : r.vm.part(worker);
}

MS_DEVICE u32 running_hooks(const Running* running, u32 active) {
  u32 hooks = 0;
#pragma unroll 1
  for (u32 left = active; left; left &= left - 1) hooks |= running[__ffs(left) - 1].hooks;
  return hooks;
}

/// By the elected monitor: take in the change that the host asks for. False: its words are no program.
MS_DEVICE bool admit_change(const u64* words) {
  Programs& out = *segment.programs;
  u64 mine = lane_id() < CHANGE_LENGTH ? load_host(words + lane_id()) : 0;
  Change& c = out.change;  // nobody reads it before its number is published
  const u32 leaves = __shfl_sync(FULL_WARP, mine, CHANGE_LEAVES), place = __shfl_sync(FULL_WARP, mine, CHANGE_PLACE);
  const u32 cells = __shfl_sync(FULL_WARP, mine, CHANGE_COUNT);
  if (leaves > NOWHERE || place > NOWHERE || cells > CELLS) return false;
  Running running = {};
  if (cells) {
    const u64* from = reinterpret_cast<const u64*>(__shfl_sync(FULL_WARP, mine, CHANGE_CELLS));
    u64* to = reinterpret_cast<u64*>(c.cell);
    for (u32 k = lane_id(); k < cells * sizeof(Cell) / 8; k += 32) to[k] = load_host(from + k);
  }
  if (place != NOWHERE) {
    const u64* from = reinterpret_cast<const u64*>(__shfl_sync(FULL_WARP, mine, CHANGE_FROM));
    u64* code = reinterpret_cast<u64*>(__shfl_sync(FULL_WARP, mine, CHANGE_CODE));
    const u32 n = __shfl_sync(FULL_WARP, mine, CHANGE_WORDS);
    for (u32 k = lane_id(); k < n; k += 32) code[k] = load_host(from + k);
    __syncwarp();
    VmAttached& a = running.vm;
    a.program = reinterpret_cast<const VmHeader*>(code);
    a.arena = reinterpret_cast<u64*>(__shfl_sync(FULL_WARP, mine, CHANGE_ARENA));
    a.instructions = __shfl_sync(FULL_WARP, mine, CHANGE_INSTRUCTIONS);
    a.rows = __shfl_sync(FULL_WARP, mine, CHANGE_ROWS);
    a.workers = all_workers(), a.ranks = all_ranks();
    a.bit = __shfl_sync(FULL_WARP, mine, CHANGE_BIT);
    running.hooks = __shfl_sync(FULL_WARP, mine, CHANGE_HOOKS) & (segment.exported | 1u << MS_HOOK_EPOCH);
    running.program = __shfl_sync(FULL_WARP, mine, CHANGE_PROGRAM);
    if (!vm_check(code, n, __shfl_sync(FULL_WARP, mine, CHANGE_ARENA_WORDS), a.workers, a.ranks)) return false;
#pragma unroll 1
    for (u32 rank = 0; rank < a.ranks; rank++) {
      for (u64 at = 0; !vm_prepare(a, a.shared(rank), true, rank, at, 1 << 16);) {
      }
      u32* book = reinterpret_cast<u32*>(&book_of(place, SHARED_PART + rank));
      for (u32 k = lane_id(); k < sizeof(Book) / 4; k += 32) book[k] = 0;
    }
  }
  fence_device();
  __syncwarp();
  if (lane_id() == 0) {
    c.leaves = leaves, c.place = place, c.running = running, c.cells = cells;
    fence_device();
    store_device(&out.number.word, static_cast<u32>(mine));  // lane 0 holds CHANGE_NUMBER
  }
  __syncwarp();
  return true;
}

}  // namespace ms

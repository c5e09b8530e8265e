// What maps held when their epochs closed, on its way to the engine's host side, which merges it and writes it to the
// segment. A monitor fills a buffer in pinned host memory with slices, tells its length, and waits until the host has
// taken it before it fills it again; meanwhile epochs go on counting in their live banks (vm_epochs.cuh).
//
//   slice    header of SliceWord words, then the VM's records
//   head     turn << 32 | words in the buffer; by the monitor, after a system fence
//   seen     turn that the host has taken; by the host
#pragma once
#include "watch.cuh"

namespace ms {

enum SliceWord : u32 {
  SLICE_WORDS = 0,    // of the slice | place << 32 | what << 40
  SLICE_PROGRAM,      // program | worker << 32
  SLICE_T_BEGIN,      // of the epochs that it is of
  SLICE_T_END,
  SLICE_COVERAGE,     // SUMS words: eligible, observed, throttled, lost, faulted, emitted
  SLICE_HEADER = SLICE_COVERAGE + SUMS
};

/// What a slice is of.
enum SliceOf : u32 {
  SLICE_EPOCH = 0,
  SLICE_EPOCH_ENDS = 1,  // the same, and all of the epoch is out
  SLICE_STATE = 2,       // not of an epoch, but as it stood when the program left
  SLICE_LEFT = 3         // nothing: of this program and worker, all is out
};

/// Stages of leaving, in a Book.
enum Leaving : u32 { LEAVE_CLOSE = 0, LEAVE_EXPORT, LEAVE_STATE, LEAVE_DONE };

/// A map of the part (a shared one, or a worker's) whose contents are told when its program leaves.
MS_DEVICE bool has_state(const VmMap& m, bool shared) {
  return m.shared() == shared && !m.aggregate() && !(m.flags & VM_READ_ONLY);
}

/// End a worker's epoch; if the one before it is out, this one is to be exported.
MS_DEVICE void close_part(const Running& r, u32 worker, Book& b, u64 now) {
  u64* part = part_of(r, worker);
  const bool accepted = !vm_exporting(part);
  vm_close(r.vm, part, is_shared(worker));
  if (accepted && lane_id() < SUMS) {
    b.closed_sum[lane_id()] = b.sum[lane_id()] - b.sum_close[lane_id()];
    b.sum_close[lane_id()] = b.sum[lane_id()];
  }
  __syncwarp();
  if (accepted && lane_id() == 0) b.closed_from = b.opened, b.closed_to = b.opened = now;
  __syncwarp();
}

/// One monitor's buffer. All 32 lanes hold the same state and call together.
struct ExportWriter {
  static constexpr u64 LOOK_NS = 50000;  // a look at what the host has taken is a round trip over PCIe

  u64 *buffer, *head;
  const u64* seen;
  u32 used, turn;
  u64 looked;
  bool ours;

  MS_DEVICE void open(u32 monitor) {
    buffer = segment.exports + static_cast<u64>(monitor) * EXPORT_WORDS;
    head = segment.export_words + MONITOR_WORDS * monitor + MONITOR_HEAD;
    seen = segment.export_words + MONITOR_WORDS * monitor + MONITOR_SEEN;
    used = turn = 0;
    looked = 0;
    ours = true;
  }

  /// Whether a slice may be written now.
  MS_DEVICE bool room(u64 now) {
    if (!ours && now - looked >= LOOK_NS) {
      looked = now;
      ours = warp_load_host(seen) == turn;
      if (ours) used = 0;
    }
    return ours && used + SLICE_HEADER + VM_EXPORT_WORDS <= EXPORT_WORDS;
  }

  MS_DEVICE u64* at() const { return buffer + used + SLICE_HEADER; }
  MS_DEVICE u32 left() const { return EXPORT_WORDS - used - SLICE_HEADER; }

  /// A slice of `words` has been written behind its header's place.
  MS_DEVICE void add(u32 words, u32 place, u32 program, u32 worker, const Book& b, SliceOf what) {
    const u32 lane = lane_id();
    u64* h = buffer + used;
    if (lane == 0) {
      const u64 of = static_cast<u64>(place) << 32 | static_cast<u64>(what) << 40;
      store_host(h + SLICE_WORDS, of | (words + SLICE_HEADER));
      store_host(h + SLICE_PROGRAM, program | static_cast<u64>(worker) << 32);
      store_host(h + SLICE_T_BEGIN, b.closed_from);
      store_host(h + SLICE_T_END, b.closed_to);
    }
    if (lane < SUMS) store_host(h + SLICE_COVERAGE + lane, b.closed_sum[lane]);
    used += words + SLICE_HEADER;
  }

  /// Some more of a worker's closed epoch. False: it is all out, or there was none.
  MS_DEVICE bool epoch(const Running& r, u32 place, u32 worker, const Book& b) {
    u64* part = part_of(r, worker);
    if (!vm_exporting(part)) return false;
    const u32 words = vm_export(r.vm, part, is_shared(worker), at(), left());
    add(words, place, r.program, worker, b, vm_exporting(part) ? SLICE_EPOCH : SLICE_EPOCH_ENDS);
    return true;
  }

  /// A step of a program's leaving, for one worker: last epoch, state, farewell. False: all is out.
  MS_DEVICE bool leave(const Running& r, u32 place, u32 worker, Book& b, u64 now) {
    u32 stage = b.stage, map = b.map;
    u64 entry = b.entry;
    switch (stage) {
      case LEAVE_CLOSE:  // once the epoch before is out
        if (epoch(r, place, worker, b)) break;
        close_part(r, worker, b, now);
        stage = LEAVE_EXPORT;
        break;
      case LEAVE_EXPORT:
        if (!epoch(r, place, worker, b)) stage = LEAVE_STATE;
        break;
      case LEAVE_STATE: {
        const VmHeader& p = *r.vm.program;
        while (map < p.maps && !has_state(p.map()[map], is_shared(worker))) map++;
        if (map < p.maps) {
          const u32 words = vm_dump(r.vm, map, part_of(r, worker), false, entry, at(), left());
          add(words, place, r.program, worker, b, SLICE_STATE);
          if (entry == VM_DONE) entry = 0, map++;
        } else {
          add(0, place, r.program, worker, b, SLICE_LEFT);
          stage = LEAVE_DONE;
        }
        break;
      }
      default: return false;
    }
    __syncwarp();
    if (lane_id() == 0) b.stage = stage, b.map = map, b.entry = entry;
    __syncwarp();
    return true;
  }

  /// Hand over what there is.
  MS_DEVICE void publish() {
    if (!ours || used == 0) return;
    turn++;
    ours = false;
    fence_system();
    __syncwarp();
    if (lane_id() == 0) store_host(head, static_cast<u64>(turn) << 32 | used);
  }
};

}  // namespace ms

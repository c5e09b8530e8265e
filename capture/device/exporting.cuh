// What a monitor does about exports: of its workers' parts of programs' maps, and, if it is the elected one, of the
// parts that the workers of a rank share.
//
// A shared part's epoch is closed when every monitor has ended one more of its workers'; then each follows, and it is
// told when all have (vm_epochs.cuh). When its program leaves it is told after every monitor has gone over to that, and
// at the end when every monitor has ended: nobody writes it any more.
#pragma once
#include "changes.cuh"
#include "exports.cuh"

namespace ms {

/// All 32 lanes hold the same state and call together.
struct Exporting : Changing {
  ExportWriter out;
  u32 exporting;  // places of programs that run and have an epoch to export
  u32 epochs;     // that its workers have ended, all together

  MS_DEVICE Exporting(MonitorShared& s, u32 i) : Changing(s, i) {
    out.open(i);
    exporting = epochs = 0;
  }

  /// One step of exporting, if the host has room. What a place's parts hold goes out part after part.
  MS_DEVICE void export_some() {
    if (!out.room(now)) {
      out.publish();
      return;
    }
#pragma unroll 1
    for (u32 left = exporting | leaving; left; left &= left - 1) {
      const u32 place = __ffs(left) - 1;
      const bool leaves = leaving >> place & 1;
      for (u32 i = 0; i < workers; i++)
        if (export_part(place, worker(i), leaves)) return;
      if (index == 0) {
        bool waits = false;
        for (u32 rank = 0; rank < all_ranks(); rank++) {
          if (waits_shared(place, rank, leaves))
            waits = true;
          else if (export_part(place, SHARED_PART + rank, leaves))
            return;
        }
        if (waits) continue;
      }
      exporting &= ~(1u << place);
      leaving &= ~(1u << place);
    }
    out.publish();
  }

  /// Shared maps: the elected monitor ends their epoch when all monitors have ended their workers'; each follows.
  MS_DEVICE void follow_shared() {
    const u32 least = index == 0 ? least_epochs() : 0;
#pragma unroll 1
    for (u32 left = sharing; left; left &= left - 1) {
      const u32 place = __ffs(left) - 1;
      const Running& r = party.running[place];
      for (u32 rank = 0; index == 0 && rank < all_ranks(); rank++) close_shared(r, rank, place, least);
      // The elected monitor may be closing one this moment: what a worker's lane saw goes for all.
      bool behind = false;
      if (lane_id() < workers) {
        const u32 w = worker(lane_id());
        behind = load_acquire(r.vm.shared(rank_of(w)) + PART_CLOSED) != load_acquire(r.vm.part(w) + PART_SHARED);
      }
#pragma unroll 1
      for (u32 some = __ballot_sync(FULL_WARP, behind); some; some &= some - 1)
        vm_follow(r.vm, r.vm.part(worker(__ffs(some) - 1)));
    }
  }

 private:
  /// Somebody may still write what the part of its maps that a rank shares is to tell.
  MS_DEVICE bool waits_shared(u32 place, u32 rank, bool leaves) const {
    if (leaves) return book_of(place, SHARED_PART + rank).stage == LEAVE_CLOSE && !all_went_over();
    return !vm_followed(party.running[place].vm, rank, [rank](u32 worker) {
      return rank_of(worker) == rank && !is_gone(worker % segment.monitors);
    });
  }

  /// Something of a part. False: all is out.
  MS_DEVICE bool export_part(u32 place, u32 worker, bool leaves) {
    const Running& r = party.running[place];
    Book& b = book_of(place, worker);
    return leaves ? out.leave(r, place, worker, b, now) : out.epoch(r, place, worker, b);
  }

  /// No monitor runs a program any more that this one has seen leave.
  MS_DEVICE bool all_went_over() const {
    bool went = true;
    for (u32 m = lane_id(); m < segment.monitors; m += 32)
      went &= is_gone(m) ||
              (!ending && static_cast<int>(load_acquire_device(&segment.progress[m].change) - change) >= 0);
    return __all_sync(FULL_WARP, went);
  }

  /// Epochs that every monitor has ended of its workers'; asked for once a look, for all programs.
  MS_DEVICE static u32 least_epochs() {
    u32 least = 0xffffffff;
    for (u32 m = lane_id(); m < segment.monitors; m += 32)
      if (!is_gone(m)) least = min(least, load_acquire_device(&segment.progress[m].epochs));
    return __reduce_min_sync(FULL_WARP, least);
  }

  /// When all monitors have ended an epoch more of their workers'. The first look only says where it begins.
  MS_DEVICE void close_shared(const Running& r, u32 rank, u32 place, u32 least) {
    Book& b = book_of(place, SHARED_PART + rank);
    const bool first = b.opened == 0, over = !first && least != b.ended;
    __syncwarp();
    if (!first && !over) return;
    if (lane_id() == 0) {
      b.ended = least;
      if (first) b.opened = now;
    }
    __syncwarp();
    if (over) close_part(r, SHARED_PART + rank, b, now);
  }
};

}  // namespace ms

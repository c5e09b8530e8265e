// A receive's wait for what its peers send. It is not ready before that, so its worker waits and tells so before the
// task starts: that it waits, that it goes on, that the task is ready now, and that it has received.
#pragma once
#include "exchange.cuh"
#include "faults.cuh"
#include "hooks.cuh"

namespace ms {

/// A round that a rank takes part in, seen from one of its receives.
struct Arrival {
  const u64* flags;
  u32 generation, late, rank;

  MS_DEVICE Arrival(const Shard& own, const Task& task, u32 iteration) {
    const u32 round = task.tile & ROUND_MASK;
    generation = comm_generation(iteration, round);
    flags = own.flags + place_of(generation, 0);
    late = engine.faulty ? late_ns(round, task.n0, iteration) : 0;
    rank = own.rank;
  }

  /// How many peers' data is there. A fault control delays it: then it is there `late` ns after it was sent.
  MS_DEVICE u32 seen() const {
    u32 count = 0;
    for (u32 peer = 0; peer < engine.ranks; peer++) {
      if (peer == rank) continue;
      const u64 flag = load_system(flags + peer);
      count += static_cast<u32>(flag) == generation && device_time_low() - static_cast<u32>(flag >> 32) >= late;
    }
    return count;
  }

  /// The peer that sent last, when all have. The clocks of several GPUs agree well enough for that.
  MS_DEVICE u32 last() const {
    u32 which = rank == 0, when = flags_time(which);
    for (u32 peer = which + 1; peer < engine.ranks; peer++) {
      if (peer == rank) continue;
      const u32 t = flags_time(peer);
      if (static_cast<int>(t - when) > 0) which = peer, when = t;
    }
    return which;
  }

 private:
  MS_DEVICE u32 flags_time(u32 peer) const { return load_system(flags + peer) >> 32; }
};

}  // namespace ms

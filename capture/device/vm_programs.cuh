// Attached programs and a monitor's batches: who runs, what it may spend, what is counted. As capture/programs/
// execution.py says, to the bit.
//
// Every lane of the warp calls. A monitor runs each of its programs over a batch, and between batches ends epochs,
// exports and feeds (vm_epochs.cuh).
#pragma once
#include "vm.cuh"

namespace ms {

/// Which of `lanes`, in their order, may still take `amount` of what a part's `word` has been spent of, up to `limit`;
/// they have then taken it. most: of any amount.
MS_DEVICE u32 vm_spend(Lanes<u64*>& mine, u32 lanes, u32 word, u64 limit, u64 most, const Lanes<u32>& amount) {
  Lanes<bool> near_limit, may;
  MS_LANES(lane) near_limit[lane] = lanes >> lane & 1 && (limit < 32 * most || mine[lane][word] > limit - 32 * most);
  if (!ballot(near_limit)) {
    MS_LANES(lane) if (lanes >> lane & 1) atomic_add(mine[lane] + word, amount[lane]);
    warp_sync();
    return lanes;
  }
  MS_LANES(lane) may[lane] = false;
#pragma unroll 1
  for (u32 left = lanes; left; left &= left - 1) {
    MS_LANES(lane) if (lane == first_bit(left)) {
      u64 spent = mine[lane][word];
      may[lane] = spent <= limit && amount[lane] <= limit - spent;
      if (may[lane]) mine[lane][word] = spent + amount[lane];
    }
    warp_sync();
  }
  return ballot(may);
}

/// Of `lanes`, the first of each worker.
MS_DEVICE u32 vm_leaders(const Lanes<u32>& worker, u32 lanes) {
  u32 leaders = 0;
#pragma unroll 1
  while (lanes) {
    const u32 who = first_bit(lanes), theirs = lane_value(worker, who);
    Lanes<bool> same;
    MS_LANES(lane) same[lane] = worker[lane] == theirs;
    leaders |= 1u << who;
    lanes &= ~ballot(same);
  }
  return leaders;
}

MS_DEVICE void vm_count(Lanes<u64*>& mine, const Lanes<u32>& hook, u32 lanes, u32 which) {
  if (!lanes) return;
  MS_LANES(lane) if (lanes >> lane & 1) atomic_add(mine[lane] + PART_COUNTERS + hook[lane] * VM_COUNTS + which, 1);
}

/// One program sees a batch: lane i's row is in s.row[0 … 7][i], for the `lanes` that have one, of each worker in order
/// of seq. Sets the program's bit in `by` where a row is to be exported.
MS_DEVICE void vm_batch(const VmAttached& a, VmScratch& s, VmDeep& deep, u32 lanes, Lanes<u32>& by) {
  const VmHeader& p = *a.program;
  Lanes<u64*> mine;
  Lanes<u32> worker, hook, entry, amount;
  Lanes<bool> wants;
  MS_LANES(lane) {
    worker[lane] = static_cast<u32>(s.row[6][lane] >> 48);
    hook[lane] = static_cast<u32>(s.row[7][lane] >> 32) & 0xff;
    const bool known = lanes >> lane & 1 && worker[lane] < a.workers && hook[lane] < VM_HOOKS;
    entry[lane] = known ? p.entry[hook[lane]] : VM_NO_ENTRY;
    wants[lane] = entry[lane] != VM_NO_ENTRY;
    if (!wants[lane]) worker[lane] = hook[lane] = 0;
    amount[lane] = p.cost[hook[lane]];
    mine[lane] = a.part(worker[lane]);
    s.reg[1][lane] = vm_pointer(VM_CONTEXT, 0, 0);
  }
  const u32 all = ballot(wants);
  if (!all) return;
  const u32 allowed = vm_spend(mine, all, PART_SPENT, a.instructions, p.most_cost, amount);
  Vm vm(a, s, deep, mine);
  const bool serial = p.flags & VM_SERIAL;
#pragma unroll 1
  for (u32 left = allowed, now; left; left &= ~now) {
    now = serial ? vm_leaders(worker, left) : left;
    vm.run(now, entry);
    warp_sync();
  }
  vm_count(mine, hook, allowed & ~vm.faulted, VM_OBSERVED);
  vm_count(mine, hook, all & ~allowed, VM_THROTTLED);
  vm_count(mine, hook, vm.faulted, VM_FAULTED);
  if (!vm.emitted) return;
  MS_LANES(lane) amount[lane] = 1;
  const u32 exported = vm_spend(mine, vm.emitted, PART_EMITTED, a.rows, 1, amount);
  vm_count(mine, hook, vm.emitted, VM_EMITTED);
  vm_count(mine, hook, vm.emitted & ~exported, VM_EMIT_THROTTLED);
  MS_LANES(lane) if (exported >> lane & 1) by[lane] |= a.bit;
}

}  // namespace ms

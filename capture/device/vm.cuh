// The interpreter: up to 32 lanes run a program on 32 events at a time.
//
// Lanes that stand at one instruction are a group, which takes every step together; the others wait, each at its own
// slot. The group that runs is always the one at the lowest slot, so that lanes which parted at a branch meet again
// where it ends. While all lanes go the same way, that costs one comparison an instruction: no lane keeps a slot of its
// own. A lane ends at its exit, or is stopped: where and why is left in its worker's part.
//
// Every lane of the warp calls, and holds the same group, slot and budget; what belongs to a lane alone are its
// registers, its stack, and where it waits.
#pragma once
#include "vm_maps.cuh"
#include "vm_step.cuh"

namespace ms {

constexpr u32 VM_NOWHERE = 0xffffffff;  // above every slot

struct Vm {
  const VmAttached& program;
  VmScratch& s;
  VmDeep& deep;
  Lanes<u64*>& mine;   // the part of the lane's worker
  Lanes<u32> waiting;  // the slot at which a lane waits, that does not run
  Lanes<u32> depth;    // calls that a lane is in
  u32 group, slot;     // the lanes that run, and where
  u32 next;            // the lowest slot at which others wait
  u32 emitted, faulted;

  MS_DEVICE Vm(const VmAttached& attached, VmScratch& scratch, VmDeep& memory, Lanes<u64*>& parts)
      : program(attached), s(scratch), deep(memory), mine(parts) {
    emitted = faulted = 0;
  }

  /// Run `lanes`, each from its `entry`, until all have ended; r1 is what the lane's register 1 holds.
  MS_DEVICE void run(u32 lanes, const Lanes<u32>& entry) {
    MS_LANES(lane) {
      waiting[lane] = lanes >> lane & 1 ? entry[lane] : VM_NOWHERE;
      depth[lane] = 0;
      s.reg[10][lane] = vm_pointer(VM_STACK, 0, VM_STACK_BYTES);
    }
    part();
    const VmInsn* code = program.program->code();
    // Each step takes at least one lane one instruction on.
    u64 left = 32ull * program.program->most_cost;
    for (;;) {
      if (slot >= next && !regroup()) return;
      const VmInsn i = code[slot];
      if (left-- == 0) {
        stop_all();
        return;
      }
      if (i.op < VM_FIRST_JUMP)
        arithmetic(i);
      else if (i.op < VM_FIRST_MEMORY)
        jump(i);
      else if (i.op < VM_FIRST_CONTROL)
        memory(i);
      else
        control(i);
    }
  }

 private:
  MS_DEVICE bool runs(u32 lane) const { return group >> lane & 1; }

  /// Nobody runs; where everybody waits is to be looked at.
  MS_DEVICE void part() { group = 0, slot = VM_NOWHERE, next = 0; }

  /// Let the lanes at the lowest slot run. False: all have ended.
  MS_DEVICE bool regroup() {
    Lanes<bool> here;
    MS_LANES(lane) if (runs(lane)) waiting[lane] = slot;
    slot = least(waiting);
    if (slot == VM_NOWHERE) return false;
    MS_LANES(lane) {
      here[lane] = waiting[lane] == slot;
      if (here[lane]) waiting[lane] = VM_NOWHERE;
    }
    group = ballot(here);
    next = least(waiting);
    return true;
  }

  /// These lanes of the group have ended.
  MS_DEVICE void leave(u32 lanes) {
    group &= ~lanes;
    if (!group) slot = VM_NOWHERE;
  }

  /// Stop the lanes of the group that have a reason to be.
  MS_DEVICE void stop(const Lanes<u32>& why) {
    Lanes<bool> bad;
    MS_LANES(lane) {
      bad[lane] = runs(lane) && why[lane] != VM_FINE;
      if (bad[lane]) mine[lane][PART_FAULT] = static_cast<u64>(slot) << 8 | why[lane];
    }
    const u32 lanes = ballot(bad);
    faulted |= lanes;
    leave(lanes);
  }

  MS_DEVICE void stop_all() {
    Lanes<bool> alive;
    MS_LANES(lane) {
      alive[lane] = runs(lane) || waiting[lane] != VM_NOWHERE;
      const u32 at = runs(lane) ? slot : waiting[lane];
      if (alive[lane]) mine[lane][PART_FAULT] = static_cast<u64>(at) << 8 | VM_TOO_LONG;
    }
    faulted |= ballot(alive);
  }

  MS_DEVICE u64 operand(const VmInsn& i, u32 lane) const { return i.mode & VM_IMMEDIATE ? i.imm : s.reg[i.src][lane]; }

  MS_DEVICE void arithmetic(const VmInsn& i) {
    if (i.op == VM_STOP) {
      Lanes<u32> why;
      MS_LANES(lane) why[lane] = VM_NO_INSTRUCTION;
      stop(why);
      return;
    }
    MS_LANES(lane) if (runs(lane)) s.reg[i.dst][lane] = vm_arithmetic(i, s.reg[i.dst][lane], operand(i, lane));
    slot += 1 + (i.op == VM_WIDE);
  }

  MS_DEVICE void jump(const VmInsn& i) {
    Lanes<bool> takes;
    MS_LANES(lane) takes[lane] = runs(lane) && vm_holds(i, s.reg[i.dst][lane], operand(i, lane));
    const u32 taken = ballot(takes);
    if (taken == 0) {
      slot++;
    } else if (taken == group) {
      slot = i.at;
    } else {
      MS_LANES(lane) if (runs(lane)) waiting[lane] = takes[lane] ? i.at : slot + 1;
      part();
    }
  }

  MS_DEVICE void memory(const VmInsn& i) {
    const u32 size = i.mode & VM_SIZE;
    if (i.op == VM_COLUMN) {  // checked once, for all
      MS_LANES(lane) if (runs(lane)) s.reg[i.dst][lane] = loaded(i, VmSpan{&s.row[0][lane], 32, i.at}, size);
      slot++;
      return;
    }
    const u32 pointer = i.op == VM_LOAD ? i.src : i.dst;
    Lanes<u32> why;
    MS_LANES(lane) {
      why[lane] = VM_FINE;
      if (!runs(lane)) continue;
      VmSpan span;
      u64 to = s.reg[pointer][lane] + static_cast<u64>(static_cast<s64>(static_cast<s32>(i.at)));
      why[lane] = vm_resolve(program, s, deep, lane, mine[lane], to, size, i.op != VM_LOAD, span);
      if (why[lane] != VM_FINE) continue;
      if (i.op == VM_LOAD) {
        s.reg[i.dst][lane] = loaded(i, span, size);
      } else if (i.op == VM_STORE) {
        vm_store(span, size, operand(i, lane));
      } else if (span.offset & (size - 1)) {
        why[lane] = VM_UNALIGNED;
      } else {
        u64 old = vm_atomic(span, size, static_cast<u32>(i.imm), s.reg[i.src][lane], s.reg[0][lane]);
        if (i.mode & VM_FETCH) s.reg[i.imm == VM_ATOMIC_CMPXCHG ? 0 : i.src][lane] = old;
      }
    }
    const u32 here = slot;
    stop(why);
    if (group) slot = here + 1;
  }

  MS_DEVICE static u64 loaded(const VmInsn& i, const VmSpan& span, u32 size) {
    const u64 v = vm_load(span, size);
    return i.mode & VM_SIGNED ? vm_sign_extend(v, 8 * size) : v;
  }

  MS_DEVICE void control(const VmInsn& i) {
    switch (i.op) {
      case VM_GOTO:
        slot = i.at;
        break;
      case VM_CALL:
        call(i);
        break;
      case VM_EXIT:
        exit();
        break;
      case VM_TIME:
        MS_LANES(lane) if (runs(lane)) s.reg[0][lane] = s.row[0][lane];
        slot++;
        break;
      case VM_EMIT:
        emitted |= group;
        MS_LANES(lane) if (runs(lane)) s.reg[0][lane] = 0;
        slot++;
        break;
      default:
        keyed(i);
    }
  }

  MS_DEVICE void call(const VmInsn& i) {
    Lanes<u32> why;
    MS_LANES(lane) {
      why[lane] = depth[lane] + 1 < VM_FRAMES ? VM_FINE : VM_TOO_DEEP;
      if (!runs(lane) || why[lane] != VM_FINE) continue;
      u64(*frame)[32] = deep.frame[depth[lane]++];
      for (u32 k = 0; k < 5; k++) frame[k][lane] = s.reg[6 + k][lane];
      frame[5][lane] = slot + 1;
      s.reg[10][lane] -= i.imm;
    }
    stop(why);
    if (group) slot = i.at;
  }

  MS_DEVICE void exit() {
    Lanes<bool> returns;
    MS_LANES(lane) {
      returns[lane] = runs(lane) && depth[lane] != 0;
      if (!returns[lane]) continue;
      u64(*frame)[32] = deep.frame[--depth[lane]];
      for (u32 k = 0; k < 5; k++) s.reg[6 + k][lane] = frame[k][lane];
      waiting[lane] = static_cast<u32>(frame[5][lane]);
    }
    if (ballot(returns))
      part();  // they may have come from several places
    else
      leave(group);
  }

  /// Helpers that take a map and a key.
  MS_DEVICE void keyed(const VmInsn& i) {
    const u32 map = static_cast<u32>(i.imm);
    const VmMap& m = program.program->map()[map];
    const bool updates = i.op == VM_UPDATE, upserts = i.op == VM_UPSERT;
    Lanes<VmSpan> key, from;
    Lanes<u32> why;
    Lanes<bool> makes;
    MS_LANES(lane) {
      why[lane] = VM_FINE;
      makes[lane] = upserts || m.indexed();
      if (!runs(lane)) continue;
      const u64 flags = s.reg[4][lane];
      if (updates) makes[lane] = flags < 2 || (flags == 2 && m.indexed());
      // The key in r2, and what an update takes in r3.
#pragma unroll 1
      for (u32 k = 0; k <= updates && why[lane] == VM_FINE; k++) {
        VmSpan span;
        const u32 size = k ? m.value_size : m.key_size;
        why[lane] = vm_resolve(program, s, deep, lane, mine[lane], s.reg[2 + k][lane], size, false, span);
        if (k)
          from[lane] = span;
        else
          key[lane] = span;
      }
    }
    const u32 here = slot;
    stop(why);
    if (!group) return;
    slot = here + 1;
    Lanes<u64*> value;
    Lanes<VmPlace> place;
    const u64 first = upserts && i.at == VM_UPSERT_MIN ? ~0ull : 0;
    const u32 make = i.op == VM_DELETE ? 0 : group & ballot(makes);
    const bool last = i.op == VM_LAST;
    const u32 made = vm_place(program, m, mine, group, make, last, updates || upserts, first, key, place, value);
    MS_LANES(lane) {
      if (!runs(lane)) continue;
      u64* v = value[lane];
      u64 result = 0;
      switch (i.op) {
        case VM_UPDATE:
          result = vm_update(m, v, made >> lane & 1, s.reg[4][lane], from[lane]);
          break;
        case VM_UPSERT:
          if (v) vm_upsert(i.at, v, s.reg[3][lane]);
          break;
        case VM_DELETE:
          if (!v)
            result = vm_error(2);
          else
            vm_delete(m, vm_bank(program, m, mine[lane], false), place[lane]);
          break;
        default:
          if (v) result = vm_pointer(last ? VM_CLOSED : VM_LIVE, map, place[lane].entry * 8ull * m.value_words);
      }
      s.reg[0][lane] = result;
    }
    warp_sync();
  }
};

}  // namespace ms

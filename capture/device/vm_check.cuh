// Are these words a program that the VM may run? Asked once, by a warp, of the copy in device memory.
//
// What is static in the words is decided here: registers, operations, targets, widths, columns, maps and their places.
// What depends on a run (pointers, keys, calls, how long it takes) is checked by the interpreter each time. So the
// words may come from anyone: at worst a program does nonsense with its own maps.
#pragma once
#include "vm_memory.cuh"

namespace ms {

MS_DEVICE u32 vm_slots(const VmMap& m) {
  if (m.indexed()) return m.aggregate() ? m.max_entries : 0;
  u32 n = 2;
  while (n < 2 * m.max_entries) n *= 2;
  return n;
}

/// Words of an arena that a map takes in its part.
MS_DEVICE u64 vm_area(const VmMap& m) { return MAP_WORDS + static_cast<u64>(m.banks) * m.bank_words; }

MS_DEVICE bool vm_map_is_sound(const VmMap& m, u32 words, u64 offset) {
  const bool fixed = m.kind == VM_HIST || m.kind == VM_STATS || m.kind == VM_FEEDBACK;
  const u32 expected = m.kind == VM_HIST ? VM_HIST_WORDS * 8 : m.kind == VM_STATS ? VM_STATS_WORDS * 8 : 16;
  if (m.kind >= VM_KINDS || m.flags & ~(VM_SHARED | VM_AGGREGATE | VM_READ_ONLY)) return false;
  if (fixed ? m.value_size != expected : m.value_size < 1 || m.value_size > 4096) return false;
  if ((m.kind == VM_HIST || m.kind == VM_STATS) && !m.aggregate()) return false;
  if (m.kind == VM_FEEDBACK && (m.aggregate() || !(m.flags & VM_READ_ONLY))) return false;
  if (m.indexed() ? m.key_size != 4 : m.key_size < 1 || m.key_size > 64) return false;
  if (m.max_entries < 1 || m.max_entries > VM_MAX_ENTRIES) return false;
  if (m.key_words != (m.indexed() ? 0u : (m.key_size + 7u) / 8) || m.value_words != (m.value_size + 7) / 8)
    return false;
  if (m.slots != vm_slots(m) || m.banks != 1u + m.aggregate() || m.offset != offset) return false;
  if (m.slots + static_cast<u64>(m.max_entries) * (m.key_words + m.value_words) != m.bank_words) return false;
  if (m.initial == 0) return true;
  return m.kind == VM_ARRAY && !m.aggregate() && m.max_entries == 1 && m.initial < words &&
         m.value_words <= words - m.initial;
}

MS_DEVICE bool vm_helper_is_sound(const VmHeader& p, const VmInsn& i) {
  if (i.op == VM_TIME || i.op == VM_EMIT) return true;
  if (i.imm >= p.maps) return false;
  const VmMap& m = p.map()[i.imm];
  const bool plain = m.kind == VM_HASH || m.kind == VM_ARRAY, changes = plain && !(m.flags & VM_READ_ONLY);
  switch (i.op) {
    case VM_LOOKUP:
      return plain || m.kind == VM_FEEDBACK;
    case VM_UPDATE:
      return changes && p.flags & VM_SERIAL;
    case VM_DELETE:
      return changes && p.flags & VM_SERIAL && m.kind == VM_HASH && !m.shared();
    case VM_LAST:
      return m.aggregate();
  }
  switch (i.at) {
    case VM_UPSERT_ADD:
    case VM_UPSERT_MAX:
      return changes && m.value_size == 8;
    case VM_UPSERT_MIN:
      return changes && m.value_size == 8 && m.kind == VM_HASH;
    case VM_UPSERT_HIST:
      return m.kind == VM_HIST;
    case VM_UPSERT_STATS:
      return m.kind == VM_STATS;
  }
  return false;
}

MS_DEVICE bool vm_insn_is_sound(const VmHeader& p, const VmInsn& i, u32 slot) {
  const u32 last = p.slots - 1, size = i.mode & VM_SIZE;
  if (slot == last) return i.op == VM_STOP;
  if (i.op >= VM_OPS || i.dst >= VM_REGISTERS || i.src >= VM_REGISTERS) return false;
  const bool writable = i.dst < 10, sized = size == 1 || size == 2 || size == 4 || size == 8;
  if (i.op == VM_STOP) return true;
  if (i.op == VM_WIDE) return writable && slot + 2 <= last;
  if (i.op == VM_SIGN) return writable && (i.at == 8 || i.at == 16 || i.at == 32);
  if (i.op == VM_SWAP) return writable && (i.at == 2 || i.at == 4 || i.at == 8);
  if (i.op < VM_FIRST_JUMP) return writable;
  if (i.op < VM_FIRST_MEMORY || i.op == VM_GOTO) return i.at < p.slots;
  if (i.op == VM_COLUMN) return writable && sized && i.at < 64 && i.at % size == 0;
  if (i.op == VM_LOAD) return writable && sized;
  if (i.op == VM_STORE) return sized;
  if (i.op == VM_ATOMIC) return (size == 4 || size == 8) && i.imm < VM_ATOMICS && i.src < 10;
  if (i.op == VM_CALL) return i.at < p.slots && i.imm <= VM_STACK_BYTES;
  return i.op == VM_EXIT || vm_helper_is_sound(p, i);
}

/// By the warp: may `n` words be attached with an arena of `arena_words` for the workers of some ranks?
MS_DEVICE bool vm_check(const u64* words, u64 n, u64 arena_words, u32 workers, u32 ranks) {
  constexpr u32 HEADER = sizeof(VmHeader) / 8, MAP = sizeof(VmMap) / 8, INSN = sizeof(VmInsn) / 8;
  if (n < HEADER) return false;
  const VmHeader& p = *reinterpret_cast<const VmHeader*>(words);
  if (p.magic != VM_MAGIC || p.version != VM_VERSION || p.words != n) return false;
  if (p.slots < 2 || p.slots > VM_MAX_SLOTS || p.maps > VM_MAX_MAPS || p.flags & ~(VM_SERIAL | VM_EMITS)) return false;
  if (HEADER + p.maps * MAP + p.slots * INSN > n || p.most_cost > VM_MAX_COST) return false;
  Lanes<u64> sum;
  Lanes<bool> bad;
  MS_LANES(lane) {
    sum[lane] = 0;
    for (u32 k = 2 + lane; k < p.words; k += 32) sum[lane] += vm_checksum(words[k], k);
  }
  if (total(sum) != p.checksum) return false;
  MS_LANES(lane) {
    const u32 hook = lane & (VM_HOOKS - 1);
    bad[lane] = p.cost[hook] > p.most_cost || (p.entry[hook] != VM_NO_ENTRY && p.entry[hook] >= p.slots - 1);
  }
  if (ballot(bad)) return false;
  u64 shared = PART_WORDS, worker = PART_WORDS;
  for (u32 k = 0; k < p.maps; k++) {
    const VmMap& m = p.map()[k];
    if (!vm_map_is_sound(m, p.words, m.shared() ? shared : worker)) return false;
    (m.shared() ? shared : worker) += vm_area(m);
  }
  if (shared != p.shared_words || worker != p.worker_words) return false;
  if (ranks * shared + workers * worker > arena_words) return false;
  MS_LANES(lane) {
    bad[lane] = false;
    for (u32 slot = lane; slot < p.slots; slot += 32) bad[lane] |= !vm_insn_is_sound(p, p.code()[slot], slot);
  }
  return ballot(bad) == 0;
}

}  // namespace ms

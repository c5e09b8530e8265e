// Maps: finding a key, making it, refusing it, and what the upserts do to a value.
//
// A slot of a hash map's index is empty unless it carries the bank's generation:
//
//   generation << 32 | 11 bits of the key's hash << 21 | entry      (entry BUSY: somebody is making it)
//
// Linear probing; entries are dense, so that an export reads what is there and nothing else. A new key claims its slot
// (compare and swap), then takes the next entry (an atomic counter, so that a map holds exactly max_entries), writes
// key and fresh value, and publishes the slot. Only one lane of a warp makes keys at a time, in lane order, so nobody
// ever waits for a lane of his own warp; another monitor's claim, of a shared map, is waited for, and not for ever.
//
// A map of one worker is touched by one monitor alone, and the same code serves it. Deleting is for those maps only,
// since a program that deletes is serial and serial programs have no shared maps: the last entry moves into the hole.
// Whatever a bank's words say, an entry is below max_entries before it is used.
#pragma once
#include "vm_memory.cuh"

namespace ms {

constexpr u32 VM_NONE = 0xffffffff;
constexpr u32 VM_PATIENCE = 1 << 16;  // looks at a slot that another monitor is busy with

constexpr u64 SLOT_ENTRY = (1 << 21) - 1;
constexpr u64 SLOT_BUSY = SLOT_ENTRY;

MS_DEVICE u64 vm_hash(const VmSpan& key, u32 size) {
  u64 h = size;
#pragma unroll 1
  for (u32 k = 0; 8 * k < size; k++) h = vm_mix(h ^ vm_word(key, size, k));
  return h;
}

MS_DEVICE bool vm_same(const VmSpan& key, u32 size, const u64* stored) {
#pragma unroll 1
  for (u32 k = 0; 8 * k < size; k++)
    if (vm_word(key, size, k) != stored[k]) return false;
  return true;
}

/// Where a key is. entry VM_NONE: it is not there; then `slot` is where it would go, which holds `seen` and is to hold
/// `fill`; null: it has no place.
struct VmPlace {
  u64* slot;
  u64 seen, fill;
  u32 entry;

  MS_DEVICE bool busy() const { return (seen & SLOT_ENTRY) == SLOT_BUSY && seen >> 32 == fill >> 32; }
};

MS_DEVICE VmPlace vm_find(const VmMap& m, const VmBank& b, const VmSpan& key) {
  VmPlace p{nullptr, 0, static_cast<u64>(b.generation) << 32, VM_NONE};
  if (m.indexed()) {
    u32 index = static_cast<u32>(vm_load(key, 4));
    if (index >= m.max_entries || b.generation < 2) return p;  // beyond it, or before the first epoch closed
    p.entry = index;
    if (!m.aggregate()) return p;
    p.slot = b.slots + index;
    p.fill |= index;
    p.seen = m.shared() ? load_acquire(p.slot) : *p.slot;
    if (p.seen != p.fill) p.entry = VM_NONE;
    return p;
  }
  const u64 hash = vm_hash(key, m.key_size), label = (hash >> 53) << 21;
  p.fill |= label;
  u32 at = static_cast<u32>(hash) & (m.slots - 1);
#pragma unroll 1
  for (u32 n = 0; n < m.slots; n++, at = (at + 1) & (m.slots - 1)) {
    p.slot = b.slots + at;
    p.seen = m.shared() ? load_acquire(p.slot) : *p.slot;
    if (p.seen >> 32 != b.generation || p.busy()) return p;
    u32 entry = static_cast<u32>(p.seen & SLOT_ENTRY);
    if ((p.seen & ~SLOT_ENTRY) != p.fill || entry >= m.max_entries) continue;
    if (vm_same(key, m.key_size, b.keys + static_cast<u64>(entry) * m.key_words)) {
      p.entry = entry;
      return p;
    }
  }
  p.slot = nullptr;
  return p;
}

enum VmClaim : u32 { CLAIM_FOUND, CLAIM_MADE, CLAIM_FULL, CLAIM_AGAIN };

/// By one lane: make the key that was not found at `p`. MADE: its slot is busy until `fill` is stored there. AGAIN:
/// others were faster.
MS_DEVICE u32 vm_claim(const VmMap& m, const VmBank& b, const VmSpan& key, VmPlace& p) {
  if (!p.slot) return CLAIM_FULL;
  if (p.busy()) {
    pause_briefly();
    return CLAIM_AGAIN;
  }
  u64* count = b.counts + MAP_COUNT;
  if (!m.indexed() && load_relaxed(count) >= m.max_entries) return CLAIM_FULL;
  if (atomic_cas(p.slot, p.seen, p.fill | SLOT_BUSY) != p.seen) return CLAIM_AGAIN;
  if (m.indexed()) {
    p.entry = static_cast<u32>(p.fill);
    return CLAIM_MADE;
  }
  const u64 entry = atomic_add(count, 1);
  if (entry >= m.max_entries) {
    atomic_add(count, ~0ull);
    store_release(p.slot, p.seen);
    return CLAIM_FULL;
  }
  p.entry = static_cast<u32>(entry), p.fill |= entry;
  u64* to = b.keys + entry * m.key_words;
#pragma unroll 1
  for (u32 k = 0; k < m.key_words; k++) to[k] = vm_word(key, m.key_size, k);
  return CLAIM_MADE;
}

/// What word k of a new value is. `first` is word 0 of one that an upsert makes: the number that changes nothing.
MS_DEVICE u64 vm_fresh(const VmMap& m, u32 k, u64 first) {
  if (m.kind == VM_HIST || m.kind == VM_STATS) return k == 2 ? ~0ull : 0;
  return k == 0 ? first : 0;
}

/// By the warp: where each lane's key is; entry VM_NONE: it is not there, or has no room. Lanes of `make` have it made,
/// in their order; returns those for which it was. last: in the bank of the last closed epoch. count: refusals count.
MS_DEVICE u32 vm_place(const VmAttached& a, const VmMap& m, Lanes<u64*>& mine, u32 lanes, u32 make, bool last,
                       bool count, u64 first, Lanes<VmSpan>& key, Lanes<VmPlace>& place, Lanes<u64*>& value) {
  u32 made = 0, now = lanes, patience = VM_PATIENCE;
  // At first all lanes look; then those that are to make their key do so, one after another.
  bool making = false;
#pragma unroll 1
  for (u32 left = 0;;) {
    Lanes<u32> claim;
    Lanes<bool> missing;
    MS_LANES(lane) {
      claim[lane] = CLAIM_FOUND;
      missing[lane] = false;
      if (!(now >> lane & 1)) continue;
      const VmBank b = vm_bank(a, m, mine[lane], last);
      VmPlace p = vm_find(m, b, key[lane]);
      missing[lane] = p.entry == VM_NONE;
      if (missing[lane] && making) {
        claim[lane] = vm_claim(m, b, key[lane], p);
        if (claim[lane] == CLAIM_AGAIN && !patience) claim[lane] = CLAIM_FULL;
        if (claim[lane] == CLAIM_FULL && count) atomic_add(b.counts + MAP_REFUSED, 1);
      }
      place[lane] = p;
      value[lane] = p.entry == VM_NONE ? nullptr : b.values + static_cast<u64>(p.entry) * m.value_words;
    }
    if (!making) {
      left = ballot(missing) & make;
      making = true;
    } else {
      const u32 who = first_bit(now), said = lane_value(claim, who);
      if (said == CLAIM_MADE) {
        made |= now;
        u64* fresh = lane_value(value, who);
        MS_LANES(lane) for (u32 k = lane; k < m.value_words; k += 32) fresh[k] = vm_fresh(m, k, first);
        warp_sync();
        MS_LANES(lane) if (lane == who) store_release(place[lane].slot, place[lane].fill);
      }
      if (said == CLAIM_AGAIN)
        patience--;
      else
        left &= left - 1;
    }
    warp_sync();
    if (!left) return made;
    now = left & (0 - left);
  }
}

MS_DEVICE u32 vm_bucket(u64 v) {
  if (v < 16) return static_cast<u32>(v);
  u32 shift = 59 - leading_zeros(v);
  return shift * 16 + static_cast<u32>(v >> shift);
}

/// What an upsert does to a value that is there. value_words has been checked to fit the kind of upsert.
MS_DEVICE void vm_upsert(u32 kind, u64* value, u64 v) {
  if (kind == VM_UPSERT_ADD) {
    atomic_add(value, v);
  } else if (kind == VM_UPSERT_MIN) {
    atomic_min(value, v);
  } else if (kind == VM_UPSERT_MAX) {
    atomic_max(value, v);
  } else {
    atomic_add(value, 1);
    atomic_add(value + 1, v);
    atomic_min(value + 2, v);
    atomic_max(value + 3, v);
    if (kind == VM_UPSERT_HIST) atomic_add(value + VM_HIST_HEAD + vm_bucket(v), 1);
  }
}

MS_DEVICE u64 vm_error(u32 number) { return 0 - static_cast<u64>(number); }

/// What map_update_elem does to the value of a key, if the key has one, and returns.
MS_DEVICE u64 vm_update(const VmMap& m, u64* value, bool made, u64 flags, VmSpan from) {
  if (flags > 2) return vm_error(22);
  if (!value) return vm_error(flags == 2 && !m.indexed() ? 2 : 7);
  if (flags == 1 && (m.indexed() || !made)) return vm_error(17);
#pragma unroll 1
  for (u32 k = 0; k < m.value_words; k++) value[k] = vm_word(from, m.value_size, k);
  return 0;
}

/// Where a key that is stored belongs in the index.
MS_DEVICE u32 vm_home(const VmMap& m, const VmBank& b, u32 entry) {
  const u64* stored = b.keys + static_cast<u64>(entry) * m.key_words;
  u64 h = m.key_size;
#pragma unroll 1
  for (u32 k = 0; k < m.key_words; k++) h = vm_mix(h ^ stored[k]);
  return static_cast<u32>(h) & (m.slots - 1);
}

/// By one lane: take the key that is at `p` out of a hash map of its worker.
MS_DEVICE void vm_delete(const VmMap& m, const VmBank& b, const VmPlace& p) {
  const u64 count = b.counts[MAP_COUNT];
  if (count == 0 || count > m.max_entries) return;
  const u32 mask = m.slots - 1, hole = p.entry, last = static_cast<u32>(count) - 1;
  b.counts[MAP_COUNT] = last;
  // The last entry moves into the hole.
#pragma unroll 1
  for (u32 n = 0, at = vm_home(m, b, last); n < m.slots && hole != last; n++, at = (at + 1) & mask) {
    const u64 slot = b.slots[at];
    if (slot >> 32 != b.generation || (slot & SLOT_ENTRY) != last) continue;
    b.slots[at] = (slot & ~SLOT_ENTRY) | hole;
    break;
  }
#pragma unroll 1
  for (u32 k = 0; k < m.key_words; k++)
    b.keys[static_cast<u64>(hole) * m.key_words + k] = b.keys[static_cast<u64>(last) * m.key_words + k];
#pragma unroll 1
  for (u32 k = 0; k < m.value_words; k++)
    b.values[static_cast<u64>(hole) * m.value_words + k] = b.values[static_cast<u64>(last) * m.value_words + k];
  // Close the gap in the index: what could have been probed past it moves up.
  u32 gap = static_cast<u32>(p.slot - b.slots);
#pragma unroll 1
  for (u32 n = 1, at = (gap + 1) & mask; n < m.slots; n++, at = (at + 1) & mask) {
    const u64 slot = b.slots[at];
    const u32 entry = static_cast<u32>(slot & SLOT_ENTRY);
    if (slot >> 32 != b.generation || entry >= m.max_entries) break;
    if (((at - vm_home(m, b, entry)) & mask) < ((at - gap) & mask)) continue;
    b.slots[gap] = slot;
    gap = at;
  }
  b.slots[gap] = 0;
}

}  // namespace ms

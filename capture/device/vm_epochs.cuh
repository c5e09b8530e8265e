// What happens to a program's maps between batches: made ready, epochs closed, closed epochs exported, cells fed. Every
// call does a bounded amount of work, and the lanes of a warp make it together.
//
// A worker's epoch is closed by its own monitor. A shared map's is closed by one monitor, when all workers' are, and
// each monitor goes over to the new one between two batches (vm_follow); then nobody writes the closed bank any more,
// and it may be exported (vm_followed). An epoch that would close while the one before it is not wholly exported is
// kept: its events go on counting in the live banks, and the export says how many epochs it spans.
//
// An export is a stream of records, each with its own length in words in the high half of its first word:
//
//   entry   ENTRY | map << 8 | length << 32,  the key's words or an index,  the value's words; of a histogram the head,
//           then bucket << 48 | count for each bucket that is not empty
//   end     END | map << 8 | 3 << 32,  refusals,  epochs that it spans
#pragma once
#include "vm_memory.cuh"

namespace ms {

enum VmRecord : u32 { RECORD_ENTRY = 1, RECORD_END = 2 };
constexpr u32 VM_END_WORDS = 3;
constexpr u32 VM_LOOKS = 64;                            // at entries, or 32 stamps, in one call
constexpr u32 VM_EXPORT_WORDS = 1 + 8 + VM_HIST_WORDS;  // room that an export needs: the longest record

/// Zeroes what lies at `from` and before `end`, of stretches that are counted through one after another.
struct VmStretches {
  u64 from, end, counted;

  MS_DEVICE void zero(u64* words, u64 n) {
    const u64 first = from > counted ? from - counted : 0;
    MS_LANES(lane) for (u64 k = first + lane; k < n && counted + k < end; k += 32) words[k] = 0;
    counted += n;
  }
};

/// Make ready some more of a part (the one that `rank` shares if `shared`, else of a worker of it), at most `words`;
/// `from` counts on from 0. True when the part is ready.
///
/// Only what a look at a map goes by is zeroed: counts, the index of keys or the stamps, and the values of arrays that
/// are always there. Keys and other values are written when a key is made, before anybody reads them; they are nearly
/// all of the memory, and hold whatever an earlier program has left.
MS_DEVICE bool vm_prepare(const VmAttached& a, u64* part, bool shared, u32 rank, u64& from, u32 words) {
  const VmHeader& p = *a.program;
  VmStretches s{from, from + words, 0};
  s.zero(part, PART_WORDS);
#pragma unroll 1
  for (u32 k = 0; k < p.maps; k++) {
    const VmMap& m = p.map()[k];
    if (m.shared() != shared) continue;
    u64* bank = part + m.offset + MAP_WORDS;
    s.zero(part + m.offset, MAP_WORDS);
    for (u32 b = 0; b < m.banks; b++) s.zero(bank + static_cast<u64>(b) * m.bank_words, m.slots);
    if (m.indexed() && !m.aggregate()) s.zero(bank + m.slots, static_cast<u64>(m.max_entries) * m.value_words);
  }
  from = s.end;
  warp_sync();
  if (s.end < s.counted) return false;
  MS_LANES(lane) if (lane == 0) part[PART_RANK] = rank;
#pragma unroll 1
  for (u32 k = 0; k < p.maps; k++) {
    const VmMap& m = p.map()[k];
    if (m.shared() != shared || !m.initial) continue;
    MS_LANES(lane)
    for (u32 w = lane; w < m.value_words; w += 32) part[m.offset + MAP_WORDS + w] = p.word()[m.initial + w];
  }
  warp_sync();
  return true;
}

/// Whether a closed epoch is still being exported. One answer for all lanes, and none changes it before all have asked:
/// those that look after a lane has run ahead would otherwise decide differently.
MS_DEVICE bool vm_exporting(const u64* part) {
  Lanes<bool> does;
  MS_LANES(lane) does[lane] = part[PART_EXPORT] != 0;
  return ballot(does) != 0;
}

/// End the epoch of a worker's part, or of a shared one.
MS_DEVICE void vm_close(const VmAttached& a, u64* part, bool shared) {
  const VmHeader& p = *a.program;
  MS_LANES(lane) {
    if (lane) continue;
    part[PART_SPENT] = part[PART_EMITTED] = 0;
    part[PART_KEPT]++;
    if (part[PART_EXPORT]) continue;
    part[PART_EXPORT] = part[PART_KEPT];
    part[PART_KEPT] = part[PART_EXPORT_MAP] = part[PART_EXPORT_ENTRY] = 0;
    const u64 closed = part[PART_CLOSED] + 1;
    for (u32 k = 0; k < p.maps; k++) {
      const VmMap& m = p.map()[k];
      if (m.shared() != shared || !m.aggregate()) continue;
      u64* counts = part + m.offset + (closed & 1);  // the bank that the generation `closed` + 2 goes to
      counts[MAP_COUNT] = counts[MAP_REFUSED] = 0;
    }
    if (shared) part[PART_SHARED] = closed;
    store_release(part + PART_CLOSED, closed);
  }
  warp_sync();
}

/// A worker's monitor goes over to the newest epoch of the maps that its rank shares.
MS_DEVICE void vm_follow(const VmAttached& a, u64* part) {
  MS_LANES(lane)
  if (lane == 0) store_release(part + PART_SHARED, load_acquire(a.shared(part[PART_RANK]) + PART_CLOSED));
  warp_sync();
}

/// All workers' have that `writes` says may still write to the part that `rank` shares.
template <class Writes>
MS_DEVICE bool vm_followed(const VmAttached& a, u32 rank, Writes writes) {
  Lanes<bool> behind;
  const u64 closed = load_acquire(a.shared(rank) + PART_CLOSED);
  MS_LANES(lane) {
    behind[lane] = false;
    for (u32 w = lane; w < a.workers; w += 32)
      behind[lane] |= load_acquire(a.part(w) + PART_SHARED) != closed && writes(w);
  }
  return ballot(behind) == 0;
}

/// The record of an entry, in `out`; its length in words.
MS_DEVICE u32 vm_record(const VmMap& m, u32 map, const VmBank& b, u64 entry, u64* out) {
  const u64 *key = b.keys + entry * m.key_words, *value = b.values + entry * m.value_words;
  const u32 key_words = m.indexed() ? 1 : m.key_words, dense = m.kind == VM_HIST ? VM_HIST_HEAD : m.value_words;
  u32 used = 1 + key_words + dense;
  MS_LANES(lane) {
    for (u32 k = lane; k < key_words; k += 32) out[1 + k] = m.indexed() ? entry : load_relaxed(key + k);
    for (u32 k = lane; k < dense; k += 32) out[1 + key_words + k] = load_relaxed(value + k);
  }
#pragma unroll 1
  for (u32 first = dense; first < m.value_words; first += 32) {
    Lanes<u64> count;
    Lanes<bool> some;
    MS_LANES(lane) {
      count[lane] = first + lane < m.value_words ? load_relaxed(value + first + lane) : 0;
      some[lane] = count[lane] != 0;
    }
    const u32 mask = ballot(some);
    MS_LANES(lane)
    if (some[lane])  // an epoch has fewer than 2^48 events
      out[used + bits_in(mask & ((1u << lane) - 1))] = static_cast<u64>(first - dense + lane) << 48 | count[lane];
    used += bits_in(mask);
  }
  MS_LANES(lane) if (lane == 0) out[0] = RECORD_ENTRY | map << 8 | static_cast<u64>(used) << 32;
  return used;
}

/// The next entry from `entry` on that is there (of an array: and not all zero, if `sparse`); or where the search broke
/// off, as `found` says.
MS_DEVICE u64 vm_next(const VmMap& m, const VmBank& b, u64 entry, u64 n, bool sparse, bool& found) {
  found = true;
  if (!m.indexed()) return entry;
  if (m.aggregate()) {
    Lanes<bool> there;
    MS_LANES(lane)
    there[lane] = entry + lane < n &&
                  load_acquire(b.slots + entry + lane) == (static_cast<u64>(b.generation) << 32 | (entry + lane));
    const u32 mask = ballot(there);
    found = mask != 0;
    entry = found ? entry + first_bit(mask) : (n - entry < 32 ? n : entry + 32);
  }
  if (!found || !sparse) return entry;
  Lanes<bool> some;
  MS_LANES(lane) {
    some[lane] = false;
    for (u32 k = lane; k < m.value_words; k += 32)
      some[lane] |= load_relaxed(b.values + entry * m.value_words + k) != 0;
  }
  found = ballot(some) != 0;
  return found ? entry : entry + 1;
}

/// Records of one map from `entry` on, into at least VM_EXPORT_WORDS words; returns the words used. last: of the closed
/// epoch, and sparse; else of what is live, every entry. `entry` is VM_DONE behind the end record.
constexpr u64 VM_DONE = ~0ull;

MS_DEVICE u32 vm_dump(const VmAttached& a, u32 map, u64* part, bool last, u64& entry, u64* out, u32 room) {
  const VmMap& m = a.program->map()[map];
  const VmBank b = vm_bank(a, m, part, last);
  const u64 count = load_relaxed(b.counts + MAP_COUNT),
            n = m.indexed() || count > m.max_entries ? m.max_entries : count;
  const u32 longest = 1 + (m.indexed() ? 1 : m.key_words) + m.value_words;
  u32 used = 0;
#pragma unroll 1
  for (u32 looks = 0; entry < n; looks++) {
    if (looks == VM_LOOKS || used + longest > room) return used;
    bool found;
    entry = vm_next(m, b, entry, n, last, found);
    if (found) used += vm_record(m, map, b, entry++, out + used);
  }
  if (used + VM_END_WORDS > room) return used;
  MS_LANES(lane) if (lane == 0) {
    out[used] = RECORD_END | map << 8 | static_cast<u64>(VM_END_WORDS) << 32;
    out[used + 1] = load_relaxed(b.counts + MAP_REFUSED);
    out[used + 2] = last ? part[PART_EXPORT] : part[PART_KEPT] + 1;
  }
  entry = VM_DONE;
  return used + VM_END_WORDS;
}

/// Some more of what a part's last epoch holds, into at least VM_EXPORT_WORDS words; returns the words used. When the
/// part's PART_EXPORT is 0, all of it is out.
MS_DEVICE u32 vm_export(const VmAttached& a, u64* part, bool shared, u64* out, u32 room) {
  const VmHeader& p = *a.program;
  if (!vm_exporting(part) || room < VM_EXPORT_WORDS) return 0;
  u32 map = static_cast<u32>(part[PART_EXPORT_MAP]), used = 0;
  u64 entry = part[PART_EXPORT_ENTRY];
  for (; map < p.maps; map++, entry = 0)
    if (p.map()[map].aggregate() && p.map()[map].shared() == shared) break;
  if (map < p.maps) used = vm_dump(a, map, part, true, entry, out, room);
  warp_sync();
  MS_LANES(lane) if (lane == 0) {
    part[PART_EXPORT_MAP] = map + (entry == VM_DONE);
    part[PART_EXPORT_ENTRY] = entry == VM_DONE ? 0 : entry;
    if (map >= p.maps) part[PART_EXPORT] = 0;
  }
  warp_sync();
  return used;
}

/// Write a feedback cell of a part's map. False: there is none.
MS_DEVICE bool vm_feed(const VmAttached& a, u64* part, u32 map, u32 index, u64 value, u64 epoch) {
  if (map >= a.program->maps) return false;
  const VmMap& m = a.program->map()[map];
  if (m.kind != VM_FEEDBACK || index >= m.max_entries) return false;
  u64* cell = vm_bank(a, m, part, false).values + 2 * index;
  MS_LANES(lane) if (lane < 2) cell[lane] = lane ? epoch : value;
  warp_sync();
  return true;
}

}  // namespace ms

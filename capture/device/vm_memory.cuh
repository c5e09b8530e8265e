// What a program may touch, and how every access is checked.
//
// A pointer is a number like any other: what it points into in the top byte, a map's index in the next, and an offset
// in bytes. Programs add to it and keep it on their stack like any number; only an access asks what it stands for, and
// then the whole access must lie inside. So no number, whoever made it, reaches anything but
//
//   the row       64 bytes, read-only
//   the stack     256 bytes of the lane, over all frames
//   live values   of one map of the program: of the lane's worker, or shared by those of its rank
//   last values   of the last closed epoch, read-only
//
// Memory is 8-byte words. Row and stack are interleaved over the lanes, so that lanes in step touch consecutive words.
//
// A program's arena is one shared part for each rank, then one part for each worker. A part begins with PartWord words;
// then each map that belongs in it: MapWord words, and one bank, or two for an aggregation. A bank is
//
//   slots    an index of keys (a power of two at least twice max_entries), or stamps of an aggregated array
//   keys     max_entries × key_words, in the order in which they came
//   values   max_entries × value_words
//
// A slot or stamp carries the generation that wrote it, and a bank is emptied by counting its generation up: generation
// g of an aggregation lives in bank g & 1, and its last epoch, g - 1, stays readable in the other. Generations count
// from 2, so that an arena of zeros is empty.
#pragma once
#include "vm_code.cuh"

namespace ms {

enum PartWord : u32 {
  PART_CLOSED = 0,   // epochs that were closed: the generation less 2
  PART_SPENT = 1,    // instructions, of this epoch's budget
  PART_EMITTED = 2,  // rows, of this epoch's allowance
  PART_FAULT = 3,    // the last: slot << 8 | VmReason
  PART_EXPORT = 4,   // epochs that the closed banks span, while they are not wholly exported; else 0
  PART_EXPORT_MAP = 5,
  PART_EXPORT_ENTRY = 6,
  PART_SHARED = 7,     // of a worker: PART_CLOSED of the shared part, as it goes by
  PART_KEPT = 8,       // epochs that ended in the live banks, because the closed ones were not exported
  PART_RANK = 9,       // whose shared part goes with it
  PART_COUNTERS = 16,  // by hook and VmCount
  PART_WORDS = 16 + VM_HOOKS * 5
};
enum VmCount : u32 { VM_OBSERVED, VM_THROTTLED, VM_FAULTED, VM_EMITTED, VM_EMIT_THROTTLED, VM_COUNTS };
enum MapWord : u32 { MAP_COUNT = 0, MAP_REFUSED = 2, MAP_WORDS = 4 };  // by bank

enum VmTag : u32 { VM_CONTEXT = 1, VM_STACK = 2, VM_LIVE = 3, VM_CLOSED = 4 };

MS_DEVICE u64 vm_pointer(u32 tag, u32 map, u64 offset) {
  return static_cast<u64>(tag) << 56 | static_cast<u64>(map) << 48 | offset;
}

/// Row and registers of a batch: in a block's shared memory.
struct VmScratch {
  u64 row[8][32];
  u64 reg[VM_REGISTERS][32];
};

/// What calls and the stack need: in device memory, one for each warp that runs programs.
struct VmDeep {
  u64 stack[VM_STACK_BYTES / 8][32];
  u64 frame[VM_FRAMES - 1][6][32];  // r6 to r10 and the slot to return to
};

/// A program that is attached.
struct VmAttached {
  const VmHeader* program;
  u64* arena;
  u64 instructions, rows;  // that each worker may spend, and have exported, in an epoch
  u32 workers, ranks;
  u32 bit;  // which of a row's `by`

  MS_DEVICE u64* shared(u64 rank) const { return arena + rank * program->shared_words; }
  MS_DEVICE u64* part(u32 worker) const { return shared(ranks) + worker * program->worker_words; }
};

/// One bank of one map, as a lane sees it.
struct VmBank {
  u64 *counts, *slots, *keys, *values;
  u32 generation, which;
};

/// `mine`: the part of the lane's worker.
MS_DEVICE VmBank vm_bank(const VmAttached& a, const VmMap& m, u64* mine, bool last) {
  u64* meta = (m.shared() ? a.shared(mine[PART_RANK]) : mine) + m.offset;
  VmBank b;
  b.generation = 2, b.which = 0;
  if (m.aggregate()) {
    b.generation = static_cast<u32>(mine[m.shared() ? PART_SHARED : PART_CLOSED]) + 2 - last;
    b.which = b.generation & 1;
  }
  b.counts = meta + b.which;
  b.slots = meta + MAP_WORDS + static_cast<u64>(b.which) * m.bank_words;
  b.keys = b.slots + m.slots;
  b.values = b.keys + static_cast<u64>(m.max_entries) * m.key_words;
  return b;
}

/// Words that an access lies in: `offset` bytes from the first on.
struct VmSpan {
  u64* base;
  u32 stride;
  u64 offset;
};

/// Where `size` bytes at a pointer are, in `span`; else why they may not be accessed.
MS_DEVICE u32 vm_resolve(const VmAttached& a, VmScratch& s, VmDeep& deep, u32 lane, u64* mine, u64 pointer, u32 size,
                         bool write, VmSpan& span) {
  const u32 tag = static_cast<u32>(pointer >> 56), map = static_cast<u32>(pointer >> 48) & 0xff;
  span.offset = pointer & ((1ull << 48) - 1);
  span.base = nullptr, span.stride = 32;
  u64 bytes = 0;
  bool writable = true;
  if (tag == VM_STACK) {
    span.base = &deep.stack[0][lane];
    bytes = map ? 0 : VM_STACK_BYTES;
  } else if (tag == VM_CONTEXT) {
    span.base = &s.row[0][lane];
    bytes = map ? 0 : sizeof(s.row) / 32;
    writable = false;
  } else if ((tag == VM_LIVE || tag == VM_CLOSED) && map < a.program->maps) {
    const VmMap& m = a.program->map()[map];
    span.base = vm_bank(a, m, mine, tag == VM_CLOSED).values;
    span.stride = 1;
    bytes = static_cast<u64>(m.max_entries) * m.value_words * 8;
    writable = tag == VM_LIVE && !(m.flags & VM_READ_ONLY);
  }
  if (span.offset + size > bytes) return VM_OUTSIDE;
  return write && !writable ? VM_NOT_WRITABLE : VM_FINE;
}

MS_DEVICE u64 vm_low_bytes(u32 size) { return size >= 8 ? ~0ull : (1ull << 8 * size) - 1; }

/// 1 to 8 bytes, wherever they begin.
MS_DEVICE u64 vm_load(const VmSpan& s, u32 size) {
  const u64* word = s.base + (s.offset >> 3) * s.stride;
  const u32 shift = static_cast<u32>(s.offset & 7) * 8;
  u64 v = *word >> shift;
  if (shift + 8 * size > 64) v |= word[s.stride] << (64 - shift);
  return v & vm_low_bytes(size);
}

MS_DEVICE void vm_store(const VmSpan& s, u32 size, u64 v) {
  u64* word = s.base + (s.offset >> 3) * s.stride;
  const u32 shift = static_cast<u32>(s.offset & 7) * 8;
  const u64 mask = vm_low_bytes(size);
  v &= mask;
  *word = (*word & ~(mask << shift)) | v << shift;
  if (shift + 8 * size <= 64) return;
  word += s.stride;
  *word = (*word & ~(mask >> (64 - shift))) | v >> (64 - shift);
}

/// Word k of `size` bytes that begin where the span says; what is beyond them is zero.
MS_DEVICE u64 vm_word(VmSpan s, u32 size, u32 k) {
  s.offset += 8 * k;
  return vm_load(s, size - 8 * k < 8 ? size - 8 * k : 8);
}

/// An aligned atomic of 4 or 8 bytes; returns the old value.
MS_DEVICE u64 vm_atomic(const VmSpan& s, u32 size, u32 kind, u64 v, u64 expected) {
  u64* word = s.base + (s.offset >> 3) * s.stride;
  if (size == 8 && kind == VM_ATOMIC_ADD) return atomic_add(word, v);
  const u32 shift = static_cast<u32>(s.offset & 7) * 8;
  const u64 mask = vm_low_bytes(size);
  for (u64 seen = load_relaxed(word);;) {
    u64 old = seen >> shift & mask, fresh = v;
    switch (kind) {
      case VM_ATOMIC_ADD:
        fresh = old + v;
        break;
      case VM_ATOMIC_OR:
        fresh = old | v;
        break;
      case VM_ATOMIC_AND:
        fresh = old & v;
        break;
      case VM_ATOMIC_XOR:
        fresh = old ^ v;
        break;
      case VM_ATOMIC_CMPXCHG:
        fresh = old == (expected & mask) ? v : old;
        break;
    }
    u64 was = atomic_cas(word, seen, (seen & ~(mask << shift)) | (fresh & mask) << shift);
    if (was == seen) return old;
    seen = was;
  }
}

}  // namespace ms

// A program as the device VM takes it: words that capture/programs/vmcode.py renders from verified eBPF.
//
//   VmHeader | VmMap × maps | VmInsn × slots | initial contents of global sections
//
// An instruction stands at the slot it has in the program, so that a fault names the program's own pc; a slot that no
// path reaches, and one more after the last, holds STOP. What an encoding means is decided once, by
// capture/programs/isa.py; here it is an operation, an operand and a width. The words are checked on the device
// (vm_check.cuh) after they have been copied there; the interpreter then relies on what is static in them alone.
#pragma once
#include "vm_warp.cuh"

namespace ms {

constexpr u32 VM_MAGIC = 0x4d56534d;
constexpr u32 VM_VERSION = 1;
constexpr u32 VM_HOOKS = 16;
constexpr u32 VM_REGISTERS = 11;
constexpr u32 VM_FRAMES = 8;
constexpr u32 VM_STACK_BYTES = 256;
constexpr u32 VM_MAX_SLOTS = 4096 + 1;
constexpr u32 VM_MAX_MAPS = 64;
constexpr u32 VM_MAX_ENTRIES = 1 << 20;
constexpr u32 VM_MAX_COST = 1 << 15;  // the verifier's
constexpr u32 VM_HIST_HEAD = 4;       // count, sum, min, max, before the buckets
constexpr u32 VM_HIST_WORDS = VM_HIST_HEAD + 976;
constexpr u32 VM_STATS_WORDS = 4;
constexpr u16 VM_NO_ENTRY = 0xffff;

enum VmOp : u8 {
  VM_STOP = 0,
  // dst = dst op operand
  VM_ADD,
  VM_SUB,
  VM_MUL,
  VM_DIV,
  VM_MOD,
  VM_SDIV,
  VM_SMOD,
  VM_OR,
  VM_AND,
  VM_XOR,
  VM_LSH,
  VM_RSH,
  VM_ARSH,
  VM_NEG,
  VM_MOV,   // dst = operand
  VM_WIDE,  // the same, in two slots
  VM_SIGN,  // dst = operand, sign-extended from its low `at` bits
  VM_SWAP,  // dst = its low `at` bytes, reversed, the rest zero
  // to slot `at`, if dst op operand
  VM_JEQ,
  VM_JNE,
  VM_JGT,
  VM_JGE,
  VM_JLT,
  VM_JLE,
  VM_JSET,
  VM_JSGT,
  VM_JSGE,
  VM_JSLT,
  VM_JSLE,
  // memory: at: the signed displacement
  VM_COLUMN,  // dst = `size` bytes of the row from byte `at` on, wherever src points
  VM_LOAD,
  VM_STORE,
  VM_ATOMIC,  // imm: VmAtomic
  // control
  VM_GOTO,
  VM_CALL,  // imm: bytes of the caller's stack frame
  VM_EXIT,
  // helpers; imm: index of the map
  VM_LOOKUP,
  VM_UPDATE,
  VM_DELETE,
  VM_LAST,
  VM_UPSERT,  // at: VmUpsert
  VM_TIME,
  VM_EMIT,
  VM_OPS
};
constexpr u32 VM_FIRST_JUMP = VM_JEQ, VM_FIRST_MEMORY = VM_COLUMN, VM_FIRST_CONTROL = VM_GOTO;

enum VmAtomic : u8 {
  VM_ATOMIC_ADD,
  VM_ATOMIC_OR,
  VM_ATOMIC_AND,
  VM_ATOMIC_XOR,
  VM_ATOMIC_XCHG,
  VM_ATOMIC_CMPXCHG,
  VM_ATOMICS
};
enum VmUpsert : u8 { VM_UPSERT_ADD, VM_UPSERT_MIN, VM_UPSERT_MAX, VM_UPSERT_HIST, VM_UPSERT_STATS };

/// `mode` of an instruction.
enum VmMode : u8 {
  VM_SIZE = 15,       // bytes of a memory access: 1, 2, 4 or 8
  VM_NARROW = 16,     // arithmetic or comparison of the low 32 bits; results are zero-extended
  VM_SIGNED = 32,     // a comparison or division of signed numbers; a load that sign-extends
  VM_IMMEDIATE = 64,  // the operand is imm, else src
  VM_FETCH = 128      // an atomic returns the old value
};

struct alignas(16) VmInsn {
  u8 op, dst, src, mode;
  u32 at;
  u64 imm;
};

enum VmKind : u8 { VM_HASH, VM_ARRAY, VM_HIST, VM_STATS, VM_FEEDBACK, VM_KINDS };
enum VmMapFlag : u8 { VM_SHARED = 1, VM_AGGREGATE = 2, VM_READ_ONLY = 4 };

/// A map and its place. Sizes in words of 8 bytes where the name says so. See vm_memory.cuh for the layout.
struct VmMap {
  u8 kind, flags;
  u16 key_size;
  u32 key_words;  // 0: an index, which is not stored
  u32 value_size, value_words;
  u32 max_entries;
  u32 slots;   // words of a bank before its keys: the index of keys, or stamps of an aggregated array
  u64 offset;  // in words, in the part (shared or a worker's) that it stands in
  u32 bank_words;
  u32 initial;  // where in the program's words the contents of a global section stand; 0: zero
  u32 banks;
  u32 reserved[5];

  MS_DEVICE bool indexed() const { return kind == VM_ARRAY || kind == VM_FEEDBACK; }
  MS_DEVICE bool shared() const { return flags & VM_SHARED; }
  MS_DEVICE bool aggregate() const { return flags & VM_AGGREGATE; }
};
static_assert(sizeof(VmMap) == 64, "as vmcode.py writes it");

enum VmProgramFlag : u32 { VM_SERIAL = 1, VM_EMITS = 2 };

struct alignas(16) VmHeader {
  u32 magic, version;
  u64 checksum;  // vm_checksum of all words after it
  u32 words;     // of the whole
  u32 slots, maps, flags;
  u64 shared_words, worker_words;  // of the arena: of the shared part, and of each worker's
  u32 most_cost, reserved[3];
  u32 cost[VM_HOOKS];   // worst-case instructions of one event
  u16 entry[VM_HOOKS];  // slot, or VM_NO_ENTRY

  MS_DEVICE const VmMap* map() const { return reinterpret_cast<const VmMap*>(this + 1); }
  MS_DEVICE const VmInsn* code() const { return reinterpret_cast<const VmInsn*>(map() + maps); }
  MS_DEVICE const u64* word() const { return reinterpret_cast<const u64*>(this); }
};
static_assert(sizeof(VmHeader) == 160, "as vmcode.py writes it");
static_assert(sizeof(VmInsn) == 16, "as vmcode.py writes it");

/// Why an event's run was stopped, or words were refused.
enum VmReason : u32 {
  VM_FINE = 0,
  VM_NO_INSTRUCTION,
  VM_OUTSIDE,  // an access outside the memory that the pointer stands for, or through what is no pointer
  VM_NOT_WRITABLE,
  VM_UNALIGNED,  // an atomic
  VM_TOO_DEEP,   // calls
  VM_TOO_LONG,   // instructions
};

MS_DEVICE u64 vm_mix(u64 x) {
  x = (x ^ x >> 32) * 0xd6e8feb86659fd93ull;
  return (x ^ x >> 29) * 0xd6e8feb86659fd93ull;
}

/// A word's part in the checksum of the words that it is one of: the sum of all.
MS_DEVICE u64 vm_checksum(u64 word, u32 at) { return vm_mix(word + at * 0x9e3779b97f4a7c15ull); }

}  // namespace ms

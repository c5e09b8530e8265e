// What runs a launch on a CPU: every CUDA thread is a fibre, and all of them share one operating system thread.
//
// A lane runs until it waits (in a collective, at a barrier, asleep) or until, at an access that other threads can see,
// chance says that somebody else goes on. So every interleaving of such accesses is possible, memory is sequentially
// consistent, and what a seed has shown once it shows again as far as the clock and other processes let it.
//
// Lanes of a warp meet in a collective at one place in the code, as they must on a GPU; those that wait for each other at
// two, or for one that has left, end the run with a report of who stands where. So does a launch in which nobody can go on.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "fibre.h"

namespace simt {

struct Index {
  uint32_t x, y, z;
};

struct Warp;

/// Where a lane waits.
struct Place {
  const void* code;  // the call's return address: inlined calls are places of their own
  const char* what;
  const char* file;
  int line;

  /// A compiler may have made one call of two.
  bool operator==(const Place& other) const { return code == other.code && line == other.line && what == other.what; }
};

struct Lane {
  Fibre fibre;
  Warp* warp;
  Index thread;
  uint32_t index;
  Place place;
};

extern Lane* lane;        // the one that runs
extern int32_t fuel;      // accesses until chance is asked who goes on
extern char* arena;       // of all blocks' shared memory: a 32-bit shared address is an offset into it

const Index& block_index();
const Index& block_size();
const Index& grid_size();
unsigned char* dynamic_shared();
/// A static variable of the block's, by the address of something that stands for it.
void* static_shared(const void* tag, size_t bytes);
/// `bytes` at a shared address of this block; anything else, or not aligned, ends the run.
void* at_shared(uint32_t address, uint32_t bytes);

void ask_chance();
inline void touch() {
  if (--fuel <= 0) ask_chance();
}

/// How the lanes of `mask` come by their results.
enum Kind : uint32_t { SYNC, SHUFFLE, BALLOT, ADD, LEAST, MOST, LEAST_SIGNED, MOST_SIGNED, AND, OR, XOR, MATCH };

// One call in the source stays one call.
#ifdef __clang__
#define SIMT_CONVERGENT __attribute__((convergent, noinline))
#else
#define SIMT_CONVERGENT __attribute__((noinline))
#endif
SIMT_CONVERGENT uint64_t collective(Kind kind, uint32_t mask, uint64_t value, uint32_t from, const char* what,
                                    const char* file, int line);
SIMT_CONVERGENT void barrier(uint32_t id, uint32_t threads, const char* what, const char* file, int line);
/// How many threads a block has, for a barrier of all of them.
uint32_t block_threads();
void sleep(uint32_t ns);
uint64_t clock_ns();
uint32_t processor();
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace simt

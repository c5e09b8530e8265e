#include "executor.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace simt {

constexpr uint32_t ALL = 0xffffffffu;
constexpr size_t STACK_BYTES = 96 << 10, GUARD_BYTES = 4 << 10;
constexpr size_t ARENA_BYTES = 512u << 20;
constexpr uint32_t STATIC_BYTES = 128 << 10;  // of a block, for static variables
constexpr uint32_t BARRIERS = 16;
constexpr uint32_t ORDERS = 64;

struct Block;

struct Warp {
  // of the lanes that wait in a collective
  uint64_t value[32], result[32];
  uint32_t from[32];  // whose value it asks for
  uint32_t mask[32];  // whom it waits for
  Lane* lanes;
  Block* block;
  uint32_t number;
  uint32_t ready;    // lanes that can go on
  uint32_t waiting;  // in a collective
  uint32_t partly;   // of those, in one of fewer than the whole warp
  uint32_t parked;   // at a barrier
  uint32_t asleep;
  uint32_t gone;  // have left, or never were
  uint32_t barrier;
  uint64_t wake;
  const uint8_t* order;  // in which lanes go on
  uint32_t at;
  uint32_t id;  // among all warps that there are
};

struct Barrier {
  uint32_t expected, arrived;
};

struct Static {
  const void* tag;
  unsigned char* at;
};

struct Grid;

struct Block {
  Grid* grid;
  Index index;
  unsigned char* shared;
  uint32_t offset, bytes, used;  // of its shared memory: where, how much, and how much of it static variables have
  Barrier barriers[BARRIERS];
  std::vector<Static> statics;
  std::vector<Warp> warps;
  uint32_t number;
};

typedef void (*Kernel)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

struct Grid {
  Kernel kernel;
  std::string name;
  uint64_t arguments[6];
  Index size, block_size;
  uint32_t shared_bytes;
  std::vector<Block> blocks;
  std::vector<Lane> lanes;
  char* stacks = nullptr;
  size_t stack_bytes = 0;
  uint32_t alive = 0;
  bool begun = false, finished = false;
  bool known = true, wanted = true;  // to whoever drives; to whoever launched it
};

Lane* lane;
int32_t fuel = 1;
char* arena;

namespace {

Fibre home;  // of the thread that drives
std::vector<Warp*> warps;
std::vector<uint64_t> runnable;  // a bit for each warp
std::vector<Warp*> sleepers;
uint32_t arena_used;
uint64_t state = 0x9e3779b97f4a7c15u;
uint8_t orders[ORDERS][32];
bool failed;
volatile bool aborted;
std::string report;
std::string slow_kernel;  // of it, this warp of each block goes on only every so many times that it could
uint32_t slow_warp, slow_times = 1;

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
std::vector<Grid*> joined;  // since the driving thread last looked
std::vector<Grid*> grids;   // that run
bool driven;

uint64_t chance() {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}
uint32_t below(uint32_t n) { return static_cast<uint32_t>((chance() >> 32) * n >> 32); }

/// Often a few, sometimes very many: who stands still for long is as interesting as who is interrupted everywhere.
int32_t refill() { return static_cast<int32_t>(1 + below(2u << below(10))); }

void seed(uint64_t s) {
  state = (s + 1) * 0x9e3779b97f4a7c15u;
  for (int i = 0; i < 8; i++) chance();
  for (auto& order : orders) {
    for (uint32_t i = 0; i < 32; i++) order[i] = static_cast<uint8_t>(i);
    for (uint32_t i = 31; i; i--) std::swap(order[i], order[below(i + 1)]);
  }
}

void set_runnable(Warp& w) { runnable[w.id >> 6] |= 1ull << (w.id & 63); }
void clear_runnable(Warp& w) { runnable[w.id >> 6] &= ~(1ull << (w.id & 63)); }

/// Lanes may go on, in an order that chance gives.
void release(Warp& w, uint32_t lanes) {
  w.ready |= lanes;
  const uint64_t c = chance();
  w.order = orders[c >> 32 & (ORDERS - 1)];
  w.at = static_cast<uint32_t>(c >> 40) & 31;
}

Lane& next(Warp& w) {
  for (;;) {
    const uint32_t index = w.order[w.at++ & 31];
    if (w.ready >> index & 1) return w.lanes[index];
  }
}

void leave(Fibre& from) {
  lane = nullptr;
  swap(from, home);
}

/// The lane that runs lets somebody else of its warp go on, or another warp when all of them wait.
void pass_on() {
  Lane& from = *lane;
  Warp& w = *from.warp;
  if (!w.ready) return leave(from.fibre);
  Lane& to = next(w);
  if (&to == &from) return;
  lane = &to;
  swap(from.fibre, to.fibre);
}

std::string text(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string text(const char* format, ...) {
  char line[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  return line;
}

std::string lanes_text(uint32_t mask) {
  std::string out;
  for (uint32_t i = 0; i < 32; i++) {
    if (!(mask >> i & 1)) continue;
    uint32_t last = i;
    while (last < 31 && mask >> (last + 1) & 1) last++;
    out += text(out.empty() ? "%u" : ", %u", i);
    if (last > i) out += text("-%u", last);
    i = last;
  }
  return out;
}

std::string place_text(const Place& p) {
  const char* slash = strrchr(p.file, '/');
  Dl_info module = {};
  dladdr(p.code, &module);  // a call's place in its file, one byte before where it returns to
  const size_t at = static_cast<size_t>(static_cast<const char*>(p.code) - static_cast<const char*>(module.dli_fbase));
  return text("%s at %s:%d [%#zx]", p.what, slash ? slash + 1 : p.file, p.line, at - 1);
}

std::string warp_text(const Warp& w) {
  const Block& b = *w.block;
  std::string out = text("  %s block %u warp %u:\n", b.grid->name.c_str(), b.number, w.number);
  uint32_t left = w.waiting | w.parked;
  while (left) {
    const Lane& first = w.lanes[__builtin_ctz(left)];
    const uint32_t mask = w.mask[first.index];
    uint32_t same = 0;
    for (uint32_t i = 0; i < 32; i++)
      if (left >> i & 1 && w.lanes[i].place == first.place && w.mask[i] == mask) same |= 1u << i;
    out += text("    lanes %s wait in %s", lanes_text(same).c_str(), place_text(first.place).c_str());
    if (w.waiting & same) {
      out += mask == ALL ? ", for the whole warp\n" : text(", for lanes %s\n", lanes_text(mask).c_str());
    } else {
      const Barrier& at = b.barriers[w.barrier];
      out += text(", barrier %u, where %u of %u threads are\n", w.barrier, at.arrived, at.expected);
    }
    left &= ~same;
  }
  if (w.asleep) out += text("    lanes %s sleep\n", lanes_text(w.asleep).c_str());
  if (w.ready) out += text("    lanes %s can go on\n", lanes_text(w.ready).c_str());
  const uint32_t threads = b.grid->block_size.x - 32 * w.number;
  const uint32_t never = threads >= 32 ? 0 : ALL << threads;
  if (w.gone & ~never) out += text("    lanes %s have left\n", lanes_text(w.gone & ~never).c_str());
  if (never) out += text("    lanes %s do not exist\n", lanes_text(never).c_str());
  return out;
}

/// The first failure counts; everything ends with it.
void give_up(const std::string& why) {
  if (!failed) report = why;
  failed = true;
}

[[noreturn]] void end_run(const std::string& why) {
  give_up(why);
  Fibre nobody;
  leave(nobody);
  abort();
}

std::string who() {
  const Warp& w = *lane->warp;
  return text("%s block %u warp %u lane %u", w.block->grid->name.c_str(), w.block->number, w.number, lane->index);
}

void run_lane() {
  Warp& w = *lane->warp;
  const uint64_t* a = w.block->grid->arguments;
  w.block->grid->kernel(a[0], a[1], a[2], a[3], a[4], a[5]);
  Lane& me = *lane;
  const uint32_t bit = 1u << me.index;
  w.ready &= ~bit, w.gone |= bit;
  bool missed = w.parked != 0;
  for (uint32_t left = w.waiting; left; left &= left - 1) missed |= w.mask[__builtin_ctz(left)] & bit;
  if (missed) end_run("a lane has left while others of its warp wait for it: " + who() + "\n" + warp_text(w));
  w.block->grid->alive--;
  Fibre nobody;
  if (w.ready) {
    Lane& to = next(w);
    lane = &to;
    swap(nobody, to.fibre);
  }
  leave(nobody);
  abort();
}

// --- launches ------------------------------------------------------------------------------------------------------

void begin(Grid& g) {
  const uint32_t threads = g.block_size.x, blocks = g.size.x, warps_each = (threads + 31) / 32;
  if (!arena)
    arena = static_cast<char*>(
        mmap(nullptr, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  g.begun = true;
  g.stack_bytes = static_cast<size_t>(blocks) * threads * (STACK_BYTES + GUARD_BYTES);
  g.stacks = static_cast<char*>(mmap(nullptr, g.stack_bytes, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0));
  const size_t shared_bytes = (g.shared_bytes + STATIC_BYTES + 1023) / 1024 * 1024;
  if (arena == MAP_FAILED || g.stacks == MAP_FAILED || arena_used + (blocks + 1) * shared_bytes > ARENA_BYTES)
    return give_up("there is no memory for " + g.name);
  g.lanes.resize(static_cast<size_t>(blocks) * threads);
  g.blocks.resize(blocks);
  g.alive = blocks * threads;
  if (!arena_used) arena_used = 1024;  // 0 is nobody's address
  size_t at = 0;
  for (uint32_t b = 0; b < blocks; b++) {
    Block& block = g.blocks[b];
    block.grid = &g;
    block.number = b;
    block.index = {b, 0, 0};
    block.offset = arena_used, block.bytes = static_cast<uint32_t>(shared_bytes), block.used = g.shared_bytes;
    block.shared = reinterpret_cast<unsigned char*>(arena) + arena_used;
    memset(block.shared, 0xA5, g.shared_bytes);  // nobody clears it on a GPU either
    arena_used += static_cast<uint32_t>(shared_bytes);
    memset(block.barriers, 0, sizeof block.barriers);
    block.warps.resize(warps_each);
    for (uint32_t n = 0; n < warps_each; n++) {
      Warp& w = block.warps[n];
      const uint32_t here = std::min(32u, threads - 32 * n);
      w = Warp{};
      w.lanes = &g.lanes[at];
      w.block = &block;
      w.number = n;
      w.gone = here == 32 ? 0 : ALL << here;
      w.id = static_cast<uint32_t>(warps.size());
      warps.push_back(&w);
      if (runnable.size() * 64 < warps.size()) runnable.push_back(0);
      release(w, ~w.gone);
      set_runnable(w);
      for (uint32_t i = 0; i < here; i++, at++) {
        Lane& l = g.lanes[at];
        l = Lane{};
        l.warp = &w;
        l.index = i;
        l.thread = {32 * n + i, 0, 0};
        char* stack = g.stacks + at * (STACK_BYTES + GUARD_BYTES);
        mprotect(stack, GUARD_BYTES, PROT_NONE);
        // Their tops lie apart in a cache as well.
        make(l.fibre, stack + GUARD_BYTES, STACK_BYTES - at % 61 * 320, run_lane);
      }
    }
  }
}

/// With the mutex held. All launches are over, or have failed.
void forget() {
  for (Grid* g : grids) {
    g->finished = true;
    if (g->stacks) munmap(g->stacks, g->stack_bytes);
    g->stacks = nullptr;
    g->lanes.clear(), g->blocks.clear();
    g->known = false;
    if (!g->wanted) delete g;
  }
  grids.clear(), warps.clear(), runnable.clear(), sleepers.clear();
  arena_used = 0;
}

/// With the mutex held. Launches that came meanwhile begin; of those that are over it is told.
void look_around() {
  for (Grid* g : joined) {
    grids.push_back(g);
    if (!failed) begin(*g);
  }
  joined.clear();
  for (Grid* g : grids)
    if (g->begun && g->alive == 0) g->finished = true;
  pthread_cond_broadcast(&changed);
}

/// Who has slept enough may go on. Returns the time until the next may, ns.
uint64_t wake(uint64_t now) {
  uint64_t soonest = ~0ull;
  for (size_t i = 0; i < sleepers.size();) {
    Warp& w = *sleepers[i];
    if (w.wake <= now) {
      release(w, w.asleep);
      w.asleep = 0;
      set_runnable(w);
      sleepers[i] = sleepers.back();
      sleepers.pop_back();
    } else {
      soonest = std::min(soonest, w.wake - now);
      i++;
    }
  }
  return soonest;
}

Warp* pick() {
  const uint32_t n = static_cast<uint32_t>(runnable.size());
  if (!n) return nullptr;
  const uint32_t start = below(static_cast<uint32_t>(warps.size()));
  for (uint32_t k = 0; k <= n; k++) {
    const uint32_t word = (start / 64 + k) % n;
    uint64_t bits = runnable[word];
    if (k == 0) bits &= ~0ull << (start & 63);
    if (k == n) bits &= (1ull << (start & 63)) - 1;
    if (bits) return warps[word * 64 + static_cast<uint32_t>(__builtin_ctzll(bits))];
  }
  return nullptr;
}

void deadlock() {
  std::string why = "nobody can go on\n";
  uint32_t told = 0;
  for (const Warp* w : warps)
    if ((w->waiting | w->parked) && told++ < 40) why += warp_text(*w);
  give_up(why);
}

/// Until all launches are over, those included that come meanwhile.
void drive() {
  uint32_t turns = 0;
  uint64_t alive = ~0ull;
  for (;;) {
    uint64_t now_alive = 0;
    for (const Grid* g : grids) now_alive += g->alive == 0;
    if ((++turns & 255) == 1 || now_alive != alive || failed || aborted) {
      alive = now_alive;
      pthread_mutex_lock(&mutex);
      if (aborted) give_up("it was told to end");
      look_around();
      bool over = joined.empty();
      for (const Grid* g : grids) over &= g->finished;
      if (failed || over) {
        forget();
        driven = false;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&mutex);
        return;
      }
      pthread_mutex_unlock(&mutex);
    }
    uint64_t soonest = ~0ull;
    if (!sleepers.empty()) soonest = wake(clock_ns());
    Warp* w = pick();
    if (!w) {
      if (sleepers.empty()) {
        bool over = true;
        for (const Grid* g : grids) over &= g->alive == 0;
        if (!over) deadlock();
      } else if (soonest > 60000) {
        const timespec nap = {0, static_cast<long>(std::min<uint64_t>(soonest - 50000, 1000000))};
        nanosleep(&nap, nullptr);
      } else {
        sched_yield();
      }
      continue;
    }
    if (slow_times > 1 && w->number == slow_warp && w->block->grid->name == slow_kernel && below(slow_times)) continue;
    fuel = refill();
    lane = &next(*w);
    swap(home, lane->fibre);
    if (!w->ready) clear_runnable(*w);
  }
}

}  // namespace

// --- what a lane asks for --------------------------------------------------------------------------------------------

const Index& block_index() { return lane->warp->block->index; }
const Index& block_size() { return lane->warp->block->grid->block_size; }
const Index& grid_size() { return lane->warp->block->grid->size; }
uint32_t block_threads() { return lane->warp->block->grid->block_size.x; }
unsigned char* dynamic_shared() { return lane->warp->block->shared; }
uint32_t processor() { return lane->warp->block->number; }

void* static_shared(const void* tag, size_t bytes) {
  Block& b = *lane->warp->block;
  for (const Static& s : b.statics)
    if (s.tag == tag) return s.at;
  const uint32_t at = (b.used + 127) / 128 * 128;
  if (at + bytes > b.bytes) fail("static variables of %zu bytes are more than a block has", bytes);
  b.used = at + static_cast<uint32_t>(bytes);
  memset(b.shared + at, 0xA5, bytes);
  b.statics.push_back({tag, b.shared + at});
  return b.shared + at;
}

void* at_shared(uint32_t address, uint32_t bytes) {
  const Block& b = *lane->warp->block;
  if (address % bytes) fail("%u bytes at shared address %#x, which is not aligned to them", bytes, address);
  if (address < b.offset || address - b.offset + bytes > b.used)
    fail("%u bytes at shared address %#x, outside its block's %u at %#x", bytes, address, b.used, b.offset);
  return arena + address;
}

void fail(const char* format, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  end_run(who() + ": " + line + "\n");
}

void ask_chance() {
  fuel = refill();
  if (chance() & 1)
    leave(lane->fibre);
  else
    pass_on();
}

void sleep(uint32_t ns) {
  Lane& me = *lane;
  Warp& w = *me.warp;
  const uint64_t until = clock_ns() + ns;
  if (!w.asleep) sleepers.push_back(&w);
  w.wake = w.asleep ? std::min(w.wake, until) : until;
  w.asleep |= 1u << me.index;
  w.ready &= ~(1u << me.index);
  pass_on();
}

uint64_t clock_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

namespace {

[[noreturn]] void diverged(Warp& w, const char* why) { end_run(std::string(why) + ": " + who() + "\n" + warp_text(w)); }

uint64_t reduced(Kind kind, uint64_t a, uint64_t b) {
  const int64_t x = static_cast<int64_t>(a), y = static_cast<int64_t>(b);
  switch (kind) {
    case ADD: return a + b;
    case LEAST: return std::min(a, b);
    case MOST: return std::max(a, b);
    case LEAST_SIGNED: return static_cast<uint64_t>(std::min(x, y));
    case MOST_SIGNED: return static_cast<uint64_t>(std::max(x, y));
    case AND: return a & b;
    case OR: return a | b;
    default: return a ^ b;
  }
}

/// All lanes of `mask` are there: each gets its result.
void complete(Warp& w, Kind kind, uint32_t mask) {
  if (kind == SYNC) return;
  const uint64_t* value = w.value;
  const uint32_t first = static_cast<uint32_t>(__builtin_ctz(mask));
  uint64_t all = kind == BALLOT ? 0 : value[first];
  uint32_t outside = 0;
  for (uint32_t i = 0; i < 32; i++) {
    if (!(mask >> i & 1)) continue;
    if (kind == SHUFFLE) {
      outside |= ~mask >> w.from[i] & 1;
      w.result[i] = value[w.from[i]];
    } else if (kind == MATCH) {
      w.result[i] = 0;
      for (uint32_t k = 0; k < 32; k++) w.result[i] |= static_cast<uint64_t>(mask >> k & 1 && value[k] == value[i]) << k;
    } else if (kind == BALLOT) {
      all |= value[i] << i;
    } else if (i != first) {
      all = reduced(kind, all, value[i]);
    }
  }
  if (outside) diverged(w, "a shuffle takes from a lane that is not in it");
  if (kind == SHUFFLE || kind == MATCH) return;
  for (uint32_t i = 0; i < 32; i++)
    if (mask >> i & 1) w.result[i] = all;
}

}  // namespace

SIMT_CONVERGENT uint64_t collective(Kind kind, uint32_t mask, uint64_t value, uint32_t from, const char* what,
                                              const char* file, int line) {
  Lane& me = *lane;
  Warp& w = *me.warp;
  const uint32_t bit = 1u << me.index;
  me.place = {__builtin_return_address(0), what, file, line};
  w.value[me.index] = value, w.from[me.index] = from, w.mask[me.index] = mask;
  w.ready &= ~bit, w.waiting |= bit;
  if (!(mask & bit)) diverged(w, "a lane waits in a collective that it is not in");
  if (w.gone & mask) diverged(w, "a lane waits for one that has left");
  if (w.parked & mask) diverged(w, "lanes of a warp wait at different places");
  if (mask != ALL) w.partly |= bit;
  // Two that wait for each other must do so in one place. Where all wait for the whole warp, one stands for all: they have
  // been compared with each other.
  uint32_t there = w.waiting & mask & ~bit;
  if (there && !w.partly) there = there & (0 - there);
  bool all = (w.waiting & mask) == mask;
  for (; there; there &= there - 1) {
    const uint32_t other = static_cast<uint32_t>(__builtin_ctz(there));
    all &= w.mask[other] == mask;
    if (!(w.mask[other] & bit)) continue;
    if (!(w.lanes[other].place == me.place) || w.mask[other] != mask)
      diverged(w, "lanes of a warp wait at different places");
  }
  if (all) {
    complete(w, kind, mask);
    w.waiting &= ~mask, w.partly &= ~mask;
    release(w, mask);
    if (--fuel <= 0) {
      ask_chance();
      return w.result[me.index];
    }
  }
  pass_on();
  return w.result[me.index];
}

SIMT_CONVERGENT void barrier(uint32_t id, uint32_t threads, const char* what, const char* file, int line) {
  Lane& me = *lane;
  Warp& w = *me.warp;
  Block& b = *w.block;
  const uint32_t bit = 1u << me.index;
  me.place = {__builtin_return_address(0), what, file, line};
  w.mask[me.index] = 0;
  if (id >= BARRIERS) fail("there is no barrier %u", id);
  if (w.parked) {
    const Lane& first = w.lanes[__builtin_ctz(w.parked)];
    const bool same = first.place == me.place && w.barrier == id;
    w.ready &= ~bit, w.parked |= bit;
    if (!same) diverged(w, "lanes of a warp wait at different places");
  }
  w.ready &= ~bit, w.parked |= bit, w.barrier = id;
  for (uint32_t left = w.waiting; left; left &= left - 1)
    if (w.mask[__builtin_ctz(left)] & bit) diverged(w, "lanes of a warp wait at different places");
  if (w.gone) diverged(w, "a warp of which lanes have left comes to a barrier");
  Barrier& at = b.barriers[id];
  if (at.arrived && at.expected != threads) fail("barrier %u is waited at by %u and by %u threads", id, at.expected, threads);
  at.expected = threads;
  if (++at.arrived == threads) {
    at.arrived = 0;
    for (Warp& other : b.warps) {
      if (!other.parked || other.barrier != id) continue;
      release(other, other.parked);
      other.parked = 0;
      set_runnable(other);
    }
  }
  pass_on();
}

}  // namespace simt

// --- for driver.py -----------------------------------------------------------------------------------------------------

using namespace simt;

extern "C" {
#define SIMT_API __attribute__((visibility("default")))

/// From here on what happens follows from `s`, as far as it follows from anything.
SIMT_API void simt_seed(uint64_t s) { seed(s); }

/// One warp of each block of a kernel gets fewer turns than the others: one in `times`.
SIMT_API void simt_slow(const char* kernel, uint32_t warp, uint32_t times) {
  slow_kernel = kernel, slow_warp = warp, slow_times = times;
}

SIMT_API void* simt_launch(void* kernel, const char* name, uint32_t blocks, uint32_t threads, uint32_t shared,
                           const uint64_t* arguments) {
  Grid* g = new Grid;
  g->kernel = reinterpret_cast<Kernel>(kernel);
  g->name = name;
  memcpy(g->arguments, arguments, sizeof g->arguments);
  g->size = {blocks, 1, 1}, g->block_size = {threads, 1, 1};
  g->shared_bytes = shared;
  pthread_mutex_lock(&mutex);
  joined.push_back(g);
  pthread_mutex_unlock(&mutex);
  return g;
}

/// Until a launch is over: by running it and all that there are, or beside the thread that does. 0: it has failed.
SIMT_API int simt_wait(void* launch) {
  Grid* g = static_cast<Grid*>(launch);
  pthread_mutex_lock(&mutex);
  while (!g->finished) {
    if (driven) {
      pthread_cond_wait(&changed, &mutex);
      continue;
    }
    driven = true;
    pthread_mutex_unlock(&mutex);
    drive();
    pthread_mutex_lock(&mutex);
  }
  const int fine = !failed;
  pthread_mutex_unlock(&mutex);
  return fine;
}

SIMT_API int simt_over(void* launch) {
  pthread_mutex_lock(&mutex);
  const int over = static_cast<Grid*>(launch)->finished;
  pthread_mutex_unlock(&mutex);
  return over;
}

/// Not before it is over.
SIMT_API void simt_forget(void* launch) {
  Grid* g = static_cast<Grid*>(launch);
  pthread_mutex_lock(&mutex);
  g->wanted = false;
  if (!g->known) delete g;
  pthread_mutex_unlock(&mutex);
}

SIMT_API const char* simt_report() { return report.c_str(); }

SIMT_API void simt_abort() { aborted = true; }
}

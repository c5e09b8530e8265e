// The device VM as a process: requests on stdin, answers on stdout, each [n, n words of 8 bytes].
//
// Compiled for a CPU, every piece of memory that the VM is given is an allocation of its own and exactly as large as
// the VM was told, so that a sanitizer sees the first byte beyond it. Compiled by nvcc (-x cu --extended-lambda), the
// same requests are answered by the device.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <memory>
#include <thread>
#include <vector>

#include "vm_check.cuh"
#include "vm_epochs.cuh"
#include "vm_programs.cuh"

using namespace ms;
typedef std::vector<u64> Words;

namespace {

enum Command : u64 { ATTACH = 1, RUN, CLOSE, ENTRIES, FEED, STATE, RAW, THREADS, TAKE };
constexpr u64 SHARED_PART = ~0ull;

/// Every worker's monitor runs.
struct Everybody {
  MS_DEVICE bool operator()(u32) const { return true; }
};

#ifdef __CUDACC__
#define ON_DEVICE [=] __device__

void must(cudaError_t e) {
  if (e == cudaSuccess) return;
  fprintf(stderr, "%s\n", cudaGetErrorString(e));
  abort();
}

void* take_memory(size_t n) {
  void* p;
  must(cudaMalloc(&p, n));
  return p;
}
void give_memory(void* p) { cudaFree(p); }
void copy(void* to, const void* from, size_t n) { must(cudaMemcpy(to, from, n, cudaMemcpyDefault)); }
void set(void* to, int byte, size_t n) { must(cudaMemset(to, byte, n)); }

template <class F>
__global__ void __launch_bounds__(32) warp(F f) {
  __shared__ VmScratch scratch;
  f(scratch, blockIdx.x);
}

/// `f` by so many warps at once, each with a scratch of its own.
template <class F>
void launch(u32 warps, F f) {
  warp<<<warps, 32>>>(f);
  must(cudaDeviceSynchronize());
}
#else
#define ON_DEVICE [=]

void* take_memory(size_t n) {
  void* p;
  if (posix_memalign(&p, 16, n)) abort();
  return p;
}
void give_memory(void* p) { free(p); }
void copy(void* to, const void* from, size_t n) { memcpy(to, from, n); }
void set(void* to, int byte, size_t n) { memset(to, byte, n); }

template <class F>
void launch(u32 warps, F f) {
  auto one = [=](u32 index) {
    std::unique_ptr<VmScratch> scratch(new VmScratch);
    memset(static_cast<void*>(scratch.get()), 0xa5, sizeof(VmScratch));
    f(*scratch, index);
  };
  std::vector<std::thread> others;
  for (u32 k = 1; k < warps; k++) others.emplace_back(one, k);
  one(0);
  for (std::thread& t : others) t.join();
}
#endif

/// Memory of the device.
template <class T>
struct Block {
  T* at = nullptr;
  size_t n = 0;
  Block() = default;
  Block(size_t count, u8 byte) : at(static_cast<T*>(take_memory(count ? count * sizeof(T) : 16))), n(count) {
    if (n) set(at, byte, n * sizeof(T));
  }
  Block(const T* from, size_t count) : Block(count, 0) {
    if (n) copy(at, from, n * sizeof(T));
  }
  Block(const Block&) = delete;
  Block& operator=(Block&& other) {
    std::swap(at, other.at);
    std::swap(n, other.n);
    return *this;
  }
  ~Block() {
    if (at) give_memory(at);
  }
  std::vector<T> words(size_t count) const {
    std::vector<T> out(count);
    if (count) copy(out.data(), at, count * sizeof(T));
    return out;
  }
};

/// A monitor's share of rows: those of its own workers, `batch` at a time.
MS_DEVICE void monitor(const VmAttached& a, VmScratch& s, VmDeep& deep, const u64* rows, u64 n, u32 batch, u32* by,
                       u32 index, u32 monitors) {
  for (u64 at = 0; at < n; at += batch) {
    Lanes<u32> out;
    Lanes<bool> own;
    MS_LANES(lane) {
      const bool is = lane < batch && at + lane < n;
      out[lane] = 0;
      for (u32 k = 0; k < 8; k++) s.row[k][lane] = is ? rows[8 * (at + lane) + k] : ~0ull;
      own[lane] = is && static_cast<u32>(s.row[6][lane] >> 48) % monitors == index;
    }
    const u32 lanes = ballot(own);
    vm_batch(a, s, deep, lanes, out);
    MS_LANES(lane) if (own[lane]) by[at + lane] = out[lane];
    warp_sync();
  }
}

/// The memory of one map, of the first worker.
MS_DEVICE u64* first_values(const VmAttached& a) { return vm_bank(a, a.program->map()[0], a.part(0), false).values; }

struct Session {
  Block<u64> words, arena;
  VmAttached attached{};
  u32 workers = 0;
  u64 shared_words = 0, worker_words = 0;

  u64* part(u64 worker) const {
    return worker == SHARED_PART ? attached.arena : attached.arena + shared_words + worker * worker_words;
  }
  u64 read(const u64* from) const {
    u64 v;
    copy(&v, from, 8);
    return v;
  }

  // workers, instructions, rows, bit, slice, arena words, the program's words
  Words attach(const Words& in) {
    words = Block<u64>(in.data() + 6, in.size() - 6);
    arena = Block<u64>(in[5], 0x5a);
    workers = static_cast<u32>(in[0]);
    Block<u32> sound(1, 0);
    {
      const u64 *w = words.at, n = words.n, room = in[5];
      u32 *out = sound.at, count = workers;
      launch(
          1, ON_DEVICE(VmScratch&, u32) {
            const bool fine = vm_check(w, n, room, count, 1);
            MS_LANES(lane) if (lane == 0)* out = fine;
          });
    }
    if (!sound.words(1)[0]) return {0};
    const VmHeader* header = reinterpret_cast<const VmHeader*>(words.at);
    attached = {header, arena.at, in[1], in[2], workers, 1, 1u << in[3]};
    VmHeader copied;
    copy(static_cast<void*>(&copied), header, sizeof copied);
    shared_words = copied.shared_words, worker_words = copied.worker_words;
    for (u64 w = 0; w <= workers; w++) {
      const VmAttached a = attached;
      u64* p = part(w == 0 ? SHARED_PART : w - 1);
      const u32 slice = static_cast<u32>(in[4]);
      launch(
          1, ON_DEVICE(VmScratch&, u32) {
            u64 from = 0;
            while (!vm_prepare(a, p, w == 0, 0, from, slice)) {
            }
          });
    }
    return {1};
  }

  // batch, rows …; by several monitors at once, if they are
  Words run(const u64* rows, u64 n, u32 batch, u32 monitors) {
    Block<u64> given(rows, 8 * n);
    Block<u32> by(n, 0);
    Block<VmDeep> deep(monitors, 0xa5);
    const VmAttached a = attached;
    const u64* r = given.at;
    u32* out = by.at;
    VmDeep* d = deep.at;
    launch(monitors, ON_DEVICE(VmScratch & s, u32 k) { monitor(a, s, d[k], r, n, batch, out, k, monitors); });
    const std::vector<u32> said = by.words(n);
    return Words(said.begin(), said.end());
  }

  // parts …: a worker, or the shared one, last
  Words close(const Words& in) {
    for (u64 one : in) {
      const bool shared = one == SHARED_PART;
      const VmAttached a = attached;
      const u32 n = workers;
      u64* p = part(one);
      Block<u32> followed(1, 0);
      u32* out = followed.at;
      launch(
          1, ON_DEVICE(VmScratch&, u32) {
            vm_close(a, p, shared);
            for (u32 w = 0; shared && w < n; w++) vm_follow(a, a.part(w));
            const bool all = vm_followed(a, 0, Everybody());
            MS_LANES(lane) if (lane == 0)* out = all;
          });
      if (!followed.words(1)[0]) abort();
    }
    return {};
  }

  // room, parts …: [part, length, its records] each
  Words take(const Words& in) {
    Words out;
    for (u64 k = 1; k < in.size(); k++) {
      Words records;
      while (read(part(in[k]) + PART_EXPORT)) {
        const VmAttached a = attached;
        u64* p = part(in[k]);
        const u32 room = static_cast<u32>(in[0]);
        const bool shared = in[k] == SHARED_PART;
        add(records, room, ON_DEVICE(u64 * buffer, u64*) { return vm_export(a, p, shared, buffer, room); }, nullptr);
      }
      out.push_back(in[k]), out.push_back(records.size());
      out.insert(out.end(), records.begin(), records.end());
    }
    return out;
  }

  /// What `f` writes into a buffer of `room` words.
  template <class F>
  void add(Words& records, u32 room, F f, u64* state) {
    Block<u64> buffer(room, 0);
    Block<u32> used(1, 0);
    u64* b = buffer.at;
    u32* u = used.at;
    launch(
        1, ON_DEVICE(VmScratch&, u32) {
          const u32 n = f(b, state);
          MS_LANES(lane) if (lane == 0)* u = n;
        });
    const Words got = buffer.words(used.words(1)[0]);
    records.insert(records.end(), got.begin(), got.end());
  }

  // map, worker, room
  Words entries(const Words& in) {
    Words out;
    Block<u64> cursor(1, 0);
    while (read(cursor.at) != VM_DONE) {
      const VmAttached a = attached;
      u64* p = part(in[1]);
      const u32 map = static_cast<u32>(in[0]), room = static_cast<u32>(in[2]);
      auto dump = ON_DEVICE(u64 * buffer, u64 * at) {
        u64 entry = *at;
        warp_sync();
        const u32 n = vm_dump(a, map, p, false, entry, buffer, room);
        MS_LANES(lane) if (lane == 0)* at = entry;
        return n;
      };
      add(out, room, dump, cursor.at);
    }
    return out;
  }

  // map, index, value, epoch
  Words feed(const Words& in) {
    Block<u64> fed(1, 0);
    const VmAttached a = attached;
    const u32 n = workers, map = static_cast<u32>(in[0]), index = static_cast<u32>(in[1]);
    const u64 value = in[2], epoch = in[3];
    u64* out = fed.at;
    launch(
        1, ON_DEVICE(VmScratch&, u32) {
          u64 count = 0;
          for (u32 w = 0; w < n; w++) count += vm_feed(a, a.part(w), map, index, value, epoch);
          MS_LANES(lane) if (lane == 0)* out = count;
        });
    return fed.words(1);
  }

  // of each worker the words before its maps
  Words state() {
    Words out(workers * PART_WORDS);
    for (u32 w = 0; w < workers; w++) copy(out.data() + w * PART_WORDS, part(w), PART_WORDS * 8);
    return out;
  }

  // entry, lane, r1, r2, memory of map 0 …: stopped, r0
  Words raw(const Words& in) {
    const VmAttached a = attached;
    Block<VmDeep> deep(1, 0xa5);
    Block<u64> memory(in.data() + 4, in.size() - 4), out(2, 0);
    const u32 entry = static_cast<u32>(in[0]), who = static_cast<u32>(in[1]);
    const u64 r1 = in[2], r2 = in[3], n = memory.n;
    const u64* from = memory.at;
    u64* said = out.at;
    VmDeep* d = deep.at;
    launch(
        1, ON_DEVICE(VmScratch & s, u32) {
          Lanes<u64*> mine;
          Lanes<u32> at;
          MS_LANES(lane) {
            mine[lane] = a.part(0), at[lane] = entry;
            s.reg[1][lane] = r1, s.reg[2][lane] = r2;
            for (u64 k = lane; k < n; k += 32) first_values(a)[k] = from[k];
          }
          warp_sync();
          Vm vm(a, s, *d, mine);
          vm.run(1u << who, at);
          MS_LANES(lane) if (lane == who) said[0] = vm.faulted ? a.part(0)[PART_FAULT] : 0, said[1] = s.reg[0][lane];
        });
    return out.words(2);
  }

  Words answer(u64 command, const Words& in) {
    switch (command) {
      case ATTACH:
        return attach(in);
      case RUN:
        return run(in.data() + 1, (in.size() - 1) / 8, static_cast<u32>(in[0]), 1);
      case THREADS:
        return run(in.data() + 1, (in.size() - 1) / 8, 32, static_cast<u32>(in[0]));
      case CLOSE:
        return close(in);
      case ENTRIES:
        return entries(in);
      case FEED:
        return feed(in);
      case STATE:
        return state();
      case RAW:
        return raw(in);
      case TAKE:
        return take(in);
    }
    abort();
  }
};

bool read_words(u64* to, u64 n) { return n == 0 || fread(to, 8, n, stdin) == n; }

}  // namespace

int main() {
  Session session;
  u64 head[2];
  while (read_words(head, 2)) {
    Words in(head[1]);
    if (!read_words(in.data(), in.size())) return 1;
    const Words out = session.answer(head[0], in);
    const u64 n = out.size();
    fwrite(&n, 8, 1, stdout);
    if (n) fwrite(out.data(), 8, n, stdout);
    fflush(stdout);
  }
}

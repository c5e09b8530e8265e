// The monitor's way to the segment's event ring: rows staged in shared memory, written as columns to host memory.
//
// Rows go out in groups of 32, so that every column of a group is whole 8-byte words. A group that is not full when it
// must be published is written as it stands and again when it has grown: the same words, the old bytes unchanged.
// HEAD is raised only after a system fence over the rows before it; a reader takes any prefix up to HEAD.
#pragma once
#include "segment.cuh"

namespace ms {

/// 32 rows by column, in the order of the ABI's row: 272 words.
struct alignas(16) RowGroup {
  u64 t[32], seq[32], task[32], aux[32];
  u32 request[32], step[32], dep[32], comm[32], tile[32], by[32];
  u16 task_class[32], worker[32], sm[32], peer[32];
  u8 hook[32], dep_class[32], flags[32], rank[32];

  MS_DEVICE void put(u32 i, const ms_ring_row& r) {
    t[i] = r.t, seq[i] = r.seq, task[i] = r.task, aux[i] = r.aux;
    request[i] = r.request, step[i] = r.step, dep[i] = r.dep, comm[i] = r.comm, tile[i] = r.tile, by[i] = r.by;
    task_class[i] = r.task_class, worker[i] = r.worker, sm[i] = r.sm, peer[i] = r.peer;
    hook[i] = r.hook, dep_class[i] = r.dep_class, flags[i] = r.flags, rank[i] = r.rank;
  }
};
static_assert(sizeof(RowGroup) == 32 * sizeof(u64) * 8 + 32 * sizeof(u32), "32 rows of 68 bytes");

/// One monitor's event ring. All 32 lanes hold the same state and call together.
struct RowWriter {
  // A look at the reader's tail is a round trip over PCIe: rarer while it brings nothing, since a hundred monitors that
  // look at once hold up what everybody else has to say to the host.
  static constexpr u64 SOON_NS = 20000, LATE_NS = 640000;

  RowGroup* stage;  // two of them, in shared memory
  u8* ring;
  u64* cursor;
  const u8* tail_byte;
  u64 head, published, freed, tail_read, patience, ring_lost;
  u32 first, slot, pass;  // of the group being staged: its first row in the block, the block's place, the ring's turn
  bool opened;            // the block's generation says that it is being written

  MS_DEVICE void open(RowGroup* groups, u32 monitor) {
    stage = groups;
    ring = segment.rings + static_cast<u64>(monitor) * segment.ring_blocks * segment.block_bytes;
    cursor = segment.cursors + monitor * MS_CURSOR_WORDS;
    tail_byte = segment.control + MS_CONTROL_TAILS + monitor;
    head = published = freed = tail_read = ring_lost = 0;
    patience = SOON_NS;
    first = slot = pass = 0;
    opened = false;
  }

  /// How many of n rows there is room for; the rest are lost, and counted here.
  MS_DEVICE u32 admit(u32 n, u64 now) {
    if (segment.policy == MS_POLICY_OVERWRITE) return n;
    u64 limit = (freed + segment.ring_blocks) * segment.block_rows;
    if (head + n > limit && now - tail_read >= patience) {
      tail_read = now;
      const u8 ahead = warp_load_host(tail_byte) - static_cast<u8>(freed);
      patience = ahead ? SOON_NS : min(2 * patience, LATE_NS);
      if (freed + ahead <= published / segment.block_rows) freed += ahead;  // more than was published is no answer
      limit = (freed + segment.ring_blocks) * segment.block_rows;
    }
    u32 room = static_cast<u32>(min(static_cast<u64>(n), limit - head));
    ring_lost += n - room;
    return room;
  }

  /// n lanes stage one row each, the rank-th of them the row that follows rank rows later.
  MS_DEVICE void append(bool active, u32 rank, u32 n, const ms_ring_row& row) {
    u32 at = (static_cast<u32>(head) & 63) + rank;
    if (active) stage[at >> 5 & 1].put(at & 31, row);
    __syncwarp();
    bool full = (head & 31) + n >= 32;
    u32 parity = static_cast<u32>(head) >> 5 & 1;
    head += n;
    if (full) write(parity, true);
  }

  MS_DEVICE void publish() {
    if (head == published) return;
    if (head & 31) write(static_cast<u32>(head) >> 5 & 1, false);
    fence_system();
    __syncwarp();
    if (lane_id() == 0) store_host(cursor + MS_CURSOR_HEAD, head);
    published = head;
  }

 private:
  MS_DEVICE void write(u32 parity, bool whole) {
    u8* block = ring + static_cast<u64>(slot) * segment.block_bytes;
    u64* generation = reinterpret_cast<u64*>(block);
    const u64 turn = 2 * static_cast<u64>(pass);
    if (!opened) {  // the block's old rows are void before a new one appears
      opened = true;
      if (lane_id() == 0) store_host(generation, turn + 1);
      fence_system();
      __syncwarp();
    }
    const u32 rows = segment.block_rows;
    const u64* words = reinterpret_cast<const u64*>(stage + parity);
    u8* columns = block + MS_BLOCK_HEADER;
#pragma unroll
    for (u32 k = 0; k < 9; k++) {
      u32 w = k * 32 + lane_id();
      u32 width, column, within;  // bytes of the column, its place in the row, word within the group's part of it
      if (k < 4) {
        width = 8, column = MS_ROW_OFF_T + 8 * k, within = lane_id();
      } else if (k < 7) {
        u32 c = (w - 128) >> 4;
        width = 4, column = c < 5 ? MS_ROW_OFF_REQUEST + 4 * c : MS_ROW_OFF_BY, within = w & 15;
      } else if (k < 8) {
        width = 2, column = MS_ROW_OFF_TASK_CLASS + 2 * (lane_id() >> 3), within = w & 7;
      } else {
        width = 1, column = MS_ROW_OFF_HOOK + (lane_id() >> 2), within = w & 3;
      }
      if (k < 8 || lane_id() < 16)
        store_host(reinterpret_cast<u64*>(columns + rows * column + first * width) + within, words[w]);
    }
    __syncwarp();
    if (!whole) return;
    first += 32;
    if (first < rows) return;
    fence_system();
    __syncwarp();
    if (lane_id() == 0) store_host(generation, turn + 2);
    first = 0, opened = false;
    if (++slot == segment.ring_blocks) slot = 0, pass++;
  }
};

}  // namespace ms

// The monitor's way to the segment's summary ring: intervals and coverage, one 128-byte record each.
//
// A record's words go out first, its stamp after a fence, so a reader knows a whole record by its stamp.
#pragma once
#include "segment.cuh"

namespace ms {

/// One monitor's summary ring. All 32 lanes hold the same state and call together.
struct SummaryWriter {
  u64* ring;
  u64* cursor;
  const u8* tail_byte;
  u64 head, freed;  // records written; chunks that the reader has given back

  MS_DEVICE void open(u32 monitor) {
    ring = segment.summaries + static_cast<u64>(monitor) * segment.summary_rows * MS_SUMMARY_WORDS;
    cursor = segment.cursors + monitor * MS_CURSOR_WORDS;
    tail_byte = segment.control + MS_CONTROL_TAILS + segment.monitors + monitor;
    head = freed = 0;
  }

  MS_DEVICE bool room(u32 records) {
    if (head + records - freed * MS_SUMMARY_CHUNK <= segment.summary_rows) return true;
    const u8 ahead = warp_load_host(tail_byte) - static_cast<u8>(freed);
    if ((freed + ahead) * MS_SUMMARY_CHUNK <= head) freed += ahead;  // more than was written is no answer
    return head + records - freed * MS_SUMMARY_CHUNK <= segment.summary_rows;
  }

  /// `record`: MS_SUMMARY_WORDS words in shared memory, of which the stamp is ours to set.
  MS_DEVICE void write(const u64* record) {
    __syncwarp();
    u64* out = ring + head % segment.summary_rows * MS_SUMMARY_WORDS;
    u32 word = lane_id();
    if (word != MS_SUMMARY_STAMP && word < MS_SUMMARY_WORDS) store_host(out + word, record[word]);
    head++;
    fence_system();
    __syncwarp();
    if (word == 0) store_host(out + MS_SUMMARY_STAMP, head);
    fence_system();
    __syncwarp();
  }

  MS_DEVICE void publish() {
    if (lane_id() == 0) store_host(cursor + MS_CURSOR_SUMMARY_HEAD, head);
  }
};

}  // namespace ms

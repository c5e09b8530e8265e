/* Bounded loops: over the digits of a tile's coordinates, and over a counter's octaves. */
#include "megascope.bpf.h"

#define DIGITS 8

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __type(key, __u32);
  __type(value, __u64[2]);
  __uint(max_entries, 16);
} digits SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __type(key, __u32);
  __type(value, __u64);
  __uint(max_entries, 33);
  __uint(map_flags, MS_F_AGGREGATE);
} octaves SEC(".maps");

SEC("hook/assign,start")
int tile(struct megascope_event *e)
{
  __u32 left = e->tile;

#pragma clang loop unroll(disable)
  for (int i = 0; i < DIGITS; i++, left >>= 4) {
    __u32 digit = left & 15;
    __u64 *n = bpf_map_lookup_elem(&digits, &digit);

    if (!n)
      return 1;
    n[i & 1] += 1;
  }
  return 0;
}

SEC("hook/complete")
int octave(struct megascope_event *e)
{
  __u64 took = e->t - e->aux;
  __u32 n = 0;

  for (; n < 32 && took; n++)
    took >>= 1;
  ms_map_add(&octaves, &n, 1);
  return 0;
}

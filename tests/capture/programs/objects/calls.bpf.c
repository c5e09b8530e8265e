/* Functions: static and global, nested, shared by several entries, and one that nobody calls. */
#include "megascope.bpf.h"

volatile const __u32 shift = 3;

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __type(key, __u64);
  __type(value, __u64);
  __uint(max_entries, 1024);
  __uint(map_flags, MS_F_AGGREGATE);
} seen SEC(".maps");

static __noinline __u64 mix(__u64 x)
{
  x ^= x >> 31;
  x *= 0x9e3779b97f4a7c15ull;
  return x ^ x >> 29;
}

__noinline __u64 bucket(__u64 task, __u64 worker)
{
  return mix(task + mix(worker)) >> (shift & 63);
}

__noinline __u64 unused(__u64 x)
{
  return x + 1;
}

SEC("hook/start")
int start(struct megascope_event *e)
{
  __u64 key = bucket(e->task, e->worker) & 0xff;

  ms_map_add(&seen, &key, 1);
  return 0;
}

SEC("hook/complete")
int complete(struct megascope_event *e)
{
  __u64 key = bucket(e->task, e->worker) & 0xff;

  ms_map_add(&seen, &key, mix(e->t) & 0xffff);
  return 0;
}

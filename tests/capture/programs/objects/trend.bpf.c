/* What changed since the epoch before: events slower than the class's own last maximum. */
#include "megascope.bpf.h"

struct {
  __uint(type, MS_MAP_TYPE_STATS);
  __type(key, __u16);
  __uint(max_entries, 64);
} latency SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __type(key, __u16);
  __type(value, __u64);
  __uint(max_entries, 64);
  __uint(map_flags, MS_F_AGGREGATE);
} slower SEC(".maps");

SEC("hook/complete")
int complete(struct megascope_event *e)
{
  __u16 task_class = e->task_class;
  __u64 took = e->t - e->aux;
  const struct ms_stats *before = ms_map_closed(&latency, &task_class);

  ms_stats_add(&latency, &task_class, took);
  if (before && before->count >= 8 && took > before->max) {
    ms_map_add(&slower, &task_class, 1);
    ms_emit(e);
  }
  return 0;
}

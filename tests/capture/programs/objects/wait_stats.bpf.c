/* How long workers waited, by what they waited for: count, sum, min and max in one upsert; and how often they began. */
#include "megascope.bpf.h"

struct reason {
  __u8 dep_class;
  __u8 rank;
  __u16 task_class;
  __u32 dep;
};

struct {
  __uint(type, MS_MAP_TYPE_STATS);
  __type(key, struct reason);
  __uint(max_entries, 512);
} waited SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __type(key, __u32);
  __type(value, __u64);
  __uint(max_entries, 5);
  __uint(map_flags, MS_F_AGGREGATE | MS_F_SHARED);
} begun SEC(".maps");

SEC("hook/wait")
int wait(struct megascope_event *e)
{
  __u32 index = e->dep_class;

  ms_map_add(&begun, &index, 1);
  return 0;
}

SEC("hook/resume")
int resume(struct megascope_event *e)
{
  struct reason reason = {e->dep_class, e->rank, e->task_class, e->dep};

  ms_stats_add(&waited, &reason, e->t - e->aux);
  return 0;
}

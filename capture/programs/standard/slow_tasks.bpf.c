/* The rows of tasks that ran too long, at a limited rate, and a count of all of them. */
#include "megascope.bpf.h"

volatile const __u64 threshold_ns = 1000000;

struct by_class {
  __u16 task_class;
};

struct {
  __uint(type, MS_MAP_TYPE_STATS);
  __type(key, struct by_class);
  __uint(max_entries, 1024);
  __uint(map_flags, MS_F_SHARED);
} slow SEC(".maps");

SEC("hook/complete")
int complete(struct megascope_event *e)
{
  struct by_class key = {e->task_class};
  __u64 took = e->t - e->aux;

  if (!e->aux || e->t < e->aux || took <= threshold_ns)
    return 0;
  ms_stats_add(&slow, &key, took);
  ms_emit(e);
  return 0;
}

/* How full the workers' queues of tasks were, and how often they crossed their threshold. */
#include "megascope.bpf.h"

struct queue {
  __u16 target;
};

/* The depth of a worker's queue after each task that was put in. */
struct {
  __uint(type, MS_MAP_TYPE_STATS);
  __type(key, struct queue);
  __uint(max_entries, 4096);
  __uint(map_flags, MS_F_SHARED);
} depth SEC(".maps");

struct size {
  __u32 capacity;
};

struct {
  __uint(type, MS_MAP_TYPE_HIST);
  __type(key, struct size);
  __uint(max_entries, 64);
  __uint(map_flags, MS_F_SHARED);
} depths SEC(".maps");

struct crossing {
  __u16 by_worker;
  __u16 rises;
};

/* The depth at each crossing, by who saw it. */
struct {
  __uint(type, MS_MAP_TYPE_STATS);
  __type(key, struct crossing);
  __uint(max_entries, 8192);
  __uint(map_flags, MS_F_SHARED);
} pressure SEC(".maps");

SEC("hook/assign")
int assign(struct megascope_event *e)
{
  struct queue queue = {e->aux >> 48};
  struct size size = {e->aux & 0xffffff};
  __u64 after = e->aux >> 24 & 0xffffff;

  ms_stats_add(&depth, &queue, after);
  ms_hist_add(&depths, &size, after);
  return 0;
}

SEC("hook/pressure")
int crossed(struct megascope_event *e)
{
  struct crossing crossing = {e->worker, (e->flags & MS_PRESSURE_RISES) != 0};

  ms_stats_add(&pressure, &crossing, e->aux >> 32);
  return 0;
}

/* How long workers waited, by what for and in which class of task; class 0: the worker itself, for work. */
#include "megascope.bpf.h"

struct reason {
  __u16 task_class;
  __u16 dep_class;
};

struct {
  __uint(type, MS_MAP_TYPE_HIST);
  __type(key, struct reason);
  __uint(max_entries, 1024);
  __uint(map_flags, MS_F_SHARED);
} waited SEC(".maps");

/* Waits whose begin the runtime does not carry. */
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __type(key, struct reason);
  __type(value, __u64);
  __uint(max_entries, 1024);
  __uint(map_flags, MS_F_SHARED | MS_F_AGGREGATE);
} unpaired SEC(".maps");

SEC("hook/resume")
int resume(struct megascope_event *e)
{
  struct reason reason = {e->task_class, e->dep_class};

  if (e->aux && e->t >= e->aux)
    ms_hist_add(&waited, &reason, e->t - e->aux);
  else
    ms_map_add(&unpaired, &reason, 1);
  return 0;
}

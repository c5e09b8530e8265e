/* How long tasks ran, and how long they stood ready before, by class. */
#include "megascope.bpf.h"

struct by_class {
  __u16 task_class;
};

struct {
  __uint(type, MS_MAP_TYPE_HIST);
  __type(key, struct by_class);
  __uint(max_entries, 1024);
  __uint(map_flags, MS_F_SHARED);
} execution SEC(".maps");

struct {
  __uint(type, MS_MAP_TYPE_HIST);
  __type(key, struct by_class);
  __uint(max_entries, 1024);
  __uint(map_flags, MS_F_SHARED);
} ready_to_start SEC(".maps");

struct unpaired_key {
  __u16 task_class;
  __u16 hook;
};

/* Rows whose begin the runtime does not carry, or that stand for several tasks: they are in no histogram. */
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __type(key, struct unpaired_key);
  __type(value, __u64);
  __uint(max_entries, 2048);
  __uint(map_flags, MS_F_SHARED | MS_F_AGGREGATE);
} unpaired SEC(".maps");

static __always_inline int is_paired(const struct megascope_event *e)
{
  return e->aux && e->t >= e->aux && !(e->flags & MS_FLAG_RANGE);
}

static __always_inline void count_unpaired(const struct megascope_event *e)
{
  struct unpaired_key key = {e->task_class, e->hook};

  ms_map_add(&unpaired, &key, 1);
}

SEC("hook/complete")
int complete(struct megascope_event *e)
{
  struct by_class key = {e->task_class};

  if (is_paired(e))
    ms_hist_add(&execution, &key, e->t - e->aux);
  else
    count_unpaired(e);
  return 0;
}

SEC("hook/start")
int start(struct megascope_event *e)
{
  struct by_class key = {e->task_class};

  if (is_paired(e))
    ms_hist_add(&ready_to_start, &key, e->t - e->aux);
  else
    count_unpaired(e);
  return 0;
}

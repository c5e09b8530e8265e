/* Start and complete paired in a map of open tasks, for runtimes that do not carry the start's time. Serial. */
#include "megascope.bpf.h"

struct open {
  __u64 t;
  __u32 step;
  __u32 tile;
};

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __type(key, __u64);
  __type(value, struct open);
  __uint(max_entries, 64);
} running SEC(".maps");

struct {
  __uint(type, MS_MAP_TYPE_HIST);
  __type(key, __u16);
  __uint(max_entries, 64);
} latency SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __type(key, __u32);
  __type(value, __u64);
  __uint(max_entries, 2);
} unpaired SEC(".maps");

static void count(__u32 which)
{
  __u64 *n = bpf_map_lookup_elem(&unpaired, &which);

  if (n)
    *n += 1;
}

SEC("hook/start")
int start(struct megascope_event *e)
{
  __u64 task = e->task;
  struct open begin = {e->t, e->step, e->tile};

  if (bpf_map_update_elem(&running, &task, &begin, BPF_NOEXIST))
    count(0);
  return 0;
}

SEC("hook/complete")
int complete(struct megascope_event *e)
{
  __u64 task = e->task;
  __u16 task_class = e->task_class;
  struct open *begin = bpf_map_lookup_elem(&running, &task);

  if (!begin) {
    count(1);
    return 0;
  }
  ms_hist_add(&latency, &task_class, e->t - begin->t);
  bpf_map_delete_elem(&running, &task);
  return 0;
}

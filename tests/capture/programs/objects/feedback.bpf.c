/* Raw events only while the engine-wide p99 is over the objective: the host writes it, the program reads it. */
#include "megascope.bpf.h"

volatile const __u64 objective_ns = 50000;
volatile const __u32 stale_epochs = 3;

struct {
  __uint(type, MS_MAP_TYPE_FEEDBACK);
  __type(key, __u32);
  __type(value, struct ms_feedback);
  __uint(max_entries, 2);
} engine SEC(".maps");

struct {
  __uint(type, MS_MAP_TYPE_HIST);
  __type(key, __u16);
  __uint(max_entries, 64);
} latency SEC(".maps");

SEC("hook/complete")
int complete(struct megascope_event *e)
{
  __u32 p99 = 0, epoch = 1;
  __u16 task_class = e->task_class;
  struct ms_feedback *seen = bpf_map_lookup_elem(&engine, &p99);
  struct ms_feedback *now = bpf_map_lookup_elem(&engine, &epoch);

  ms_hist_add(&latency, &task_class, e->t - e->aux);
  if (seen && now && seen->value > objective_ns && now->value - seen->epoch <= stale_epochs)
    ms_emit(e);
  return 0;
}

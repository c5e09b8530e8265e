/* Execution time by class and worker, and the events themselves where it is too long. */
#include "megascope.bpf.h"

volatile const __u64 threshold_ns = 20000;

struct place {
  __u16 task_class;
  __u16 worker;
};

struct {
  __uint(type, MS_MAP_TYPE_HIST);
  __type(key, struct place);
  __type(value, struct ms_hist);
  __uint(max_entries, 256);
} latency SEC(".maps");

SEC("hook/complete")
int complete(struct megascope_event *e)
{
  struct place place = {e->task_class, e->worker};
  __u64 took = e->t - e->aux;

  ms_hist_add(&latency, &place, took);
  if (took > threshold_ns)
    ms_emit(e);
  return 0;
}

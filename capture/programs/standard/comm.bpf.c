/* What was sent to whom, and how long workers waited for what they received. */
#include "megascope.bpf.h"

/* A class of communication tasks is one round of an iteration. */
struct round {
  __u16 peer;
  __u16 task_class;
};

struct {
  __uint(type, MS_MAP_TYPE_STATS);
  __type(key, struct round);
  __uint(max_entries, 4096);
  __uint(map_flags, MS_F_SHARED);
} sent SEC(".maps");

struct {
  __uint(type, MS_MAP_TYPE_HIST);
  __type(key, struct round);
  __uint(max_entries, 512);
  __uint(map_flags, MS_F_SHARED);
} received SEC(".maps");

/* What was received without a wait that the runtime carries. */
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __type(key, struct round);
  __type(value, __u64);
  __uint(max_entries, 1024);
  __uint(map_flags, MS_F_SHARED | MS_F_AGGREGATE);
} unpaired SEC(".maps");

SEC("hook/send")
int send(struct megascope_event *e)
{
  struct round round = {e->peer, e->task_class};

  ms_stats_add(&sent, &round, e->aux);
  return 0;
}

SEC("hook/receive")
int receive(struct megascope_event *e)
{
  struct round round = {e->peer, e->task_class};

  if (e->aux && e->t >= e->aux)
    ms_hist_add(&received, &round, e->t - e->aux);
  else
    ms_map_add(&unpaired, &round, 1);
  return 0;
}

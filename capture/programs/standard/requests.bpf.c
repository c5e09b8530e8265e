/* What requests went through, when, and how long the engine's iterations took. */
#include "megascope.bpf.h"

struct state {
  __u32 state;
};

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __type(key, struct state);
  __type(value, __u64);
  __uint(max_entries, 64);
  __uint(map_flags, MS_F_SHARED | MS_F_AGGREGATE);
} states SEC(".maps");

struct life {
  __u32 request;
  __u32 state;
};

/* First and last time of each state of each request: min and max are t. Two firings of one request are not paired
   here, because that would depend on their order; count, min and max give what lies between. */
struct {
  __uint(type, MS_MAP_TYPE_STATS);
  __type(key, struct life);
  __uint(max_entries, 8192);
  __uint(map_flags, MS_F_SHARED);
} seen SEC(".maps");

struct engine {
  __u16 device;
};

struct {
  __uint(type, MS_MAP_TYPE_HIST);
  __type(key, struct engine);
  __uint(max_entries, 64);
  __uint(map_flags, MS_F_SHARED);
} steps SEC(".maps");

SEC("hook/request")
int request(struct megascope_event *e)
{
  struct state state = {e->aux};
  struct life life = {e->request, e->aux};

  ms_map_add(&states, &state, 1);
  ms_stats_add(&seen, &life, e->t);
  return 0;
}

SEC("hook/step")
int step(struct megascope_event *e)
{
  struct engine engine = {e->rank};

  if (e->flags & MS_STEP_ENDS && e->aux && e->t >= e->aux)
    ms_hist_add(&steps, &engine, e->t - e->aux);
  return 0;
}

/* Every shape that a key or value may have: nested, arrays, bit fields, enums, bool, text, signed numbers, unions. */
#include "megascope.bpf.h"

typedef __u64 nanoseconds;
enum phase { PHASE_NONE, PHASE_QUEUED, PHASE_RUNNING = 5 };
enum change { CHANGE_DOWN = -1, CHANGE_NONE, CHANGE_UP };

struct span {
  nanoseconds begin;
  nanoseconds end;
};

struct state {
  struct span spans[2];
  enum phase phase;
  enum change change;
  _Bool late;
  char tag[7];
  __u32 depth : 12, lane : 5, : 3, hot : 1;
  __s16 drift;
  __u8 last[3];
  union {
    __u32 tile;
    struct {
      __u16 low, high;
    };
  };
  volatile const __s64 *where;
};

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __type(key, struct span);
  __type(value, struct state);
  __uint(max_entries, 16);
} states SEC(".maps");

SEC("hook/complete")
int complete(struct megascope_event *e)
{
  struct span key = {e->aux & 3, 0};
  struct state *old = bpf_map_lookup_elem(&states, &key);

  if (old) {
    old->spans[1].begin = e->aux;
    old->spans[1].end = e->t;
    old->depth += 1;
    old->lane = e->worker;
    old->hot = e->flags & 1;
    old->drift = (__s16)(e->step - 7);
    old->change = e->step & 1 ? CHANGE_UP : CHANGE_DOWN;
    old->late = e->t - e->aux > 1000;
    old->low = e->tile;
    return 0;
  }
  struct state fresh = {.phase = PHASE_RUNNING, .tag = "tile", .tile = e->tile};
  fresh.spans[0].end = e->t;
  fresh.last[2] = e->rank;
  bpf_map_update_elem(&states, &key, &fresh, BPF_ANY);
  return 0;
}

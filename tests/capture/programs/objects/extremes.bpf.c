/* Per request: tasks, the longest and the shortest, in hash maps that commute; several hooks share one entry. */
#include "megascope.bpf.h"

#define PER_REQUEST(name)                                                                                              \
  struct {                                                                                                             \
    __uint(type, BPF_MAP_TYPE_HASH);                                                                                   \
    __type(key, __u32);                                                                                                \
    __type(value, __u64);                                                                                              \
    __uint(max_entries, 128);                                                                                          \
    __uint(map_flags, MS_F_AGGREGATE);                                                                                 \
  } name SEC(".maps")

PER_REQUEST(events);
PER_REQUEST(shortest);
PER_REQUEST(longest);

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __type(key, __u32);
  __type(value, __u64);
  __uint(max_entries, 1);
  __uint(map_flags, MS_F_AGGREGATE);
} last SEC(".maps");

SEC("hook/complete,resume,receive")
int took(struct megascope_event *e)
{
  __u32 request = e->request, zero = 0;
  __u64 since = e->aux, now = bpf_ktime_get_ns();

  if (request == MS_REQUEST_NONE || request == MS_REQUEST_UNKNOWN)
    return 0;
  ms_map_add(&events, &request, 1);
  ms_map_min(&shortest, &request, now - since);
  ms_map_max(&longest, &request, now - since);
  ms_map_max(&last, &zero, now);
  return 0;
}

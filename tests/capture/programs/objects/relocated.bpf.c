/* What CO-RE can ask: offsets of every size, whether fields exist, how large they are, how large the context is. */
#include "megascope.bpf.h"

/* A context of some other minor of the ABI, as its header would have it. */
struct megascope_event___later {
  __u32 lane;
  __u64 task;
  __u32 comm;
} MS_RELOCATED;

struct facts {
  __u32 lane_exists, comm_exists, comm_bytes, row_bytes, sum;
};

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __type(key, __u32);
  __type(value, struct facts);
  __uint(max_entries, 1);
} facts SEC(".maps");

SEC("hook/send,receive")
int peer(struct megascope_event *e)
{
  struct megascope_event___later *later = (void *)e;
  __u32 zero = 0;
  struct facts *f = bpf_map_lookup_elem(&facts, &zero);

  if (!f)
    return 0;
  f->lane_exists = bpf_core_field_exists(later->lane);
  if (bpf_core_field_exists(later->lane))
    f->sum += later->lane;
  f->comm_exists = bpf_core_field_exists(later->comm);
  f->comm_bytes = bpf_core_field_size(later->comm);
  f->row_bytes = bpf_core_type_size(struct megascope_event);
  f->sum += later->comm + e->peer + e->rank + (__u32)later->task + e->hook;
  return 0;
}

/* The life of requests: admitted, tokens, finished. A read-only table says which states count; epochs are counted. */
#include "megascope.bpf.h"

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(key_size, sizeof(__u32));
  __uint(value_size, 2 * sizeof(__u64));
  __uint(max_entries, 32);
} alive SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __type(key, __u32);
  __type(value, __u64);
  __uint(max_entries, 16);
} states SEC(".maps");

static volatile const __u8 counted[16] = {[MS_REQUEST_TOKEN] = 1, [MS_REQUEST_FIRST_TOKEN] = 1};

SEC("hook/request")
int request(struct megascope_event *e)
{
  __u32 id = e->request, state = e->aux & 15;
  __u64 born[2] = {e->t, e->aux >> 32};
  __u64 *n = bpf_map_lookup_elem(&states, &state);

  if (n && counted[state])
    __sync_fetch_and_add(n, 1);
  if (state == MS_REQUEST_ADMITTED)
    bpf_map_update_elem(&alive, &id, born, BPF_ANY);
  else if (state == MS_REQUEST_FINISHED || state == MS_REQUEST_CANCELLED)
    bpf_map_delete_elem(&alive, &id);
  return 0;
}

SEC("hook/epoch")
int epoch(struct megascope_event *e)
{
  __u32 zero = 0;
  __u64 *n = bpf_map_lookup_elem(&states, &zero);

  if (n && e->t > e->aux)
    *n += 1;
  return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";

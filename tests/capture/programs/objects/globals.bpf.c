/* Global variables of all three kinds, static ones too; constants with members; a table that is read by index. */
#include "megascope.bpf.h"

enum level { LEVEL_LOW, LEVEL_HIGH = 3 };

struct limits {
  __u64 low, high;
  __s32 offset;
  _Bool enabled;
  __u8 weight[4];
};

volatile const struct limits limits = {.low = 100, .high = 10000, .enabled = 1, .weight = {1, 2, 3, 4}};
volatile const enum level level = LEVEL_LOW;
volatile const char label[8] = "default";
static volatile const __u16 factor = 2;
const __u32 table[8] = {1, 1, 2, 3, 5, 8, 13, 21};

__u64 total;
static __u64 between;
__u32 first_step = 0xffffffff;

SEC("hook/complete")
int complete(struct megascope_event *e)
{
  __u64 took = e->t - e->aux + limits.offset;

  if (!limits.enabled || label[0] == 'x')
    return 0;
  if (first_step == 0xffffffff)
    first_step = e->step;
  total += took * factor + limits.weight[e->worker & 3] * table[e->step & 7];
  if (took >= limits.low && took < limits.high && level == LEVEL_HIGH)
    between += 1;
  return 0;
}

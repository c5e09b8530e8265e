/* Advice: a constant of the operator's. */
#include "megascope.bpf.h"

volatile const __u32 lane = 2;

SEC("pick")
int advise(void *context)
{
  return lane & 7;
}

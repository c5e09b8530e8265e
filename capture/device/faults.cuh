// Fault controls, as the kernel applies them: which are in force in an iteration, and what they hold back.
// capture/engines/faults.py says what each means. Read only where engine.faulty says that there are any.
#pragma once
#include "engine.cuh"

namespace ms {

MS_DEVICE void pause_ns(u64 ns, u64 deadline) {
  u64 until = device_time() + ns;
  if (until > deadline) until = deadline;
  while (device_time() < until) __nanosleep(200);
}

MS_DEVICE u32 mix(u32 a, u32 b) {
  u32 h = a * 0x9e3779b1u ^ b * 0x85ebca77u;
  h ^= h >> 15;
  h *= 0x2c1b3c6du;
  return h ^ h >> 13;
}

/// Which of the fault controls' phases an iteration is in.
MS_DEVICE u32 fault_phase(u32 iteration) { return __ldg(engine.fault_phase + iteration); }

/// delay: the task takes `factor` times as long.
MS_DEVICE void stretch(u32 task_class, u32 iteration, u64 began, u64 deadline) {
  float factor = engine.fault_factor[fault_phase(iteration) * engine.n_classes + task_class];
  if (factor > 1.0f) pause_ns(static_cast<u64>((device_time() - began) * (factor - 1.0f)), deadline);
}

/// postpone: for how long nobody is told that a dependency is satisfied.
MS_DEVICE u32 postponed_ns(u32 dep, u32 iteration) {
  return engine.fault_postpone[static_cast<u64>(fault_phase(iteration)) * (engine.n_deps + 1) + dep];
}

/// starve: for how long nobody takes up a task that is ready.
MS_DEVICE u32 starved_ns(u32 task, u32 iteration) {
  return engine.fault_starve[static_cast<u64>(fault_phase(iteration)) * (engine.n_tasks + 1) + task];
}

/// comm: how much later than it was sent the data of a round arrives; and postpone, of that arrival.
MS_DEVICE u32 late_ns(u32 round, u32 arrival, u32 iteration) {
  const u32 late = engine.fault_comm[static_cast<u64>(fault_phase(iteration)) * engine.rounds + round];
  return late + postponed_ns(arrival, iteration);
}

/// skew: a share of the slots' first choices goes to one expert instead. The expert, or engine.experts for none.
MS_DEVICE u32 skewed(u32 layer, u32 slot, u32 iteration) {
  const u32* skew = engine.fault_skew + 2 * fault_phase(iteration);
  return mix(layer << 16 | slot, iteration) < skew[1] ? skew[0] : engine.experts;
}

}  // namespace ms

// From a queue's record to the ABI's row.
#pragma once
#include "hooks.cuh"

#if MS_MONITORED

namespace ms {

/// Of a dependency that the engine's tables may not have.
MS_DEVICE u32 dep_kind(u32 dep) { return dep <= segment.n_deps ? __ldg(&dep_row(dep).kind) : MS_DEP_NONE; }

/// A record becomes a row: what is constant for the task stands in its descriptor, what is constant for the step in
/// the serving plan. now: the device's time, a moment after the record was taken.
MS_DEVICE void complete(const Record& r, u32 worker, u32 sm, u64 now, u64 seq, ms_ring_row& row) {
  // Its age, or how long after `now` was read it was fired: within two seconds either way, it is known which.
  const u32 age = static_cast<u32>(now) - r.t;
  row.t = age >> 31 ? now + static_cast<u32>(-age) : now - age;
  row.seq = seq;
  row.hook = r.hook;
  row.flags = r.flags;
  row.worker = worker;
  row.sm = sm;
  row.step = r.iteration;
  row.comm = 0;
  row.peer = MS_PEER_NONE;
  row.rank = rank_of(worker);
  row.by = 0;
  row.task = row.aux = 0;
  row.request = MS_REQUEST_NONE;
  row.dep = row.tile = 0;
  row.task_class = 0;
  row.dep_class = MS_DEP_NONE;
  u32 dep = 0, kind = MS_DEP_NONE, bytes = 0;
  bool planned = r.iteration < segment.steps;
  if (r.task != 0) row.task = static_cast<u64>(r.iteration) << 32 | r.task;
  if (r.task != 0 && r.task <= segment.n_tasks) {
    const u8* task = segment.tasks + r.task * segment.task_bytes;
    uint4 d = __ldg(reinterpret_cast<const uint4*>(task));  // a TaskRow
    u32 slot = d.y >> 16;
    row.tile = d.x;
    row.task_class = static_cast<u16>(d.y);
    dep = d.z, kind = d.w & 0xff;
    if (planned && slot != NO_SLOT && !(r.flags & MS_FLAG_RANGE))
      row.request = __ldg(segment.request + static_cast<u64>(r.iteration) * segment.slots + slot);
    else if (planned)
      row.request = MS_REQUEST_SET | __ldg(segment.request_set + r.iteration);
    const u32 about_arrival = 1u << MS_HOOK_READY | 1u << MS_HOOK_WAIT | 1u << MS_HOOK_RESUME;
    const bool receives = r.hook == MS_HOOK_RECEIVE || (about_arrival >> r.hook & 1 && r.arg2 == FOR_ARRIVAL);
    if ((receives || r.hook == MS_HOOK_SEND) && segment.task_bytes >= sizeof(TaskRow) + sizeof(CommRow)) {
      const uint2 c = __ldg(reinterpret_cast<const uint2*>(task + sizeof(TaskRow)));  // a CommRow
      if (r.hook != MS_HOOK_READY) {
        row.comm = comm_generation(r.iteration, d.x & ROUND_MASK);
        row.peer = segment.ranks == 2 ? 1 - row.rank : MS_PEER_ALL;
      }
      dep = receives ? c.x : 0, kind = receives ? MS_DEP_COMMUNICATION : MS_DEP_NONE;
      bytes = c.y;
    }
  }
  u64 pair = static_cast<u64>(r.arg0) << 32 | r.arg1, time = static_cast<u64>(r.arg1) << 32 | r.arg0;
  switch (r.hook) {
    case MS_HOOK_READY:
      row.dep = dep, row.dep_class = kind;
      row.aux = r.arg0 ? static_cast<u64>(r.iteration) << 32 | r.arg0 : 0;
      if (r.flags & MS_FLAG_RANGE) row.tile = r.arg1;
      break;
    case MS_HOOK_ASSIGN:
      row.aux = static_cast<u64>(r.arg2) << 48 | static_cast<u64>(r.arg0) << 24 | r.arg1;
      break;
    case MS_HOOK_START:
      row.t = r.began;
      row.aux = r.arg0 ? row.t - (r.t - r.arg0) : 0;
      break;
    case MS_HOOK_COMPLETE:
      row.aux = r.began;
      break;
    case MS_HOOK_WAIT:
    case MS_HOOK_RESUME:
      if (r.arg2 >= FOR_THIS && r.arg2 - FOR_THIS != dep) dep = r.arg2 - FOR_THIS, kind = dep_kind(dep);
      row.dep = r.arg2 == FOR_END ? segment.end_dep : dep;
      row.dep_class = r.task && dep ? kind : MS_DEP_CONTROL;  // without a task: for work, or for the iteration to end
      row.aux = r.hook == MS_HOOK_WAIT ? pair : time;
      break;
    case MS_HOOK_RELEASE:
      row.dep = r.arg0;
      row.dep_class = dep_kind(r.arg0);
      row.aux = static_cast<u64>(r.arg1) << 32 | (r.arg0 <= segment.n_deps ? __ldg(&dep_row(r.arg0).wanted) : 0);
      break;
    case MS_HOOK_SEND:
      row.aux = bytes;
      break;
    case MS_HOOK_RECEIVE:
      row.dep = dep, row.dep_class = kind;
      row.aux = time;
      break;
    case MS_HOOK_REQUEST:
      row.request = r.arg1;
      row.aux = static_cast<u64>(r.arg0) << 32 | r.arg2;
      break;
    case MS_HOOK_STEP:
      if (planned) row.request = MS_REQUEST_SET | __ldg(segment.request_set + r.iteration);
      row.aux = time;
      break;
    case MS_HOOK_PRESSURE:
      row.aux = pair;
      break;
  }
}

}  // namespace ms

#endif

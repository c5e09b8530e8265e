// From a queue's record to the ABI's row.
#pragma once
#include "hooks.cuh"

#if MS_MONITORED

namespace ms {

/// A record becomes a row: what is constant for the task stands in its descriptor, what is constant for the step in
/// the serving plan. now: the device's time, a moment after the record was taken.
MS_DEVICE void complete(const Record& r, u32 worker, u32 sm, u64 now, u64 seq, ms_ring_row& row) {
  u32 low = static_cast<u32>(now) - r.t;  // its age; a firing a moment after `now` was read counts as 2^32 - a little
  row.t = low >= 0xf0000000u ? now + static_cast<u32>(-low) : now - low;
  row.seq = seq;
  row.hook = r.hook;
  row.flags = r.flags;
  row.worker = worker;
  row.sm = sm;
  row.step = r.iteration;
  row.comm = 0;
  row.peer = MS_PEER_NONE;
  row.rank = 0;
  row.by = 0;
  row.task = row.aux = 0;
  row.request = MS_REQUEST_NONE;
  row.dep = row.tile = 0;
  row.task_class = 0;
  row.dep_class = MS_DEP_NONE;
  u32 dep = 0, kind = MS_DEP_NONE;
  bool planned = r.iteration < segment.steps;
  if (r.task != 0 && r.task <= segment.n_tasks) {
    uint4 d = __ldg(reinterpret_cast<const uint4*>(segment.tasks + r.task * segment.task_bytes));  // a TaskRow
    u32 slot = d.y >> 16;
    row.task = static_cast<u64>(r.iteration) << 32 | r.task;
    row.tile = d.x;
    row.task_class = static_cast<u16>(d.y);
    dep = d.z, kind = d.w & 0xff;
    if (planned && slot != NO_SLOT && !(r.flags & MS_FLAG_RANGE))
      row.request = __ldg(segment.request + static_cast<u64>(r.iteration) * segment.slots + slot);
    else if (planned)
      row.request = MS_REQUEST_SET | __ldg(segment.request_set + r.iteration);
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
      row.dep = r.arg2 ? segment.end_dep : dep;
      row.dep_class = dep ? kind : MS_DEP_CONTROL;  // without a task: for work, or for the iteration to end
      row.aux = r.hook == MS_HOOK_WAIT ? pair : time;
      break;
    case MS_HOOK_RELEASE:
      row.dep = r.arg0;
      row.dep_class = __ldg(&dep_row(r.arg0).kind);
      row.aux = static_cast<u64>(r.arg1) << 32 | __ldg(&dep_row(r.arg0).wanted);
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

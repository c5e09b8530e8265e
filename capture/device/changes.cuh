// How a monitor goes over from one party to the next: the recorder's mask, programs that come and programs that leave.
//
// So that each event is seen by exactly one party, the workers are told to fire for the old party and the new, in a new
// turn. A worker says from which event on it does; there its interval is cut, and from there the new party runs for it.
// When all have gone over, the change is in force and acknowledged.
#pragma once
#include "watch.cuh"

namespace ms {

constexpr u64 CONTROL_NS = 64000;    // a look for a change
constexpr u64 PING_NS = 20000;       // how long a burst of the host's pings is listened for
constexpr u32 PREPARE_WORDS = 4096;  // of a part of a program's maps, made ready between two batches
constexpr u32 CONTROL_MASK = (1u << 24) - 1;

/// Where a monitor stands with a change.
enum Switch : u32 { SWITCH_NONE, SWITCH_PREPARE, SWITCH_WORKERS };

/// All 32 lanes hold the same state and call together.
struct Changing {
  MonitorShared& shared;
  Party party, coming;  // who watches; and while that changes, who will
  u64* cursor;
  u64 now, last_control, pinged;
  u64 preparing;  // of the part that is being made ready: how far it is
  u32 prepared;   // workers whose part of a new program's maps is ready
  u32 index, workers;
  u32 control, asked, latched;  // the recorder's word (mask and commit byte): in force, asked for, seen on the host
  u32 change, wanted, polled;   // numbers of changes: in force, asked for, seen on the host
  u32 leaving;                  // places of programs that have left and are not wholly exported
  u32 sharing;                  // places of programs that run and have shared maps
  u32 turn;                     // parity of the workers' turn, as they are told
  u32 staying;                  // workers that have not gone over
  Switch step;
  bool ending;  // nobody runs after this

  MS_DEVICE Changing(MonitorShared& s, u32 i) : shared(s) {
    index = i;
    now = warp_time();
    cursor = segment.cursors + i * MS_CURSOR_WORDS;
    last_control = pinged = preparing = prepared = 0;
    workers = 0;
    coming = party = {0, 0, 0, static_cast<Running*>(segment.running) + i * PLACES};
    control = asked = latched = change = wanted = polled = leaving = sharing = turn = staying = 0;
    step = SWITCH_NONE;
    ending = false;
  }

  MS_DEVICE Watched get(u32 i) const { return shared.watched[i]; }
  MS_DEVICE void put(const Watched& w, u32 i) {
    __syncwarp();
    if (lane_id() == 0) shared.watched[i] = w;
    __syncwarp();
  }
  MS_DEVICE u32 worker(u32 i) const { return shared.watched[i].worker; }

  MS_DEVICE void follow_control() {
    if (now - last_control >= CONTROL_NS) {
      last_control = now;
      if (index == 0) poll_host();
      if (step == SWITCH_NONE && !ending) look();
    }
    if (step == SWITCH_PREPARE && prepare()) tell();
    if (step == SWITCH_WORKERS && staying == 0) go_over();
  }

  /// By value, word by word: a reference to one of two would put them all into memory.
  MS_DEVICE Party party_of(const Watched& w) const {
    return {w.over ? coming.recorded : party.recorded, w.over ? coming.active : party.active,
            w.over ? coming.hooks : party.hooks, party.running};
  }

  /// Is something asked for?
  MS_DEVICE void look() {
    asked = __shfl_sync(FULL_WARP, load_device(&segment.orders->control.word), 0);
    wanted = __shfl_sync(FULL_WARP, load_device(&segment.programs->number.word), 0);
    if (asked == control && wanted == change) return;
    if (wanted == change) {
      tell();
      return;
    }
    fence_device();
    if (segment.programs->change.cells) {
      feed();
      return;
    }
    step = SWITCH_PREPARE;
    preparing = prepared = 0;
    const Change& c = segment.programs->change;
    if (c.place != NOWHERE) leaving &= ~(1u << c.place);  // the host has had all of who was there
    if (c.place != NOWHERE && lane_id() == 0) party.running[c.place] = c.running;
    __syncwarp();
  }

  /// Engine-wide values for programs that read them; between two batches, so that no program sees half of one.
  MS_DEVICE void feed() {
    const Change& c = segment.programs->change;
#pragma unroll 1
    for (u32 k = 0; k < c.cells; k++) {
      const Cell& cell = c.cell[k];
      if (cell.place >= PLACES || !(party.active >> cell.place & 1)) continue;
      const VmAttached& a = party.running[cell.place].vm;
      for (u32 i = 0; i < workers; i++) vm_feed(a, a.part(worker(i)), cell.map, cell.index, cell.value, cell.epoch);
    }
    change = wanted;
    __syncwarp();
    if (lane_id() == 0) {
      store_release_device(&segment.progress[index].change, change);
      store_host(segment.export_words + MONITOR_WORDS * index + MONITOR_CHANGE, change);
    }
  }

  /// Make the workers' parts of a new program's maps ready, a piece at a time. True when they are.
  MS_DEVICE bool prepare() {
    const Change& c = segment.programs->change;
    if (c.place == NOWHERE || prepared == workers) return true;
    const VmAttached& a = party.running[c.place].vm;
    u64* part = a.part(worker(prepared));
    if (!vm_prepare(a, part, false, rank_of(worker(prepared)), preparing, PREPARE_WORDS)) return false;
    vm_follow(a, part);
    u32* book = reinterpret_cast<u32*>(&book_of(c.place, worker(prepared)));
    for (u32 k = lane_id(); k < sizeof(Book) / 4; k += 32) book[k] = 0;
    __syncwarp();
    preparing = 0;
    return ++prepared == workers;
  }

  /// The workers are to fire for those that run and those that will.
  MS_DEVICE void tell() {
    step = SWITCH_WORKERS;
    staying = workers;
    coming.recorded = asked & CONTROL_MASK;
    coming.active = active_to_be();
    coming.hooks = coming.recorded | running_hooks(party.running, coming.active);
    turn ^= 1;
    set_masks(party.hooks | coming.hooks);
  }

  /// At the end: nobody watches after this, whatever the workers do.
  MS_DEVICE void tell_end() {
    step = SWITCH_WORKERS;
    staying = workers;
    coming.recorded = coming.active = coming.hooks = 0;
    for (u32 i = 0; i < workers; i++) {
      Watched w = get(i);
      w.cut_early();
      put(w, i);
    }
  }

  MS_DEVICE u32 active_to_be() const {
    if (wanted == change) return party.active;
    const Change& c = segment.programs->change;
    u32 active = party.active;
    if (c.leaves != NOWHERE) active &= ~(1u << c.leaves);
    if (c.place != NOWHERE) active |= 1u << c.place;
    return active;
  }

  MS_DEVICE void set_masks(u32 mask) {
    for (u32 i = 0; i < workers; i++)
      if (lane_id() == 0) shared.watched[i].queue.set_mask(mask | (turn ? TURN : 0));
    __syncwarp();
  }

  MS_DEVICE bool stays(const Watched& w) const { return step == SWITCH_WORKERS && !w.over; }

  /// After a look at the records of a worker that stays: whether it has taken its turn. One that has left takes none.
  MS_DEVICE bool takes_turn(Watched& w) const {
    w.until = w.queue.taken_over();
    if (w.until || w.queue.left()) w.cut_early();
    return w.until;
  }

  /// Its interval has been cut at its turn, or for good: from here on the new party watches it.
  MS_DEVICE void take_along(Watched& w) {
    w.over = true;
    staying--;
    if (lane_id() == 0)
      for (u32 left = coming.active & ~party.active; left; left &= left - 1)
        book_of(__ffs(left) - 1, w.worker).opened = now;
    __syncwarp();
  }

  /// All workers have gone over.
  MS_DEVICE void go_over() {
    step = SWITCH_NONE;
    leaving |= party.active & ~coming.active;
    party = coming;
    for (u32 i = 0; i < workers; i++) {
      Watched w = get(i);
      w.over = false;
      put(w, i);
    }
    if (ending) {
      sharing = 0;
      tell_ended();
      return;
    }
    set_masks(party.hooks);
    control = asked, change = wanted;
    sharing = 0;
#pragma unroll 1
    for (u32 left = party.active; left; left &= left - 1)
      if (party.running[__ffs(left) - 1].vm.program->shared_words > PART_WORDS) sharing |= left & -left;
    if (lane_id() == 0) {
      store_release_device(&segment.progress[index].change, change);
      store_host(cursor + MS_CURSOR_MASK, control & CONTROL_MASK);
      store_host(cursor + MS_CURSOR_ACK, control >> 24);
      store_host(segment.export_words + MONITOR_WORDS * index + MONITOR_CHANGE, change);
    }
  }

  /// It runs nothing any more, and no change comes into force with it.
  MS_DEVICE void tell_ended() const {
    __syncwarp();
    if (lane_id() == 0) {
      store_release_device(&segment.progress[index].ended, 1);
      fence_system();  // whoever sees this sees the last change that was in force
      store_host(segment.export_words + MONITOR_WORDS * index + MONITOR_ENDED, 1);
    }
  }

  /// The elected monitor alone reads the host's pages (two microseconds over PCIe) and hands on in device memory. The
  /// mask is only taken when the commit byte beside it has changed.
  MS_DEVICE void poll_host() {
    u64 bytes = warp_load_host(reinterpret_cast<const u64*>(segment.control + MS_CONTROL_COMMIT));
    u64 stop = warp_load_host(segment.host + HOST_STOP);
    u64 ping = warp_load_host(segment.host + HOST_PING);
    u64 number = warp_load_host(segment.host + HOST_CHANGE + CHANGE_NUMBER);
    answer(ping);
    u32 commit = bytes & 0xff;
    if ((stop || (bytes >> 8 * (MS_CONTROL_STOP - MS_CONTROL_COMMIT) & 0xff)) && lane_id() == 0)
      store_device(&segment.orders->stop.word, 1);
    if (number != polled) {
      polled = static_cast<u32>(number);
      fence_system();
      if (!admit_change(segment.host + HOST_CHANGE) && lane_id() == 0)
        store_host(segment.host + HOST_CHANGE + CHANGE_REFUSED, number);
      __syncwarp();
    }
    if (commit == latched) return;
    latched = commit;
    fence_system();
    u32 mask = warp_load_host(reinterpret_cast<const u64*>(segment.control + MS_CONTROL_MASK)) & segment.exported;
    if (lane_id() == 0) store_device(&segment.orders->control.word, (mask & CONTROL_MASK) | commit << 24);
    __syncwarp();
  }

  /// A reading of both clocks: the host pings, and takes the best of a burst's round trips.
  MS_DEVICE void answer(u64 ping) {
    if (ping == pinged) return;
    u64 until = warp_time() + PING_NS;
    while (ping != pinged || warp_time() < until) {
      if (ping != pinged && lane_id() == 0) {
        store_host(segment.host + HOST_PING_TIME, device_time());
        fence_system();
        store_host(segment.host + HOST_PING_ECHO, ping);
      }
      pinged = ping;
      ping = warp_load_host(segment.host + HOST_PING);
    }
  }
};

}  // namespace ms

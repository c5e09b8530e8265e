// Answers the host's pings with the device's time, through mapped host memory: the host halves the round trip.
#include "ptx.cuh"

/// words: [0] ping, by the host; [8] time, [16] echo, by the device. Answers the pings
/// `first` and on, `count` of them, or until limit_ns.
extern "C" __global__ void answer_pings(unsigned long long* words, unsigned long long first, unsigned long long count,
                                        unsigned long long limit_ns) {
  using namespace ms;
  u64* w = reinterpret_cast<u64*>(words);
  u64 deadline = device_time() + limit_ns;
  for (u64 k = first; k < first + count; k++) {
    while (load_host(w) != k)
      if (device_time() > deadline) return;
    store_host(w + 8, device_time());
    fence_system();
    store_host(w + 16, k);
  }
}

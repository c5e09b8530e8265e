// A persistent kernel that keeps to plain __syncthreads() and gives its monitors neither a warp nor shared memory.
// Every iteration adds up a binary tree: nodes 1 … 64 each a tile of x, nodes 65 … 127 their two children, the last the
// total. Blocks take nodes in order, by ticket.
#include "megascope.cuh"
using namespace ms;

constexpr u32 THREADS = 128, LEAVES = 64, NODES = 2 * LEAVES - 1, END = LEAVES, NONE = ~0u;
struct Shared { u32 ticket, begun, count[LEAVES + 1]; };  // of all blocks; zero before a launch

/// The dependency that a node releases: its parent's, which wants both children, or END, which wants the root.
MS_DEVICE u32 releases(u32 node) { return (node + 1) / 2; }
MS_DEVICE u32 wanted(u32 dep) { return dep == END ? 1 : 2; }

/// Thread 0: until *word reaches goal; false at the deadline.
MS_DEVICE bool await(ComputeHooks& hooks, const u32* word, u32 goal, u32 task, u32 i, u32 dep, u64 end) {
  const u32 seen = load_acquire_device(word);
  if (seen >= goal) return true;
  hooks.wait(task, i, dep, task ? seen - i * wanted(dep) : 0, dep ? wanted(dep) : 1);
  while (load_acquire_device(word) < goal) {
    if (device_time() > end) return false;
    hooks.refresh();
    __nanosleep(100);
  }
  hooks.resume(task, i, dep);
  return true;
}

/// Thread 0: the next node's ticket, when the node may run; NONE to leave. Who takes the first begins the iteration.
MS_DEVICE u32 next(ComputeHooks& hooks, Shared& all, u32 iterations, u64 end) {
  const u32 ticket = atomicAdd(&all.ticket, 1), i = ticket / NODES, node = ticket % NODES + 1;
  if (i >= iterations) return NONE;
  const u32 dep = node > LEAVES ? node - LEAVES : 0, before = i > 0 ? i - 1 : 0, over = i > 0 ? END : 0;
  if (dep) return await(hooks, &all.count[dep], 2 * (i + 1), node, i, dep, end) ? ticket : NONE;
  if (node > 1) return await(hooks, &all.begun, i + 1, 0, before, over, end) ? ticket : NONE;
  if (!await(hooks, &all.count[END], i, 0, before, over, end)) return NONE;
  hooks.step(i, device_time(), MS_STEP_BEGINS);
  hooks.ready(1, LEAVES, i, 0);
  store_release_device(&all.begun, i + 1);
  return ticket;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
sum(const u32* x, u32* value, u32* total, Shared* all, u32 iterations) {
  MS_SHARED(Scope, scope);
  MS_SHARED(u32, ticket);
  MS_SHARED(u32, leaf);
  const u64 end = device_time() + segment.limit_ns;
  scope.open();
  ComputeHooks hooks;
  hooks.open(scope.hooks, threadIdx.x);
  const bool worker = threadIdx.x == 0;
  for (;;) {
    hooks.refresh();
    if (worker) ticket = next(hooks, *all, iterations, end), leaf = 0;
    __syncthreads();
    if (ticket == NONE) break;
    const u32 i = ticket / NODES, node = ticket % NODES + 1, child = 2 * (node - LEAVES) - 1;
    hooks.start(node, 0);
    if (node <= LEAVES) atomicAdd(&leaf, x[(node - 1) * THREADS + threadIdx.x] + i);
    __syncthreads();
    hooks.done();
    hooks.complete(i);
    if (!worker) continue;
    value[node] = node <= LEAVES ? leaf : __ldcg(value + child) + __ldcg(value + child + 1);
    if (node == NODES) total[i] = value[node];
    fence_device();
    const u32 dep = releases(node), after = atomicAdd(&all->count[dep], 1) + 1 - i * wanted(dep);
    hooks.release(node, i, dep, after);
    if (after == wanted(dep) && dep != END) hooks.ready(LEAVES + dep, 1, i, node);
  }
  if (worker) hooks.close();
}

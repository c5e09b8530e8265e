// Fibres: stacks that one operating system thread goes back and forth between.
#pragma once
#include <stddef.h>
#include <stdint.h>

#if !defined(__x86_64__) || defined(SIMT_PORTABLE)
#include <ucontext.h>
#endif

namespace simt {

/// A stack that stands still, or (while it is not the one that runs) the one that will be gone back to.
struct Fibre {
#if defined(__x86_64__) && !defined(SIMT_PORTABLE)
  void* at;
#else
  ucontext_t at;
#endif
};

#if defined(__x86_64__) && !defined(SIMT_PORTABLE)

extern "C" void simt_swap(void** from, void* to);

// What a call need not keep stays where it is; a jump in the place of a return, since the processor predicts a return to
// go back where this very call came from.
asm(R"(
.text
.type simt_swap, @function
simt_swap:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmpq *%rcx
.size simt_swap, . - simt_swap
)");

/// Let `to` go on where it stood; returns when someone goes back to `from`.
inline void swap(Fibre& from, const Fibre& to) { simt_swap(&from.at, to.at); }

/// A fibre that will run `entry`, which must not return.
inline void make(Fibre& f, char* stack, size_t bytes, void (*entry)()) {
  uintptr_t top = (reinterpret_cast<uintptr_t>(stack) + bytes) & ~static_cast<uintptr_t>(15);
  void** words = reinterpret_cast<void**>(top) - 8;  // six registers, where to go, and nowhere to return to
  for (int i = 0; i < 8; i++) words[i] = nullptr;
  words[6] = reinterpret_cast<void*>(entry);
  f.at = words;
}

#else

inline void swap(Fibre& from, const Fibre& to) { swapcontext(&from.at, &to.at); }

inline void make(Fibre& f, char* stack, size_t bytes, void (*entry)()) {
  getcontext(&f.at);
  f.at.uc_stack.ss_sp = stack;
  f.at.uc_stack.ss_size = bytes;
  f.at.uc_link = nullptr;
  makecontext(&f.at, entry, 0);
}

#endif

}  // namespace simt

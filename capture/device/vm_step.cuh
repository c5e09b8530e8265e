// What arithmetic and comparisons give, for one lane. Division by zero gives 0, modulo by zero the dividend, the least
// number by −1 wraps, shifts are masked; narrow results are zero-extended.
#pragma once
#include "vm_code.cuh"

namespace ms {

/// An operand as wide as the operation: narrow ones extended as it takes them.
MS_DEVICE u64 vm_operand(u64 x, u32 mode) {
  if (!(mode & VM_NARROW)) return x;
  return mode & VM_SIGNED ? static_cast<u64>(static_cast<s64>(static_cast<s32>(x))) : static_cast<u32>(x);
}

MS_DEVICE u64 vm_magnitude(u64 x) { return x >> 63 ? -x : x; }

/// a / b, or a % b, bit by bit: a 64-bit division is a subroutine on the device, with registers spilled around it.
MS_DEVICE u64 vm_divide(u32 op, u64 a, u64 b) {
  const bool is_signed = op == VM_SDIV || op == VM_SMOD, quotient = op == VM_DIV || op == VM_SDIV;
  if (b == 0) return quotient ? 0 : a;
  const u64 x = is_signed ? vm_magnitude(a) : a, y = is_signed ? vm_magnitude(b) : b;
  u64 q = 0, rest = 0;
#pragma unroll 1
  for (u32 bit = 64 - leading_zeros(x); bit--;) {
    const bool carry = rest >> 63;
    rest = rest << 1 | (x >> bit & 1);
    const bool fits = carry || rest >= y;
    rest -= fits ? y : 0;
    q = q << 1 | fits;
  }
  const u64 v = quotient ? q : rest;
  const bool negative = is_signed && (quotient ? a ^ b : a) >> 63;
  return negative ? -v : v;
}

MS_DEVICE u64 vm_swap(u64 x, u32 bytes) {
  u64 v = 0;
#pragma unroll 1
  for (u32 k = 0; k < bytes; k++) v = v << 8 | (x >> 8 * k & 0xff);
  return v;
}

MS_DEVICE u64 vm_sign_extend(u64 x, u32 bits) {
  const u32 unused = (64 - bits) & 63;
  return static_cast<u64>(static_cast<s64>(x << unused) >> unused);
}

MS_DEVICE u64 vm_arithmetic(const VmInsn& i, u64 dst, u64 operand) {
  const u64 a = vm_operand(dst, i.mode), b = vm_operand(operand, i.mode);
  const u32 shift = static_cast<u32>(b) & (i.mode & VM_NARROW ? 31 : 63);
  u64 v = b;
  switch (i.op) {
    case VM_ADD:
      v = a + b;
      break;
    case VM_SUB:
      v = a - b;
      break;
    case VM_MUL:
      v = a * b;
      break;
    case VM_DIV:
    case VM_MOD:
    case VM_SDIV:
    case VM_SMOD:
      v = vm_divide(i.op, a, b);
      break;
    case VM_OR:
      v = a | b;
      break;
    case VM_AND:
      v = a & b;
      break;
    case VM_XOR:
      v = a ^ b;
      break;
    case VM_LSH:
      v = a << shift;
      break;
    case VM_RSH:
      v = a >> shift;
      break;
    case VM_ARSH:
      v = static_cast<u64>(static_cast<s64>(a) >> shift);
      break;
    case VM_NEG:
      v = -a;
      break;
    case VM_SIGN:
      v = vm_sign_extend(b, i.at);
      break;
    case VM_SWAP:
      v = vm_swap(a, i.at);
      break;
  }
  return i.mode & VM_NARROW ? static_cast<u32>(v) : v;
}

MS_DEVICE bool vm_holds(const VmInsn& i, u64 dst, u64 operand) {
  const u64 a = vm_operand(dst, i.mode), b = vm_operand(operand, i.mode);
  const s64 x = static_cast<s64>(a), y = static_cast<s64>(b);
  switch (i.op) {
    case VM_JEQ:
      return a == b;
    case VM_JNE:
      return a != b;
    case VM_JGT:
      return a > b;
    case VM_JGE:
      return a >= b;
    case VM_JLT:
      return a < b;
    case VM_JLE:
      return a <= b;
    case VM_JSET:
      return (a & b) != 0;
    case VM_JSGT:
      return x > y;
    case VM_JSGE:
      return x >= y;
    case VM_JSLT:
      return x < y;
    default:
      return x <= y;
  }
}

}  // namespace ms

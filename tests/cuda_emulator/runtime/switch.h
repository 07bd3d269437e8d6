// emu_switch(save, next): leaves the running stack, its pointer in *save, for another one. emu_first_frame makes a stack that
// starts with a call of `entry`. A few instructions instead of a library's, which save the signal mask with a system call every
// time.
#pragma once
#include <cstdint>

extern "C" void emu_switch(void** save, void* next);

#if defined(__x86_64__)
asm(R"(
.text
.p2align 4
.type emu_switch,@function
emu_switch:
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
.size emu_switch,.-emu_switch
)");
static inline void* emu_first_frame(char* top, void (*entry)()) {
  void** frame = (void**)((uintptr_t)top & ~(uintptr_t)63);
  *--frame = nullptr;  // where a return address would be: the ABI's alignment at the entry of a function
  *--frame = (void*)entry;
  return frame - 6;  // six registers, whatever they hold
}
#elif defined(__aarch64__)
asm(R"(
.text
.p2align 4
.type emu_switch,%function
emu_switch:
  sub sp, sp, #160
  stp x19, x20, [sp]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  br x30
.size emu_switch,.-emu_switch
)");
static inline void* emu_first_frame(char* top, void (*entry)()) {
  void** frame = (void**)((uintptr_t)top & ~(uintptr_t)63) - 20;
  frame[11] = (void*)entry;  // x30
  return frame;
}
#else
#error "the emulator knows how to switch stacks on x86-64 and aarch64"
#endif

/* fiber.cpp - the switch, by hand: registers that a call must keep, and the stack pointer. ucontext would ask the
 * system for the signal mask, a hundred times the price. */
#include "fiber.hpp"

#include <stdint.h>
#include <string.h>

#if defined(__APPLE__)
#define SYMBOL "_sim_switch"
#else
#define SYMBOL "sim_switch"
#endif

#if defined(__x86_64__)
#define REGISTERS 6
/* A jump in place of a return: the processor's prediction of returns would be wrong each time. */
asm(".text\n.p2align 4\n.globl " SYMBOL "\n" SYMBOL ":\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\npopq %rdx\njmpq *%rdx\n");

void *sim_fiber(char *top, void (*entry)()) {
    void **stack = (void **)((uintptr_t)top & ~(uintptr_t)15);
    *--stack = nullptr;   /* where a call would have left its return address: entry finds the stack as after a call */
    *--stack = (void *)entry;
    for (int i = 0; i < REGISTERS; i++) *--stack = nullptr;
    return stack;
}
#elif defined(__aarch64__)
#define FRAME 160
asm(".text\n.p2align 4\n.globl " SYMBOL "\n" SYMBOL ":\n"
    "sub sp, sp, #160\n"
    "stp x19, x20, [sp, #0]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\nstp x25, x26, [sp, #48]\n"
    "stp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\n"
    "stp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\nstp d12, d13, [sp, #128]\nstp d14, d15, [sp, #144]\n"
    "mov x9, sp\nstr x9, [x0]\nmov sp, x1\n"
    "ldp x19, x20, [sp, #0]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\nldp x25, x26, [sp, #48]\n"
    "ldp x27, x28, [sp, #64]\nldp x29, x30, [sp, #80]\n"
    "ldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\nldp d12, d13, [sp, #128]\nldp d14, d15, [sp, #144]\n"
    "add sp, sp, #160\nret\n");

void *sim_fiber(char *top, void (*entry)()) {
    uint64_t *frame = (uint64_t *)(((uintptr_t)top & ~(uintptr_t)15) - FRAME);
    memset(frame, 0, FRAME);
    frame[11] = (uint64_t)entry;
    return frame;
}
#else
#error "the simulator has no switch for this processor"
#endif

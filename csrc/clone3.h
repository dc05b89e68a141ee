/*
 * clone3 with a stack of its own for the child: it comes back from the system
 * call there, so no C function can wrap it and glibc does not.  x86_64 and
 * aarch64 have it here; elsewhere it is ENOSYS, and clone does the work.
 */
#ifndef NETLESS_CLONE3_H
#define NETLESS_CLONE3_H

#include <errno.h>
#include <stdint.h>

#define NETLESS_SYS_CLONE3 435                          /* on every architecture */
#define NETLESS_CLONE_CLEAR_SIGHAND 0x100000000ULL      /* Linux 5.5 */

/* struct clone_args of linux/sched.h, as of Linux 5.3 */
struct netless_clone_arguments {
    uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls;
};

/* The pid, or -1 with errno. In the child, function(argument), which does not return. */
static inline long netless_clone3(struct netless_clone_arguments *arguments,
                                  int (*function)(void *), void *argument)
{
    long result = -ENOSYS;
#if defined(__x86_64__) && !defined(__ILP32__)
    __asm__ volatile("syscall\n\t"
                     "test %%rax, %%rax\n\t"
                     "jnz 1f\n\t"
                     "xor %%ebp, %%ebp\n\t"
                     "mov %[argument], %%rdi\n\t"
                     "call *%[function]\n\t"
                     "hlt\n"
                     "1:"
                     : "=a"(result)
                     : "0"((long)NETLESS_SYS_CLONE3), "D"(arguments), "S"(sizeof *arguments),
                       [function] "r"(function), [argument] "r"(argument)
                     : "rcx", "r11", "memory", "cc");
#elif defined(__aarch64__)
    register long number __asm__("x8") = NETLESS_SYS_CLONE3;
    register long x0 __asm__("x0") = (long)arguments;
    register long x1 __asm__("x1") = sizeof *arguments;
    __asm__ volatile("svc 0\n\t"
                     "cbnz x0, 1f\n\t"
                     "mov x29, xzr\n\t"
                     "mov x30, xzr\n\t"
                     "mov x0, %[argument]\n\t"
                     "blr %[function]\n\t"
                     "brk 0\n"
                     "1:"
                     : "+r"(x0)
                     : "r"(number), "r"(x1), [function] "r"(function), [argument] "r"(argument)
                     : "memory", "cc");
    result = x0;
#else
    (void)arguments;
    (void)function;
    (void)argument;
#endif
    if (result >= 0)
        return result;
    errno = (int)-result;
    return -1;
}

#endif

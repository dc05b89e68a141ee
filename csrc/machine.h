/* What differs between machines. */
#ifndef NETLESS_MACHINE_H
#define NETLESS_MACHINE_H

#include <errno.h>
#include <linux/audit.h>
#include <stdint.h>

#ifndef AUDIT_ARCH_LOONGARCH64
#define AUDIT_ARCH_LOONGARCH64 0xc0000102
#endif
#ifndef AUDIT_ARCH_RISCV64
#define AUDIT_ARCH_RISCV64 0xc00000f3
#endif

/* 0: netless has no filter for it; one guarantee less, and probe() says so. */
#if defined(__x86_64__) && !defined(__ILP32__)
#define NETLESS_ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__i386__)
#define NETLESS_ARCHITECTURE AUDIT_ARCH_I386
#elif defined(__aarch64__)
#define NETLESS_ARCHITECTURE AUDIT_ARCH_AARCH64
#elif defined(__arm__)
#define NETLESS_ARCHITECTURE AUDIT_ARCH_ARM
#elif defined(__riscv) && __riscv_xlen == 64
#define NETLESS_ARCHITECTURE AUDIT_ARCH_RISCV64
#elif defined(__loongarch64)
#define NETLESS_ARCHITECTURE AUDIT_ARCH_LOONGARCH64
#elif defined(__powerpc64__) && defined(__LITTLE_ENDIAN__)
#define NETLESS_ARCHITECTURE AUDIT_ARCH_PPC64LE
#elif defined(__s390x__)
#define NETLESS_ARCHITECTURE AUDIT_ARCH_S390X
#else
#define NETLESS_ARCHITECTURE 0
#endif

/*
 * clone3 with a stack of its own for the child: it comes back from the system
 * call there, so no C function can wrap it and glibc does not.  x86_64 and
 * aarch64 have it here; elsewhere it is ENOSYS, and clone does the work.
 */

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

/* A child's frames lay on this stack until its execve, which AddressSanitizer does not
   see: to it they would lie there for ever. */
#ifdef __SANITIZE_ADDRESS__
void __asan_unpoison_memory_region(void const volatile *from, __SIZE_TYPE__ size);
#define NETLESS_STACK_IS_FREE(stack) __asan_unpoison_memory_region((stack), sizeof(stack))
#else
#define NETLESS_STACK_IS_FREE(stack) ((void)(stack))
#endif

#endif

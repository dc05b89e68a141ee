/* What differs between machines. */
#ifndef NETLESS_MACHINE_H
#define NETLESS_MACHINE_H

#include <errno.h>
#include <linux/audit.h>
#include <stdint.h>
#include <sys/syscall.h>

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
 * clone and clone3 as vfork has them: the child goes on on the stack where the caller
 * stands, below the caller's frame, in a copy of it or, with CLONE_VM | CLONE_VFORK, while
 * the caller sleeps.  A stack elsewhere would have to be found for every launch, and one
 * inside the caller's frame is too much for threads with small stacks.
 *
 * The child comes back from the system call on that stack and must not return from the
 * function that made it, so no C function can wrap it: it calls function(argument), which
 * does not return.  What it calls is held in registers by name: the compiler may choose the
 * frame pointer, which the child clears, for any other operand.  x86_64 and aarch64 have
 * this here; elsewhere it is ENOTSUP.
 */

#define NETLESS_SYS_CLONE3 435                          /* on every architecture */
#define NETLESS_CLONE_CLEAR_SIGHAND 0x100000000ULL      /* Linux 5.5 */

/* struct clone_args of linux/sched.h, as of Linux 5.3 */
struct netless_clone_arguments {
    uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls;
};

/* The pid, or -errno. */
static inline long netless_clone_call(long system_call, long first, long second,
                                      int (*function)(void *), void *argument)
{
#if defined(__x86_64__) && !defined(__ILP32__)
    register int (*called)(void *) __asm__("r8") = function;
    register void *passed __asm__("r9") = argument;
    long result = system_call;
    __asm__ volatile("syscall\n\t"
                     "test %%rax, %%rax\n\t"
                     "jnz 1f\n\t"
                     "lea -256(%%rsp), %%rsp\n\t"     /* past the caller's red zone */
                     "and $-16, %%rsp\n\t"
                     "xor %%ebp, %%ebp\n\t"
                     "mov %[passed], %%rdi\n\t"
                     "call *%[called]\n\t"
                     "hlt\n"
                     "1:"
                     : "+a"(result)
                     : "D"(first), "S"(second), [called] "r"(called), [passed] "r"(passed)
                     : "rcx", "r11", "memory", "cc");
    return result;
#elif defined(__aarch64__)
    register int (*called)(void *) __asm__("x9") = function;
    register void *passed __asm__("x10") = argument;
    register long number __asm__("x8") = system_call;
    register long x0 __asm__("x0") = first;
    register long x1 __asm__("x1") = second;
    __asm__ volatile("svc 0\n\t"
                     "cbnz x0, 1f\n\t"
                     "mov x29, xzr\n\t"
                     "mov x30, xzr\n\t"
                     "mov x0, %[passed]\n\t"
                     "blr %[called]\n\t"
                     "brk 0\n"
                     "1:"
                     : "+r"(x0)
                     : "r"(number), "r"(x1), [called] "r"(called), [passed] "r"(passed)
                     : "memory", "cc");
    return x0;
#else
    (void)system_call, (void)first, (void)second, (void)function, (void)argument;
    return -ENOTSUP;
#endif
}

/* A child's frames lay on this stack until its execve, which AddressSanitizer does not
   see: to it they would lie there for ever. */
#ifdef __SANITIZE_ADDRESS__
void __asan_unpoison_memory_region(void const volatile *from, __SIZE_TYPE__ size);
#define NETLESS_STACK_IS_FREE(from, size) __asan_unpoison_memory_region((from), (size))
#else
#define NETLESS_STACK_IS_FREE(from, size) ((void)(from), (void)(size))
#endif

static inline long netless_clone_result(long result)
{
    char *here = __builtin_frame_address(0);

    NETLESS_STACK_IS_FREE(here - 32768, 32768);
    if (result >= 0)
        return result;
    errno = (int)-result;
    return -1;
}

/* The pid, or -1 with errno. In the child, function(argument), which does not return. */
static inline long netless_clone(long flags, int (*function)(void *), void *argument)
{
    return netless_clone_result(netless_clone_call(SYS_clone, flags, 0, function, argument));
}

static inline long netless_clone3(struct netless_clone_arguments *arguments,
                                  int (*function)(void *), void *argument)
{
    return netless_clone_result(netless_clone_call(NETLESS_SYS_CLONE3, (long)arguments,
                                                   sizeof *arguments, function, argument));
}

#endif

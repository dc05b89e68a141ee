/*
 * Linked into the extension by NETLESS_COVERAGE=1 only, with --wrap for _exit and execve: a
 * process that ends in one of these would take its counts with it.
 *
 * But a child that shares the parent's memory counts in the parent's counters, so it writes
 * nothing; gcc's own wrapper of execve would, and the parent's later counts would be lost.
 * Which of them a process is, a page tells that is zeroes in a copy of the memory.
 */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>

void __gcov_dump(void);
void __gcov_reset(void);
int __real_execve(const char *path, char *const argv[], char *const envp[]);
_Noreturn void __real__exit(int status);
int __wrap_execve(const char *path, char *const argv[], char *const envp[]);
_Noreturn void __wrap__exit(int status);

static volatile pid_t *owner;

__attribute__((constructor)) static void prepare(void)
{
    pid_t *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED || madvise(page, 4096, MADV_WIPEONFORK) < 0)
        return;
    *page = getpid();
    owner = page;
}

static void write_counts(void)
{
    if (owner == NULL || (*owner != 0 && *owner != getpid()))
        return;
    __gcov_dump();
    __gcov_reset();
}

int __wrap_execve(const char *path, char *const argv[], char *const envp[])
{
    write_counts();
    return __real_execve(path, argv, envp);
}

void __wrap__exit(int status)
{
    write_counts();
    __real__exit(status);
}

/* reach WAY PID: exit status 0 when the process could be reached that way, 1 when refused. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static int result(long value)
{
    if (value < 0)
        perror("refused");
    return value < 0;
}

/* The start of the process's own writable memory. */
static unsigned long writable(pid_t pid)
{
    char path[64], line[512], mode[8];
    unsigned long start = 0, found = 0;
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *maps = fopen(path, "r");
    while (maps && !found && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%*x %7s", &start, mode) == 2 && strncmp(mode, "rw", 2) == 0)
            found = start;
    if (maps)
        fclose(maps);
    return found;
}

static int by_ptrace(pid_t pid)
{
    if (ptrace(PTRACE_ATTACH, pid, 0, 0) < 0)
        return result(-1);
    waitpid(pid, NULL, __WALL);
    return result(ptrace(PTRACE_DETACH, pid, 0, 0));
}

static int by_writev(pid_t pid)
{
    char byte = 0;
    unsigned long address = writable(pid);
    struct iovec here = {&byte, 1}, there = {(void *)(address ? address : 4096), 1};
    if (process_vm_readv(pid, &here, 1, &there, 1, 0) < 0)
        return result(-1);
    return result(process_vm_writev(pid, &here, 1, &there, 1, 0));
}

static int by_mem(pid_t pid)
{
    char path[64], byte = 0;
    snprintf(path, sizeof path, "/proc/%d/mem", pid);
    int fd = open(path, O_RDWR);
    return result(fd < 0 ? -1 : pread(fd, &byte, 1, (off_t)writable(pid)));
}

static int by_getfd(pid_t pid)
{
    int fd = (int)syscall(434 /* pidfd_open */, pid, 0);
    return result(fd < 0 ? -1 : syscall(438 /* pidfd_getfd */, fd, 0, 0));
}

static int by_setns(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/net", pid);
    int fd = open(path, O_RDONLY);
    return result(fd < 0 ? -1 : setns(fd, CLONE_NEWNET));
}

static int by_pidfd_setns(pid_t pid)
{
    int fd = (int)syscall(434 /* pidfd_open */, pid, 0);
    return result(fd < 0 ? -1 : setns(fd, CLONE_NEWNET));
}

int main(int argc, char **argv)
{
    const struct { const char *name; int (*way)(pid_t pid); } ways[] = {
        {"ptrace", by_ptrace}, {"writev", by_writev}, {"mem", by_mem},
        {"getfd", by_getfd}, {"setns", by_setns}, {"pidfd-setns", by_pidfd_setns},
    };
    for (size_t i = 0; argc == 3 && i < sizeof ways / sizeof *ways; i++)
        if (strcmp(argv[1], ways[i].name) == 0)
            return ways[i].way(atoi(argv[2]));
    return 2;
}

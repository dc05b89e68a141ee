/*
 * hammer CANARY-ADDRESS EXE: attacks every new process until stdin is closed.
 *
 * Tries to write into it at the address (process_vm_writev, /proc/PID/mem) and to
 * trace it.  A line "g" on stdin starts it.  Prints: attempts, successes of any kind, and successes against a
 * process whose executable is still EXE, that is one that has not executed yet.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static unsigned long canary;
static const char *parent_exe;
static long attempts, successes, early;

static int runs_parent_exe(pid_t pid)
{
    char path[64], target[4096];
    snprintf(path, sizeof path, "/proc/%d/exe", pid);
    ssize_t length = readlink(path, target, sizeof target - 1);
    if (length < 0)
        return 0;
    target[length] = '\0';
    return strcmp(target, parent_exe) == 0;
}

static void score(pid_t pid, int success)
{
    attempts++;
    successes += success;
    early += success && runs_parent_exe(pid);
}

static void attack(pid_t pid)
{
    char byte = 'X', path[64];
    struct iovec here = {&byte, 1}, there = {(void *)canary, 1};

    score(pid, process_vm_writev(pid, &here, 1, &there, 1, 0) == 1);
    snprintf(path, sizeof path, "/proc/%d/mem", pid);
    int fd = open(path, O_RDWR);
    score(pid, fd >= 0 && pwrite(fd, &byte, 1, (off_t)canary) == 1);
    if (fd >= 0)
        close(fd);
    int traced = ptrace(PTRACE_SEIZE, pid, 0, 0) == 0;      /* leaves no SIGSTOP behind */
    score(pid, traced);
    if (traced) {
        ptrace(PTRACE_INTERRUPT, pid, 0, 0);
        waitpid(pid, NULL, __WALL);
        ptrace(PTRACE_DETACH, pid, 0, 0);
    }
}

int main(int argc, char **argv)
{
    struct pollfd input = {0, POLLIN, 0};
    pid_t newest = getpid();

    if (argc != 3)
        return 2;
    canary = strtoul(argv[1], NULL, 16);
    parent_exe = argv[2];
    puts("ready");
    fflush(stdout);
    if (getchar() != 'g')       /* until all attackers are there: they would trace each other */
        return 2;
    for (pid_t pid = newest; pid < getpid() + 100; pid++)
        if (kill(pid, 0) == 0 || errno != ESRCH)
            newest = pid;
    while (poll(&input, 1, 0) == 0)
        for (pid_t pid = newest + 1; pid < newest + 12; pid++) {
            if (kill(pid, 0) < 0 && errno == ESRCH)
                continue;
            newest = pid;
            attack(pid);
            pid = newest;
        }
    printf("%ld %ld %ld\n", attempts, successes, early);
    return 0;
}

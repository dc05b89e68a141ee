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

/* The newest pid of the machine: the last word of /proc/loadavg. */
static pid_t newest_pid(int loadavg)
{
    char text[128];
    ssize_t length = pread(loadavg, text, sizeof text - 1, 0);
    text[length > 0 ? length : 0] = '\0';
    const char *last = strrchr(text, ' ');
    return last ? atoi(last) : 0;
}

int main(int argc, char **argv)
{
    struct pollfd input = {0, POLLIN, 0};
    int loadavg = open("/proc/loadavg", O_RDONLY);

    if (argc != 3 || loadavg < 0)
        return 2;
    if (nice(10) < 0)           /* leave the victims a processor to start on */
        return 2;
    canary = strtoul(argv[1], NULL, 16);
    parent_exe = argv[2];
    puts("ready");
    fflush(stdout);
    if (getchar() != 'g')       /* until all attackers are there: they would trace each other */
        return 2;
    pid_t own = newest_pid(loadavg);
    for (pid_t seen = own; poll(&input, 1, 0) == 0;) {
        pid_t newest = newest_pid(loadavg);
        for (pid_t pid = newest > seen + 8 ? newest - 8 : seen; pid < newest + 4; pid++)
            if (pid > own && (kill(pid, 0) == 0 || errno != ESRCH))
                attack(pid);
        seen = newest;
    }
    printf("%ld %ld %ld\n", attempts, successes, early);
    return 0;
}

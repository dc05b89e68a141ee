/* Prints what one getppid costs, in nanoseconds. */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CALLS 200000

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + now.tv_nsec / 1e9;
}

int main(void)
{
    double start = seconds();
    for (int i = 0; i < CALLS; i++)
        syscall(SYS_getppid);
    printf("%.3f\n", (seconds() - start) * 1e9 / CALLS);
    return 0;
}

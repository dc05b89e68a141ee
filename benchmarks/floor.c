/*
 * What the kernel alone asks for: clone as vfork, the steps of isolation, execve.
 *
 * No interpreter, no argument handling, no check of descriptors; the seal is the
 * package's own code.  One process takes commands on its standard input, so that
 * its turns can be interleaved with those of the other contenders:
 *
 *     time KIND COUNT PROGRAM [ARGUMENT ...]           -> COUNT times in ns
 *     rate KIND COUNT THREADS PROGRAM [ARGUMENT ...]   -> ns for all children
 */
#define _GNU_SOURCE
#include "spawn.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST_THREADS 64
#define MOST_ARGUMENTS 32

/* The ways in, from nothing to everything. */
struct kind {
    const char *name;
    int joins;                  /* the user namespace of the plan, */
    int is_private;             /* ... with a network namespace of its own */
    int seals;
};

static const struct kind kinds[] = {
    {"plain", 0, 0, 0},
    {"shared", 1, 0, 0},
    {"shared-seal", 1, 0, 1},
    {"private", 1, 1, 0},
    {"private-seal", 1, 1, 1},
};

struct task {
    const struct kind *kind;
    char **argv;
    int count;
};

static struct netless_plan plan;

static void complain(const char *what)
{
    perror(what);
    exit(1);
}

static int child(void *argument)
{
    const struct task *task = argument;
    struct netless_report report = {.step = NETLESS_STEP_NONE};
    struct netless_powers before;

    if (task->kind->seals)
        netless_read_powers(&plan, &before);
    if (task->kind->joins) {
        if (setns(plan.sealed.user_fd, CLONE_NEWUSER) < 0)
            _exit(126);
        if ((task->kind->is_private ? unshare(CLONE_NEWNET)
                                    : setns(plan.sealed.net_fd, CLONE_NEWNET)) < 0)
            _exit(126);
    }
    if (task->kind->seals && netless_seal(&plan, &before, 0, &report) < 0)
        _exit(126);
    execv(task->argv[0], task->argv);
    _exit(127);
}

static void run_one(struct task *task)
{
    int status;
    _Alignas(16) char stack[65536];
    pid_t pid = clone(child, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, task);

    if (pid < 0 || waitpid(pid, &status, 0) < 0)
        complain("child");
    if (!WIFEXITED(status) || WEXITSTATUS(status) >= 126)
        complain("isolation or execve");
}

static long long nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void time_each(struct task *task)
{
    for (int i = 0; i < task->count; i++) {
        long long start = nanoseconds();
        run_one(task);
        printf("%lld ", nanoseconds() - start);
    }
    printf("\n");
}

static void *worker(void *argument)
{
    struct task *task = argument;
    for (int i = 0; i < task->count; i++)
        run_one(task);
    return NULL;
}

static void time_all(struct task *task, int threads)
{
    pthread_t ids[MOST_THREADS];
    long long start = nanoseconds();

    task->count /= threads;
    for (int i = 0; i < threads; i++)
        if (pthread_create(&ids[i], NULL, worker, task) != 0)
            complain("pthread_create");
    for (int i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    printf("%lld\n", nanoseconds() - start);
}

/* The layers that this kernel installs, as the package finds them: by a trial. */
static void make_plan(void)
{
    struct netless_report report = {.step = NETLESS_STEP_NONE};
    struct netless_request trial = {.probe = 1, .process_group = -1, .umask = -1,
                                    .stdio = {-1, -1, -1}, .parent_ends = {-1, -1, -1}};

    plan.way = NETLESS_WAY_JOIN;
    plan.unix_sockets = 1;
    if (netless_namespace_make(0, &plan.sealed, &report) < 0)
        complain("namespace");
    netless_plan_seal(&plan);
    plan.optional = plan.layers;
    if (netless_spawn(&plan, &trial) < 0)
        complain("trial");
    plan.layers = trial.report.layers;
    plan.optional = 0;
}

static const struct kind *find_kind(const char *name)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (name != NULL && strcmp(kinds[i].name, name) == 0)
            return &kinds[i];
    complain("kind");
    return NULL;
}

static int number(const char *text)
{
    int value = text != NULL ? atoi(text) : 0;
    if (value < 1)
        complain("number");
    return value;
}

static void obey(char *line)
{
    char *words[MOST_ARGUMENTS + 1] = {NULL};
    int count = 0;

    for (char *word = strtok(line, "\t\n"); word && count < MOST_ARGUMENTS; word = strtok(NULL, "\t\n"))
        words[count++] = word;
    if (count < 4)
        complain("command");
    struct task task = {.kind = find_kind(words[1]), .count = number(words[2]), .argv = words + 3};
    if (strcmp(words[0], "time") == 0) {
        time_each(&task);
        return;
    }
    int threads = number(words[3]);
    task.argv = words + 4;
    if (threads > MOST_THREADS || *task.argv == NULL)
        complain("threads");
    time_all(&task, threads);
}

int main(void)
{
    char line[4096];

    make_plan();
    while (fgets(line, sizeof line, stdin) != NULL) {
        obey(line);
        fflush(stdout);
    }
    return 0;
}

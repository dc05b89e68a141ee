/*
 * netless-exec: the launch sequence on this very process, then execve.
 *
 * Whatever fails, nothing is executed: one error on stderr, one line on the
 * descriptor of --fd-report, exit status 125 (126 and 127 as env and nohup do).
 */
#define _GNU_SOURCE
#include "launcher.h"

#include "texts.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FAILED = 125, NOT_EXECUTABLE = 126, NOT_FOUND = 127 };

/* What the command line asks for. */
struct wish {
    int loopback, private, no_unix_sockets, map_root, inherit_sockets;
    int has_fallback;
    int report_fd;              /* -1: none */
    const char *mechanism;
    char **command;
    char **environment;
};

static const char *program_name;

/* ---- telling ---- */

/* One write, so that lines of several processes do not mix. */
__attribute__((format(printf, 2, 3))) static void tell(int fd, const char *format, ...)
{
    char text[2048];
    va_list arguments;

    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (length >= (int)sizeof text) {
        length = sizeof text;
        text[length - 1] = '\n';
    }
    if (length > 0 && write(fd, text, (size_t)length) < 0)
        return;                 /* nobody is left to tell */
}

static void complain(const char *text, const char *hint)
{
    tell(2, "%s: error: %s\n", program_name, text);
    if (hint != NULL && *hint != '\0')
        tell(2, "%s: hint: %s\n", program_name, hint);
}

/* STEP ERRNO CAUSE, with "-" where there is none; after the cause of a descriptor that
   must not be inherited, its number and address family. */
static void report(const struct wish *wish, const struct netless_report *found, const char *cause)
{
    if (wish->report_fd >= 0)
        tell(wish->report_fd, "%s %d %s\n",
             found->step == NETLESS_STEP_NONE ? "-" : STEPS[found->step], found->error, cause);
}

static const char *name_of(int number, const struct netless_name *names, size_t count)
{
    static char text[16];

    for (size_t i = 0; i < count; i++)
        if (names[i].number == number)
            return names[i].name;
    snprintf(text, sizeof text, "%d", number);
    return text;
}

static void describe_failure(const struct netless_report *found, char *text, size_t size)
{
    snprintf(text, size, "launch step '%s' failed", STEPS[found->step]);
    size_t used = strlen(text);
    if (found->error != 0)
        snprintf(text + used, size - used, " with %s (%s)",
                 name_of(found->error, ERRORS, sizeof ERRORS / sizeof *ERRORS),
                 strerror(found->error));
}

static int tell_unavailable(const struct wish *wish, const struct netless_report *found,
                            const struct netless_finding *finding)
{
    char step[256] = "", text[1536];
    const char *parts[] = {finding->cause, step, finding->meaning, found->detail};
    size_t used = (size_t)snprintf(text, sizeof text, "%s", CODE);

    if (found->step != NETLESS_STEP_NONE && found->step != NETLESS_STEP_UNSUPPORTED)
        describe_failure(found, step, sizeof step);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (*parts[i] != '\0' && used < sizeof text)
            used += (size_t)snprintf(text + used, sizeof text - used, ": %s", parts[i]);
    report(wish, found, finding->cause);
    complain(text, finding->hint);
    return FAILED;
}

static int tell_descriptor(const struct wish *wish, const struct netless_report *found)
{
    char text[256], kind[128], cause[64];

    snprintf(cause, sizeof cause, "inherited-%s %d %d", KINDS[found->kind].name, found->fd,
             found->kind == NETLESS_KIND_SOCKET ? found->family : -1);
    if (found->kind == NETLESS_KIND_SOCKET && found->family >= 0)
        snprintf(kind, sizeof kind, "a socket of family %s",
                 name_of(found->family, FAMILIES, sizeof FAMILIES / sizeof *FAMILIES));
    else
        snprintf(kind, sizeof kind, "%s", KINDS[found->kind].meaning);
    snprintf(text, sizeof text, "descriptor %d is %s, which the isolated program must not inherit",
             found->fd, kind);
    report(wish, found, cause);
    complain(text, "close it, or vouch for it with --inherit-sockets");
    return FAILED;
}

static int tell_not_executed(const struct wish *wish, const struct netless_report *found)
{
    report(wish, found, "-");
    tell(2, "%s: error: %s: %s\n", program_name, wish->command[0], strerror(found->error));
    return found->error == ENOENT || found->error == ENOTDIR ? NOT_FOUND : NOT_EXECUTABLE;
}

/* After a launch that came back. `finding`: why none was tried, or NULL. The exit status. */
static int tell_failure(const struct wish *wish, const struct netless_report *found,
                        const struct netless_finding *finding)
{
    char text[256];

    signal(SIGPIPE, SIG_IGN);   /* a reader that is gone does not change the exit status */
    if (finding != NULL)
        return tell_unavailable(wish, found, finding);
    if (found->step == NETLESS_STEP_EXEC)
        return tell_not_executed(wish, found);
    if (found->step == NETLESS_STEP_DESCRIPTORS)
        return tell_descriptor(wish, found);
    if (found->step < NETLESS_STEP_STDIO && !netless_is_resource_error(found->error)) {
        struct netless_finding explained = netless_explain(found);
        return tell_unavailable(wish, found, &explained);
    }
    describe_failure(found, text, sizeof text);
    report(wish, found, "-");
    complain(text, NULL);
    return FAILED;
}

static _Noreturn void refuse(const struct wish *wish, const char *what, const char *which)
{
    struct netless_report nothing = {.step = NETLESS_STEP_NONE};

    signal(SIGPIPE, SIG_IGN);
    report(wish, &nothing, "usage");
    tell(2, "%s: error: %s%s\n", program_name, what, which);
    tell(2, "%s: hint: %s --help\n", program_name, program_name);
    exit(FAILED);
}

/* ---- the command line ---- */

static const char HELP[] =
    "usage: netless-exec [options] -- PROGRAM [ARG ...]\n"
    "\n"
    "Becomes PROGRAM without any network, enforced by the operating system.\n"
    "\n"
    "  --loopback         127.0.0.1 and ::1 up, for this program alone\n"
    "  --private          a network namespace of its own (here it always is)\n"
    "  --no-unix-sockets  refuse AF_UNIX sockets that lead outside as well\n"
    "  --map-root         be uid 0 inside\n"
    "  --inherit-sockets  vouch for network sockets among the open descriptors\n"
    "  --mechanism M      auto (default), namespace, seatbelt or filter\n"
    "  --fallback filter  use seccomp and Landlock alone where namespaces are refused\n"
    "  --fd-report N      write STEP ERRNO CAUSE to descriptor N when PROGRAM is not\n"
    "                     executed; it is closed, with nothing written, when it is\n"
    "  --version, --help\n"
    "\n"
    "Exit status: that of PROGRAM; 125 when it could not be isolated, 126 when it could\n"
    "not be executed, 127 when it was not found.\n";

/* Not among 0, 1, 2, and gone after execve: its end without a word means that it was reached. */
static void take_report_fd(struct wish *wish, const char *text)
{
    char *end;
    long fd = strtol(text, &end, 10);

    if (*end != '\0' || fd < 3 || fd > INT_MAX || fcntl((int)fd, F_SETFD, FD_CLOEXEC) < 0)
        refuse(wish, "--fd-report wants an open descriptor above 2, not ", text);
    wish->report_fd = (int)fd;
}

static const char *take_mechanism(const struct wish *wish, const char *name)
{
    for (size_t i = 0; i < sizeof MECHANISMS / sizeof *MECHANISMS; i++)
        if (strcmp(name, MECHANISMS[i]) == 0)
            return name;
    refuse(wish, "unknown mechanism: ", name);
}

static void refuse_contradictions(const struct wish *wish)
{
    int is_seatbelt = strcmp(netless_mechanism(), "seatbelt") == 0 ||
                      strcmp(wish->mechanism, "seatbelt") == 0;
    int is_filter = wish->has_fallback || strcmp(wish->mechanism, "filter") == 0;

    if ((is_seatbelt || is_filter) && (wish->loopback || wish->map_root))
        refuse(wish, wish->loopback ? "--loopback" : "--map-root",
               is_seatbelt ? " needs a namespace, which macOS does not have"
                           : " needs a namespace, which filter does not make");
}

static void read_options(struct wish *wish, int argc, char **argv)
{
    enum { MECHANISM = 256, FALLBACK, FD_REPORT, VERSION, HELP_WANTED };
    const struct option options[] = {
        {"loopback", no_argument, &wish->loopback, 1},
        {"private", no_argument, &wish->private, 1},
        {"no-unix-sockets", no_argument, &wish->no_unix_sockets, 1},
        {"map-root", no_argument, &wish->map_root, 1},
        {"inherit-sockets", no_argument, &wish->inherit_sockets, 1},
        {"mechanism", required_argument, NULL, MECHANISM},
        {"fallback", required_argument, NULL, FALLBACK},
        {"fd-report", required_argument, NULL, FD_REPORT},
        {"version", no_argument, NULL, VERSION},
        {"help", no_argument, NULL, HELP_WANTED},
        {NULL, 0, NULL, 0},
    };
    int option;

    opterr = 0;
    while ((option = getopt_long(argc, argv, "+:", options, NULL)) != -1) {
        if (option == MECHANISM)
            wish->mechanism = take_mechanism(wish, optarg);
        else if (option == FALLBACK && strcmp(optarg, "filter") == 0)
            wish->has_fallback = 1;
        else if (option == FD_REPORT)
            take_report_fd(wish, optarg);
        else if (option == VERSION || option == HELP_WANTED)
            exit(fputs(option == VERSION ? "netless-exec " NETLESS_VERSION "\n" : HELP, stdout) < 0);
        else if (option != 0)
            refuse(wish, "cannot understand ", option == FALLBACK ? optarg : argv[optind - 1]);
    }
    wish->command = argv + optind;
}

/* ---- the request: what execve gets ---- */

/* Strings as one block, each with its NUL. */
static char *block_of(char **strings, int *count)
{
    size_t size = 1;

    for (*count = 0; strings[*count] != NULL; ++*count)
        size += strlen(strings[*count]) + 1;
    char *block = malloc(size), *end = block;
    for (int i = 0; block != NULL && i < *count; i++)
        end = stpcpy(end, strings[i]) + 1;
    return block;
}

/* Where to look, as os.execvpe does; with `paths` NULL only how much room that takes. */
static size_t candidates_of(const char *name, char *paths, int *count)
{
    const char *path = getenv("PATH");
    size_t used = 0;

    *count = 0;
    if (strchr(name, '/') != NULL)
        path = "";
    else if (path == NULL)
        path = DEFAULT_PATH;
    for (const char *end = path; end != NULL; path = end + 1) {
        end = strchr(path, ':');
        int length = (int)(end != NULL ? (size_t)(end - path) : strlen(path));
        const char *slash = length > 0 && path[length - 1] != '/' ? "/" : "";
        if (paths != NULL)
            sprintf(paths + used, "%.*s%s%s", length, path, slash, name);
        used += (size_t)length + strlen(slash) + strlen(name) + 1;
        ++*count;
    }
    return used;
}

static int make_request(const struct wish *wish, struct netless_request *request)
{
    char *candidates = malloc(candidates_of(wish->command[0], NULL, &request->candidate_count));

    request->argv = block_of(wish->command, &request->argc);
    request->candidates = candidates;
    request->process_group = request->umask = -1;
    request->has_no_handlers = 1;
    for (int i = 0; i < 3; i++)
        request->stdio[i] = request->parent_ends[i] = -1;
    if (request->argv == NULL || candidates == NULL)
        return -1;
    candidates_of(wish->command[0], candidates, &request->candidate_count);
    return 0;
}

/* ---- the plan, and launches ---- */

typedef int launch_function(const struct netless_plan *plan, struct netless_request *request);

/* The launch frees its copy of the environment, whatever comes of it. */
static int launch(launch_function *function, const struct netless_plan *plan,
                  const struct wish *wish, struct netless_request *request)
{
    size_t count = 0;

    while (wish->environment[count++] != NULL)
        continue;
    request->report = (struct netless_report){.step = NETLESS_STEP_NONE};
    request->probe = function == netless_spawn;
    request->environ_copy = malloc(count * sizeof *wish->environment);
    if (request->environ_copy == NULL) {
        request->report.step = NETLESS_STEP_MEMORY;
        request->report.error = ENOMEM;
        return -1;
    }
    memcpy(request->environ_copy, wish->environment, count * sizeof *wish->environment);
    return function(plan, request);
}

/* NULL, or why there is no such plan. What was asked for by name is never left out. */
static const struct netless_finding *draft(const struct wish *wish, enum netless_way way,
                                           struct netless_plan *plan)
{
    plan->way = (int)way;
    plan->loopback = wish->loopback;
    plan->map_root = wish->map_root;
    plan->inherit_sockets = wish->inherit_sockets;
    plan->unix_sockets = !wish->no_unix_sockets;
    plan->sealed.euid = geteuid();
    plan->sealed.egid = getegid();
    plan->is_single = 1;
    netless_plan_seal(plan);
    if (!(plan->required & ~plan->layers))
        return NULL;
    return plan->required & ~plan->layers & NETLESS_LAYER_LANDLOCK ? &NO_LANDLOCK : &NO_SECCOMP;
}

static int is_refused_join(const struct netless_report *found)
{
    int is_join = found->step == NETLESS_STEP_SETNS_USER || found->step == NETLESS_STEP_SETNS_NET;

    return is_join && (found->error == EPERM || found->error == EACCES ||
                       found->error == ENOSYS || found->error == EINVAL);
}

/* Made by a process that stays out of it, then joined: where a security module
   leaves a new namespace's maker without power, who joins it has it.  Where
   joining is refused, this process makes one by itself. */
static const struct netless_finding *by_namespace(launch_function *function,
                                                  const struct wish *wish,
                                                  struct netless_request *request)
{
    struct netless_plan plan = {.profile = NULL};

    request->report = (struct netless_report){.step = NETLESS_STEP_NONE};
    if (netless_namespace_make_alone(wish->map_root, &plan.sealed, &request->report) < 0)
        return NULL;
    /* A namespace whose handles may not be opened cannot be joined. */
    enum netless_way way = plan.sealed.user_fd >= 0 ? NETLESS_WAY_JOIN : NETLESS_WAY_MAKE;
    const struct netless_finding *finding = draft(wish, way, &plan);
    if (finding == NULL && launch(function, &plan, wish, request) < 0 &&
        way == NETLESS_WAY_JOIN && is_refused_join(&request->report)) {
        finding = draft(wish, NETLESS_WAY_MAKE, &plan);
        if (finding == NULL)
            launch(function, &plan, wish, request);
    }
    netless_namespace_close(&plan.sealed);
    return finding;
}

/* No namespace: seccomp and Landlock only, and only where that is sound. */
static const struct netless_finding *by_filter(const struct wish *wish,
                                               struct netless_request *request)
{
    struct netless_plan plan = {.profile = NULL};

    if (netless_has_root_powers())
        return &ROOT;
    const struct netless_finding *finding = draft(wish, NETLESS_WAY_FILTER, &plan);
    if (finding == NULL)
        launch(netless_exec, &plan, wish, request);
    return finding;
}

/* Whether namespaces are refused is tried in a child, while there is a way back. */
static const struct netless_finding *by_namespace_or_filter(const struct wish *wish,
                                                            struct netless_request *request)
{
    const struct netless_finding *refusal = by_namespace(netless_spawn, wish, request);

    if (refusal == NULL && request->report.step == NETLESS_STEP_NONE)
        return by_namespace(netless_exec, wish, request);
    if (refusal == NULL && netless_is_resource_error(request->report.error))
        return NULL;
    struct netless_report first = request->report;
    const struct netless_finding *finding = by_filter(wish, request);
    if (finding == NULL && request->report.step >= NETLESS_STEP_DESCRIPTORS)
        return NULL;
    request->report = first;
    return refusal;
}

static const struct netless_finding *by_seatbelt(const struct wish *wish,
                                                 struct netless_request *request)
{
    struct netless_plan plan = {
        .inherit_sockets = wish->inherit_sockets,
        .unix_sockets = !wish->no_unix_sockets,
        .profile = wish->no_unix_sockets ? PROFILE : PROFILE UNIX_SOCKETS,
    };

    launch(netless_exec, &plan, wish, request);
    return NULL;
}

/* Comes back on failure only: why nothing was tried, or NULL and the request's report. */
static const struct netless_finding *become(const struct wish *wish,
                                            struct netless_request *request)
{
    const char *here = netless_mechanism(), *asked = wish->mechanism;
    int is_auto = strcmp(asked, "auto") == 0;

    if (*here == '\0')
        return &UNSUPPORTED;
    if (strcmp(here, "seatbelt") == 0)
        return is_auto || strcmp(asked, here) == 0 ? by_seatbelt(wish, request) : &NOT_HERE;
    if (strcmp(asked, "filter") == 0)
        return by_filter(wish, request);
    if (!is_auto && strcmp(asked, here) != 0)
        return &NOT_HERE;
    return wish->has_fallback ? by_namespace_or_filter(wish, request)
                              : by_namespace(netless_exec, wish, request);
}

int main(int argc, char **argv, char **environment)
{
    struct wish wish = {.report_fd = -1, .mechanism = "auto", .environment = environment};
    struct netless_request request = {.report = {.step = NETLESS_STEP_NONE}};
    const struct netless_finding *finding = NULL;

    program_name = argc > 0 && *argv[0] != '\0' ? argv[0] : "netless-exec";
    if (strrchr(program_name, '/') != NULL)
        program_name = strrchr(program_name, '/') + 1;
    read_options(&wish, argc, argv);
    if (wish.command[0] == NULL)
        refuse(&wish, "no program to run", "");
    refuse_contradictions(&wish);
    if (make_request(&wish, &request) == 0) {
        finding = become(&wish, &request);
    } else {
        request.report.step = NETLESS_STEP_MEMORY;
        request.report.error = ENOMEM;
    }
    return tell_failure(&wish, &request.report, finding);
}

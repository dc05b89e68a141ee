/*
 * The only C file that knows the interpreter.
 *
 * cffi releases the interpreter's lock around every call.  Two things must
 * happen under it, so they take it back for as long as they last.
 */
#include <Python.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "spawn.h"

/* One block: the pointers, then the strings. */
static char **copy_environ(void)
{
    char **variables = netless_environ();
    size_t count = 0, size = 0;

    for (; variables != NULL && variables[count] != NULL; count++)
        size += strlen(variables[count]) + 1;
    char **copy = malloc((count + 1) * sizeof(char *) + size);
    if (copy == NULL)
        return NULL;
    char *text = (char *)(copy + count + 1);
    for (size_t i = 0; i < count; i++) {
        size_t length = strlen(variables[i]) + 1;
        copy[i] = memcpy(text, variables[i], length);
        text += length;
    }
    copy[count] = NULL;
    return copy;
}

/* Copied under the lock: no other thread of the interpreter can be inside putenv. */
int netless_popen(const struct netless_plan *plan, struct netless_request *request)
{
    if (!request->has_env) {
        PyGILState_STATE lock = PyGILState_Ensure();
        request->environ_copy = copy_environ();
        PyGILState_Release(lock);
        if (request->environ_copy == NULL)
            return netless_fail(&request->report, NETLESS_STEP_MEMORY);
    }
    return netless_spawn(plan, request);
}

/* What os.fork does, with the child isolated before its at-fork hooks run. */
int netless_fork(void)
{
    PyGILState_STATE lock = PyGILState_Ensure();
    PyOS_BeforeFork();
    int pid = netless_fork_isolated();
    if (pid == 0)
        PyOS_AfterFork_Child();
    else
        PyOS_AfterFork_Parent();
    PyGILState_Release(lock);
    return pid;
}

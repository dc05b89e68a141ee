/*
 * The only C file that knows CPython; pypy.c is its counterpart.
 *
 * cffi releases the interpreter's lock around every call.  Two things must
 * happen under it, so they take it back for as long as they last.
 */
#include <Python.h>

#include "spawn.h"

/* Copied under the lock: no other thread of the interpreter can be inside putenv. */
int netless_popen(const struct netless_plan *plan, struct netless_request *request)
{
    if (!request->has_env) {
        PyGILState_STATE lock = PyGILState_Ensure();
        request->environ_copy = netless_duplicate(netless_environ());
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

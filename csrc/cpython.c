/*
 * The only C file that knows CPython; pypy.c is its counterpart.
 *
 * cffi releases the interpreter's lock around every call.  What must happen under
 * it takes it back for as long as it lasts, or is a function that cffi does not
 * know: spawn(), the way of nearly every child, for which each Python step and
 * each passing on of the lock would be felt.
 */
#include <Python.h>

#include <stdlib.h>
#include <string.h>

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
int netless_fork(struct netless_handle *handle)
{
    PyGILState_STATE lock = PyGILState_Ensure();
    PyOS_BeforeFork();
    int pid = netless_fork_isolated(handle->launch);
    if (pid == 0)
        PyOS_AfterFork_Child();
    else
        PyOS_AfterFork_Parent();
    PyGILState_Release(lock);
    return pid;
}

/* ---- spawn ---- */

/* NUL-terminated strings, one behind the other. */
struct block {
    char *text;
    size_t used, size;
};

static int grow(struct block *block, size_t wanted)
{
    size_t size = block->size ? block->size : 512;

    while (size < wanted)
        size *= 2;
    if (size == block->size)
        return 0;
    char *text = realloc(block->text, size);
    if (text == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    block->text = text;
    block->size = size;
    return 0;
}

/* As os.fsencode has it, without NULs. */
static int append(struct block *block, PyObject *item)
{
    PyObject *encoded = NULL;
    char *text;
    Py_ssize_t length;
    int result = -1;

    if (item == NULL || !PyUnicode_FSConverter(item, &encoded))
        return -1;
    if (PyBytes_AsStringAndSize(encoded, &text, &length) == 0 &&
        grow(block, block->used + (size_t)length + 1) == 0) {
        memcpy(block->text + block->used, text, (size_t)length + 1);
        block->used += (size_t)length + 1;
        result = 0;
    }
    Py_DECREF(encoded);
    return result;
}

/* How many there were, or -1 with an exception. */
static int join(struct block *block, PyObject *items)
{
    Py_ssize_t count = PySequence_Size(items);

    if (count < 0 || grow(block, 1) < 0)
        return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(items, i);
        int result = append(block, item);
        Py_XDECREF(item);
        if (result < 0)
            return -1;
    }
    return (int)count;
}

struct strings {
    PyObject *argv, *candidates, *env, *cwd;
    struct block blocks[4];
};

/* Every object into memory of our own; -1 with an exception. */
static int convert(struct strings *strings, struct netless_request *request)
{
    struct block *blocks = strings->blocks;

    if ((request->argc = join(&blocks[0], strings->argv)) < 0 ||
        (request->candidate_count = join(&blocks[1], strings->candidates)) < 0)
        return -1;
    request->has_env = strings->env != Py_None;
    if (request->has_env && (request->env_count = join(&blocks[2], strings->env)) < 0)
        return -1;
    if (strings->cwd != Py_None && append(&blocks[3], strings->cwd) < 0)
        return -1;
    request->argv = blocks[0].text;
    request->candidates = blocks[1].text;
    request->env = blocks[2].text;
    request->cwd = blocks[3].text;
    if (!request->has_env)
        request->environ_copy = netless_duplicate(netless_environ());
    if (request->has_env || request->environ_copy != NULL)
        return 0;
    PyErr_NoMemory();
    return -1;
}

/* The pid, or the report as bytes. The lock is given up once, for the launch itself. */
static PyObject *spawn(PyObject *self, PyObject *arguments)
{
    struct netless_request request = {.stdio = {-1, -1, -1}};
    struct strings strings = {.argv = NULL};
    int *in = request.stdio, *out = request.parent_ends;
    PyObject *address, *result = NULL;

    (void)self;
    if (!PyArg_ParseTuple(arguments, "O(OOOO(iiiiii)pppii):spawn", &address, &strings.argv,
                          &strings.candidates, &strings.env, &strings.cwd, &in[0], &out[0],
                          &out[1], &in[1], &out[2], &in[2], &request.close_fds,
                          &request.restore_signals, &request.new_session, &request.process_group,
                          &request.umask))
        return NULL;
    const struct netless_plan *plan = PyLong_AsVoidPtr(address);
    if (plan != NULL && convert(&strings, &request) == 0) {
        PyThreadState *state = PyEval_SaveThread();
        int pid = netless_spawn(plan, &request);
        PyEval_RestoreThread(state);
        result = pid > 0 ? PyLong_FromLong(pid)
                         : PyBytes_FromStringAndSize((const char *)&request.report,
                                                     sizeof request.report);
    }
    for (int i = 0; i < 4; i++)
        free(strings.blocks[i].text);
    return result;
}

/* netless._spawn.spawn comes to stand beside what cffi puts there. */
int netless_add_spawn(void)
{
    static PyMethodDef method = {"spawn", spawn, METH_VARARGS, NULL};
    PyGILState_STATE lock = PyGILState_Ensure();
    PyObject *module = PyImport_AddModule("netless._spawn");
    PyObject *function = module == NULL ? NULL : PyCFunction_NewEx(&method, NULL, NULL);
    int result = function == NULL ? -1 : PyObject_SetAttrString(module, "spawn", function);

    Py_XDECREF(function);
    PyErr_Clear();
    PyGILState_Release(lock);
    return result;
}

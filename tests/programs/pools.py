"""pools.py METHOD ENTRY ORIGINAL PORT: one worker tries a TCP connection; prints what came of it.

The connection is tried at three moments: while ``__main__`` is imported again (spawn and
forkserver), while the argument is unpickled (the same), and in the task.
"""

import concurrent.futures
import multiprocessing
import socket
import sys

import netless

METHOD, ENTRY, ORIGINAL, PORT = sys.argv[1:]


def connect():
    try:
        socket.create_connection(("127.0.0.1", int(PORT)), 5).close()
    except OSError as error:
        return type(error).__name__
    return "reached"


at_import = connect() if __name__ != "__main__" else "not imported"


class Argument:
    def __reduce__(self):
        return (connect, ())


def task(at_unpickling, results=None):
    found = [at_import, at_unpickling if isinstance(at_unpickling, str) else "same", connect()]
    if results is None:
        return found
    results.put(found)
    return None


def main():
    if ORIGINAL == "original":
        context, executor = multiprocessing.get_context(METHOD), concurrent.futures
        options = {"mp_context": context}
    else:
        context, executor = netless.get_context(METHOD), netless
        options = {"mp_context": multiprocessing.get_context(METHOD)}
    if ENTRY == "Process":
        results = context.SimpleQueue()
        process = context.Process(target=task, args=(Argument(), results))
        process.start()
        print(*results.get())
        process.join()
        assert process.exitcode == 0
    elif ENTRY == "Pool":
        with context.Pool(1) as pool:
            print(*pool.apply(task, (Argument(),)))
    else:
        with executor.ProcessPoolExecutor(1, **options) as pool:
            print(*pool.submit(task, Argument()).result())


if __name__ == "__main__":
    main()

"""joblib's pools where workers cannot be isolated; docs/pools.md has the ones where they can."""

from __future__ import annotations

import pytest

from support import need

pytestmark = [pytest.mark.isolated, pytest.mark.native]

REPORT = """
from joblib import Parallel, delayed
import netless, os, sys, threading

def beside_a_thread():
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    netless.isolate()

def task():
    os.write(1, b"a task ran")

if __name__ == "__main__":
    options = {
        "context": {"backend": netless.get_context("spawn")},
        "initializer": {"backend": "loky", "initializer": beside_a_thread},
    }[sys.argv[1]]
    try:
        Parallel(n_jobs=2, **options)(delayed(task)() for _ in range(2))
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_a_context_that_cannot_isolate_raises_the_reason(script) -> None:
    need("unshare")
    limit = "echo 0 > /proc/sys/user/max_user_namespaces"  # of a user namespace made for this
    done = script(REPORT, "context", prefix=("unshare", "-r", "sh", "-ec", f'{limit}; "$@"', "sh"))
    assert done.stdout.startswith("NetworkIsolationUnavailable"), done.stderr
    assert "user-namespaces-disabled" in done.stdout
    assert "a task ran" not in done.stdout


def test_an_initializer_that_comes_too_late_breaks_the_pool(script) -> None:
    done = script(REPORT, "initializer")
    assert done.stdout.startswith("TerminatedWorkerError"), done.stderr
    assert "process-has-threads" in done.stderr
    assert "a task ran" not in done.stdout

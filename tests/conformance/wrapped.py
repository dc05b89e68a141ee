"""netless as it is without its extension, for ``cpython_subprocess.py --module wrapped``."""

import sys
import warnings

sys.modules["netless._spawn"] = None

from netless import *  # noqa: E402, F403
from netless import Isolation, probe  # noqa: E402

assert probe(Isolation()).mechanism == "wrapper", probe(Isolation()).error

with warnings.catch_warnings():  # once in a process, and not amid the suite
    warnings.simplefilter("ignore", RuntimeWarning)
    Popen(["true"]).wait()  # noqa: F405

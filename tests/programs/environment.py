"""environment.py ISOLATION-JSON: what probe, require and a real launch say here, as JSON.

The launch comes first or last, as "spawn-first" says: a fresh process must get the
same answer either way.
"""

import json
import os
import sys

import netless


def outcome(call) -> dict:
    try:
        found = call()
    except netless.NetworkIsolationUnavailable as error:
        return failure(error)
    except OSError as error:
        return {"kind": type(error).__name__, "errno": error.errno}
    return found


def failure(error: netless.NetworkIsolationUnavailable) -> dict:
    return {
        "kind": type(error).__name__,
        "text": str(error),
        **{
            name: getattr(error, name)
            for name in ("cause", "step", "errno", "hint", "meaning", "summary")
        },
    }


def described(found: netless.Probe) -> dict:
    if found.error is not None:
        return failure(found.error)
    return {"mechanism": found.mechanism, "guarantees": sorted(found.guarantees)}


def spawned(isolation: netless.Isolation) -> dict:
    with netless.Popen(
        ["readlink", "/proc/self/ns/net"], isolation=isolation, stdout=netless.PIPE, text=True
    ) as child:
        namespace = child.stdout.read().strip()
        status = child.wait()
    return {"mechanism": child.mechanism, "namespace": namespace, "status": status}


def own_namespace() -> str | None:
    try:
        return os.readlink("/proc/self/ns/net")
    except OSError:
        return None


def observed(isolation: netless.Isolation, *, spawn_first: bool) -> dict:
    steps = {
        "probe": lambda: described(netless.probe(isolation)),
        "require": lambda: described(netless.require(isolation)),
        "spawn": lambda: spawned(isolation),
    }
    order = sorted(steps, reverse=spawn_first)
    return {"own": own_namespace(), **{name: outcome(steps[name]) for name in order}}


options = json.loads(sys.argv[1])
spawn_first = options.pop("spawn-first")
print(json.dumps(observed(netless.Isolation(**options), spawn_first=spawn_first)))

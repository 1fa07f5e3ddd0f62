"""Doing something in a forked child whose file system fails, or kills it, at one call."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal

from pyengine.errors import PyengineError
from pyengine.fs import door, faults

DONE, RAISED, KILLED = 0, 3, -signal.SIGKILL


def killed_at_each_call(function):
    """Yield the number of each call before which a fork of ours was killed, right after that; ends
    once a fork came through."""
    for nth in itertools.count(1):
        if run_faulty(function, nth, "kill") == DONE:
            return
        yield nth


def run_faulty(function, nth, action, op="*"):
    """Call `function` in a fork that meets the fault at its nth call (of `op`) through the door.

    Return DONE (it met none, or got over it), RAISED (an OSError or an error of ours) or KILLED.
    """
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            plan = json.dumps([{"op": op, "nth": nth, "action": action}])
            door.active = faults.FaultDoor(faults.parse_plan(plan))
            try:
                function()
                code = DONE
            except (OSError, PyengineError):
                code = RAISED
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (DONE, RAISED, KILLED)
    return code

"""Runs one engine for the gateway: `python -m router.scaling.keeper GRACE_S COMMAND...`.

Standard input is a pipe to the gateway. It closes when the gateway stops the engine, and when the gateway dies (by SIGKILL
too). Then the engine's process group gets SIGTERM, and SIGKILL after GRACE_S. So no engine outlives its gateway. If this
process itself is killed, the kernel kills the engine (Linux: PR_SET_PDEATHSIG, prctl(2)).

The exit code is the engine's; 127 if it cannot be started.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time

_PR_SET_PDEATHSIG = 1


def keep(command: list[str], grace_s: float) -> int:
    """Run an engine until it ends or standard input closes; returns its exit code."""
    woken, wakes = os.pipe()
    for end in (woken, wakes):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakes)
    stops = []
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: stops.append(True))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        engine = subprocess.Popen(  # noqa: S603 (the operator's command, without a shell)
            command,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 (this process has one thread)
        )
    except OSError as error:
        print(f"{command[0]} cannot be started: {error.strerror}", file=sys.stderr)
        return 127
    try:
        while engine.poll() is None and not stops:
            readable, _, _ = select.select([0, woken], [], [])
            if woken in readable:
                os.read(woken, 1024)
            if 0 in readable and not os.read(0, 1024):
                break
        return _stop(engine, grace_s)
    finally:
        _signal(engine, signal.SIGKILL)  # what the engine itself has started and left


def _stop(engine: subprocess.Popen[bytes], grace_s: float) -> int:
    """End an engine, if it still runs; returns its exit code."""
    if engine.poll() is None:
        _signal(engine, signal.SIGTERM)
        until = time.monotonic() + grace_s
        while engine.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        _signal(engine, signal.SIGKILL)
    code = engine.wait()
    return code if code >= 0 else 128 - code


def _signal(engine: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(engine.pid, number)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    raise SystemExit(keep(sys.argv[2:], float(sys.argv[1])))

# SPDX-License-Identifier: Apache-2.0
"""The guard of a process that runs code of users: whatever that has started ends with it.

A guard is the parent of the process that it guards, and runs no code of users. Grandchildren and
programs that detach themselves become its children (it is a sub-reaper), so it finds and kills all
of them; none is left when it has ended, which it does as the guarded process did. It acts when that
has ended, when whoever started it is gone, and when it is told to. Where the system has no
sub-reapers there is no guard.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys

from penstock.clock import SystemClock, blocking_sleep
from penstock.process_identity import has_ended
from penstock.process_tree import children, signal_descendants
from penstock.worker.signals import end_with_parent

GUARD_NAME = "penstock-guard"  # in the list of processes
HAS_GUARDS = sys.platform.startswith("linux")
END_SECONDS = 5.0  # a killed program is gone by then, or the system holds it
LOOK_SECONDS = 0.002  # between two looks at what is left
_SET_NAME, _SET_CHILD_SUBREAPER = 15, 36  # of prctl
#: Real-time signals, which nobody sends to all processes of a service.
_STARTER_GONE = signal.SIGRTMIN if HAS_GUARDS else signal.SIGTERM
_END_NOW = signal.SIGRTMIN + 1 if HAS_GUARDS else signal.SIGKILL


def be_guarded(starter: int, patience_seconds: float = 0.0) -> None:
    """Go on as a child of this process, which stays behind as the guard; no thread runs yet.

    Args:
        starter: the process that has started this one.
        patience_seconds: for the guarded process to end by itself when the starter is gone.
    """
    if not HAS_GUARDS:
        return
    _prctl(_SET_CHILD_SUBREAPER, 1)
    heard = {_STARTER_GONE, _END_NOW, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, heard)
    end_with_parent(starter, _STARTER_GONE)
    guard = os.getpid()
    guarded = os.fork()
    if guarded == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, heard)
        end_with_parent(guard)
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    _prctl(_SET_NAME, GUARD_NAME.encode())
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # the guarded one's alone
    _end_as(_guard(guarded, patience_seconds))


def programs() -> set[int]:
    """What runs below this guarded process, as far as its own and its guard's children go."""
    found = {*children(os.getpid()), *(children(os.getppid()) if HAS_GUARDS else ())}
    return {pid for pid in found - {os.getpid()} if not has_ended(pid)}


def end_guarded(process: subprocess.Popen[bytes]) -> None:
    """Kill a guarded process that runs, and all that it has started."""
    process.send_signal(_END_NOW)
    process.send_signal(signal.SIGCONT)  # a guard that somebody has stopped


def _guard(guarded: int, patience_seconds: float) -> int:
    """Wait for the end, and bring it about for all; the wait status of the guarded process."""
    heard = {_STARTER_GONE, _END_NOW, signal.SIGCHLD}
    status = None
    while status is None:
        number = signal.sigwait(heard)
        status = _reap(guarded)
        if number == _END_NOW:
            break
        if number == _STARTER_GONE:
            return _end_all(guarded, status, patience_seconds)
    return _end_all(guarded, status, 0.0)


def _end_all(guarded: int, status: int | None, patience_seconds: float) -> int:
    """Kill all descendants; those that the system holds are waited for, but not for ever."""
    own, clock = os.getpid(), SystemClock()
    began = clock.monotonic()
    while status is None and clock.monotonic() < began + patience_seconds:
        blocking_sleep(LOOK_SECONDS)
        status = _reap(guarded)
    until = clock.monotonic() + END_SECONDS
    while signal_descendants(own, signal.SIGKILL) or status is None:
        blocking_sleep(LOOK_SECONDS)
        ended = _reap(guarded)
        status = ended if status is None else status
        if status is not None and clock.monotonic() > until:
            break
    return status


def _reap(guarded: int) -> int | None:
    """Let go of children that have ended; the wait status of the guarded one, if it is there."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == guarded:
                found = status
    return found


def _end_as(status: int) -> None:
    """End as the guarded process did, without a second core file."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):  # of SIGKILL
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os._exit(os.waitstatus_to_exitcode(status))


def _prctl(option: int, value: int | bytes) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)

# SPDX-License-Identifier: Apache-2.0
"""How does a process end when its parent is gone, even while a C call holds the GIL?

A thread that waits for the end of a pipe can do nothing while the GIL is held. The kernel can: it
sends a signal to a child whose parent dies (Linux). Python's own handlers need the GIL too, so the
handler is a function of the C library itself.
"""

from __future__ import annotations

import ctypes
import signal
import sys

_SET_PARENT_DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG
#: `alarm`, called as a handler, gets the number of its signal as seconds: SIGHUP is 1.
_IN_A_SECOND = signal.SIGHUP


def end_with_parent() -> bool:
    """Be killed at once when the thread that started this process is gone; False: not possible."""
    return _ask_kernel(signal.SIGKILL)


def end_soon_after_parent() -> bool:
    """Be killed one second after that: time to give things back. False: not possible here."""
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    library.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    library.signal.restype = ctypes.c_void_p
    library.signal(int(_IN_A_SECOND), ctypes.cast(library.alarm, ctypes.c_void_p))
    return _ask_kernel(_IN_A_SECOND)


def _ask_kernel(number: signal.Signals) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    done: int = ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, int(number), 0, 0, 0)
    return done == 0

# SPDX-License-Identifier: Apache-2.0
"""How does a process end when its parent is gone, even while a C call holds the GIL?

A thread that waits for the end of a pipe can do nothing while the GIL is held. The kernel can: it
sends a signal to a child whose parent dies (Linux). Python's own handlers need the GIL too, so the
handler is a function of the C library itself.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_SET_PARENT_DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG
#: `alarm`, called as a handler, gets the number of its signal as seconds: SIGHUP is 1.
_IN_A_SECOND = signal.SIGHUP


def end_with_parent(parent: int) -> None:
    """Be killed at once when the thread that started this process is gone, where that is known."""
    _ask_kernel(signal.SIGKILL, parent)


def end_soon_after_parent(parent: int) -> None:
    """Be killed one second after that: time to give things back."""
    if not sys.platform.startswith("linux"):
        return
    library = ctypes.CDLL(None)
    library.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    library.signal.restype = ctypes.c_void_p
    library.signal(int(_IN_A_SECOND), ctypes.cast(library.alarm, ctypes.c_void_p))
    _ask_kernel(_IN_A_SECOND, parent)


def _ask_kernel(number: signal.Signals, parent: int) -> None:
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, int(number), 0, 0, 0)
    if os.getppid() != parent:  # it died before we asked
        os._exit(1)

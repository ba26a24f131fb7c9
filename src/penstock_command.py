# SPDX-License-Identifier: Apache-2.0
"""How does `penstock` begin and end without a traceback, whenever Ctrl-C comes?

The console script. It stands beside the package, not in it: importing the package takes most of
the time of a short command, and Ctrl-C in the middle of an import would print where it was.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

EXIT_INTERRUPTED = 130


def _leave(number: int, frame: FrameType | None) -> None:
    """Nothing was begun, so there is nothing to tidy up."""
    os._exit(EXIT_INTERRUPTED)


def _imported() -> Callable[[], None]:
    """The command line, with the command that was typed.

    What is imported stays: looking for garbage in it would take longer.
    """
    gc.disable()
    from penstock.cli import main

    main.import_command(sys.argv[1:])
    gc.freeze()
    gc.enable()
    return main.run


def run() -> None:
    """Run the command line; Ctrl-C is KeyboardInterrupt only while a command runs."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        _imported()()  # whoever started us wants no interrupts
        return
    signal.signal(signal.SIGINT, _leave)
    run_command = _imported()
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        run_command()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the end of the process is not to be torn


if __name__ == "__main__":
    run()

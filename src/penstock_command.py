# SPDX-License-Identifier: Apache-2.0
"""How does `penstock` begin and end without a traceback, whenever Ctrl-C comes?

The console script. It stands beside the package, not in it: importing the package takes most of
the time of a short command, and Ctrl-C in the middle of an import would print where it was.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

EXIT_INTERRUPTED = 130


def _leave(number: int, frame: FrameType | None) -> None:
    """Nothing was begun, so there is nothing to tidy up."""
    os._exit(EXIT_INTERRUPTED)


def run() -> None:
    """Run the command line; Ctrl-C is KeyboardInterrupt only while a command runs."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        from penstock.cli.main import run as run_command

        run_command()  # whoever started us wants no interrupts
        return
    signal.signal(signal.SIGINT, _leave)
    from penstock.cli.main import run as run_command

    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        run_command()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the end of the process is not to be torn


if __name__ == "__main__":
    run()

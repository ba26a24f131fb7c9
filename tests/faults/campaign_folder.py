# SPDX-License-Identifier: Apache-2.0
"""The folder of a long campaign: it goes with a sound end or an interruption, and else it stays.

SIGTERM is heard as Ctrl-C is, also by a program that a shell has started deaf in the background:
servers and runs that have sessions of their own must not outlive their campaign.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.postgres.guard import scratch

INTERRUPTED = 130  # the exit code of who was interrupted


class Broken(Exception):
    """Something did not hold, and was told."""


@contextlib.contextmanager
def campaign_folder(name: str, seed: int) -> Iterator[Path]:
    """A new folder, told with the seed; it stays if the block ends by an error, such as Broken."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix=f"penstock-{name}-", dir=scratch()))
    print(f"seed {seed}, folder {folder}", flush=True)
    try:
        yield folder
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        print("Interrupted: what was not told is not proved.", flush=True)
        sys.stdout.flush()
        os._exit(INTERRUPTED)  # threads at work wait for nobody
    except Broken:
        print(f"What is left of it: {folder}", flush=True)
        raise SystemExit(1) from None
    shutil.rmtree(folder)

# SPDX-License-Identifier: Apache-2.0
"""Runs a program whose calls of `penstock` are clones: python -m tests.cloned_commands FILE ...

For the examples, which type dozens of commands: `tests.forked` tells why.
"""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.forked import Forked


class Typed(Forked):
    """Is what `subprocess.Popen` is, but for `penstock`."""

    def __init__(self, args: list[str], **options: Any) -> None:
        if args[0] == "penstock":
            args = [sys.executable, "-m", "penstock_command", *args[1:]]
        super().__init__(args, **options)


if __name__ == "__main__":
    subprocess.Popen = Typed  # type: ignore[misc]
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    runpy.run_path(sys.argv[0], run_name="__main__")

# SPDX-License-Identifier: Apache-2.0
"""Runs an example so that the commands that it types are clones: `run_example` in a test.

It types dozens of them, and each would import everything anew.
"""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.forked import Forked, run_forked
from tests.processes import environment_of_tests

PATIENCE_SECONDS = 240.0


def run_example(
    program: Path, *arguments: str, popen: type[Forked] = Forked
) -> subprocess.CompletedProcess[str]:
    return run_forked(
        [sys.executable, "-m", "tests.cloned_commands", str(program), *arguments],
        popen=popen,
        env=environment_of_tests(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )


class Typed(Forked):
    """Is what `subprocess.Popen` is, but for `penstock`."""

    def __init__(self, args: list[str], **options: Any) -> None:
        if args[0] == "penstock":
            args = [sys.executable, "-m", "penstock_command", *args[1:]]
        super().__init__(args, **options)


if __name__ == "__main__":
    subprocess.Popen = Typed  # type: ignore[assignment, misc]
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    runpy.run_path(sys.argv[0], run_name="__main__")

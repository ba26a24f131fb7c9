# SPDX-License-Identifier: Apache-2.0
"""The begin of a process: what is imported, and what short commands cost."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measuring import Answer
from benchmarks.paired.figures import Better, Figure, to_answer

PIPELINE = """
from penstock import Context, Penstock

app = Penstock("bench")


@app.task()
async def noop(ctx: Context, n: int) -> None: ...
"""
MODULES = "import sys, penstock; print(sum(m.partition('.')[0] == 'penstock' for m in sys.modules))"


def measure(times: int) -> Answer:
    """Probe: import the package, and run commands from their begin to their end, some times."""
    Path("pipeline.py").write_text(PIPELINE)
    python, command = sys.executable, str(Path(sys.executable).with_name("penstock"))
    modules = int(_output([python, "-c", MODULES]))
    return to_answer(
        [Figure("import penstock", "modules", Better.LOWER, modules)],
        _timed("import penstock", [[python, "-c", "import penstock"]] * times),
        _timed("penstock --help", [[command, "--help"]] * times),
        _timed(
            "penstock queue enqueue",
            [[command, "queue", "enqueue", "noop", f"k{n}", '{"n": 1}'] for n in range(times)],
        ),
        _timed("penstock queue run --drain", [[command, "queue", "run", "--drain"]]),
    )


def _timed(what: str, commands: Sequence[Sequence[str]]) -> list[Figure]:
    """Seconds of a command, with all processes that it starts."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    for command in commands:
        _output(command)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    count = len(commands)
    return [
        Figure(what, "s", Better.LOWER, wall / count),
        Figure(what, "CPU s", Better.LOWER, cpu / count),
    ]


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout

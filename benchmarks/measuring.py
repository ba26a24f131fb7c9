# SPDX-License-Identifier: Apache-2.0
"""How is something measured so that nothing leaks into the next measurement?

A *probe* is a function of a module: it takes JSON arguments and answers with JSON. Each call of it
happens in a process of its own, in a scratch folder, without the settings of whoever runs the
benchmark. What is compared takes turns, and ratios are taken between neighbours, so that a drifting
load falls on both.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROBE_SECONDS = 300.0  # a probe that takes longer has failed
STOP_SECONDS = 40.0  # a process that was asked to end gets this long
COMPILED_FOLDER = "compiled"  # beside the folders of the scenarios
ERROR_CHARACTERS = 2_000  # of a failed probe's stderr
SHARED_MEMORY = Path("/dev/shm")
#: Where probes leave marks: on the store's disk, each would slow the next sync. None: the default.
MEMORY = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None

Answer = dict[str, Any]
Probe = Callable[..., Answer]


class ProbeFailed(Exception):
    """A measurement did not come to its end."""


@dataclass(slots=True)
class Spent:
    """What a stretch of code took."""

    wall: float = 0.0  # seconds
    cpu: float = 0.0  # seconds of this process, all threads


@contextlib.contextmanager
def stopwatch() -> Iterator[Spent]:
    """Measure the wall time and the CPU time of a block; filled in when it ends.

    The garbage of what came before is collected first: one full collection, by chance inside a
    block or not, costs ten milliseconds.
    """
    gc.collect()
    spent = Spent()
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    yield spent
    spent.wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF)
    spent.cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class Running:
    """A probe at work. Owns its process, which is killed if nobody lets it finish."""

    def __init__(
        self, probe: Probe, folder: Path, arguments: Mapping[str, Any], python: Path | str
    ) -> None:
        self.name = f"{probe.__module__}:{probe.__name__}"
        self._process = subprocess.Popen(
            [str(python), "-m", "benchmarks.measuring", self.name, json.dumps(arguments)],
            cwd=folder,
            env=_environment(folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self) -> None:
        """Wait for the probe to say that it could begin (see `ready_and_wait`)."""
        if self._process.stdout is None or self._process.stdout.readline().strip() != "ready":
            self.finish()
            raise ProbeFailed(f"{self.name} ended before it was ready.")

    def go(self) -> None:
        """Let a probe begin that waits for it."""
        if self._process.stdin is not None:
            self._process.stdin.write("go\n")
            self._process.stdin.flush()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def check_alive(self) -> None:
        """Raise ProbeFailed with its last words if it has ended."""
        if not self.alive:
            self.finish()
            raise ProbeFailed(f"{self.name} ended before it was asked to.")

    def stop(self) -> Answer:
        """Ask the process to end, and take its answer."""
        self._process.terminate()
        return self.finish(STOP_SECONDS)

    def finish(self, timeout: float = PROBE_SECONDS) -> Answer:
        """Take the answer; ProbeFailed with the last words if there is none."""
        try:
            out, errors = self._process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ProbeFailed(f"{self.name} did not end within {timeout:g} s.") from None
        lines = out.splitlines()
        if self._process.returncode != 0 or not lines:
            tail = errors.strip()[-ERROR_CHARACTERS:]
            raise ProbeFailed(f"{self.name} ended with {self._process.returncode}:\n{tail}")
        answer: Answer = json.loads(lines[-1])
        return answer

    def kill(self) -> None:
        """End it at once, if it has not ended."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


@contextlib.contextmanager
def running(
    probe: Probe, folder: Path, *, python: Path | str = sys.executable, **arguments: Any
) -> Iterator[Running]:
    """Have a probe at work in the background of a block, in the environment of this Python."""
    process = Running(probe, folder, arguments, python)
    try:
        yield process
    finally:
        process.kill()


def fresh(
    probe: Probe, folder: Path, *, python: Path | str = sys.executable, **arguments: Any
) -> Answer:
    """Run a probe in a new process, in this folder, and wait for its answer."""
    with running(probe, folder, python=python, **arguments) as process:
        return process.finish()


def ready_and_wait() -> None:
    """In a probe: tell that we could begin, and begin when told."""
    print("ready", flush=True)
    sys.stdin.readline()


def interleaved(
    rounds: int, measures: Mapping[str, Callable[[], Answer]]
) -> dict[str, list[Answer]]:
    """Measure each in turn, `rounds` times over."""
    answers: dict[str, list[Answer]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            answers[name].append(measure())
    return answers


def pick(answers: Sequence[Answer], figure: str) -> list[float]:
    """One figure of every round."""
    return [float(answer[figure]) for answer in answers]


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the ratios between neighbours."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def quantile(values: Sequence[float], part: float) -> float:
    """The value below which this part of all values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def cpu_of(pid: int) -> float:
    """CPU seconds that another process has used so far, all its threads together."""
    return time.clock_gettime(
        ~pid << 3 | 2
    )  # Linux: the clock id that clock_getcpuclockid(3) makes


def memory_of(pid: int) -> dict[str, float]:
    """Resident memory of another process in MiB: at present, and at its peak."""
    found = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("VmRSS", "VmHWM"):
            found[name] = int(value.split()[0]) / 1024
    return {"now": found["VmRSS"], "peak": found["VmHWM"]}


def _environment(folder: Path) -> dict[str, str]:
    """The environment of a probe: ours without settings, so that the defaults are measured.

    Probes share compiled modules in a place of their own, since most of a small one is its imports.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    return kept | {
        "PYTHONPATH": str(ROOT),
        "PYTHONPYCACHEPREFIX": str(folder.parent / COMPILED_FOLDER),
    }


def _main() -> None:
    module, _, name = sys.argv[1].partition(":")
    probe: Probe = getattr(importlib.import_module(module), name)
    print(json.dumps(probe(**json.loads(sys.argv[2]))), flush=True)


if __name__ == "__main__":
    _main()

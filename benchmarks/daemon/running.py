# SPDX-License-Identifier: Apache-2.0
"""How is a real `penstock run` started for a measurement, and when is it ready?

Ready is what systemd would be told: every preflight has passed and every unit is armed.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measuring import ROOT, ProbeFailed, cpu_of

READY_SECONDS = 120.0
END_SECONDS = 60.0
APP = """
import os, time
from penstock import Context, Penstock, TickContext

app = Penstock("bench", store="sqlite:///daemon.db")
units = app.partitions("unit", range(int(os.environ["BENCH_UNITS"])))
timing = os.environ["BENCH_TIMING"]
marks = os.open("marks", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

@app.preflight(over=units)
async def there(ctx: Context, unit: int) -> None: ...

@app.every(timing if " " in timing else float(timing), over=units)
async def tick(ctx: TickContext, unit: int) -> None:
    now = time.time()
    os.write(marks, b"%f %f\\n" % (now, now - ctx.due_at.timestamp()))
    ctx.cursor = unit
"""


@dataclass(frozen=True, slots=True)
class Daemon:
    """A daemon that is ready."""

    folder: Path
    pid: int
    start_seconds: float  # from the command to ready

    def processes(self) -> list[int]:
        """The supervisor and its worker."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [self.pid, *map(int, children.split())]

    def cpu_seconds(self) -> float:
        return sum(map(cpu_of, self.processes()))

    def ticks(self) -> list[tuple[float, float]]:
        """Of each tick: when it began, and how late that was, in seconds."""
        path = self.folder / "marks"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(float(at), float(late)) for at, late in map(str.split, lines)]


@contextmanager
def daemon(
    folder: Path, units: int, timing: str, arguments: Sequence[str] = ()
) -> Iterator[Daemon]:
    """Start one in an own folder; it is stopped, and has to end well."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "app.py").write_text(APP)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    kept |= {"PYTHONPATH": str(ROOT), "BENCH_UNITS": str(units), "BENCH_TIMING": timing}
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
        (folder / "log").open("w") as log,
    ):
        name = f"\0penstock-bench-{os.getpid()}-{folder.name}"
        manager.bind(name)
        manager.settimeout(READY_SECONDS)
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock_command", "run", "app.py", *arguments],
            cwd=folder,
            env={**kept, "NOTIFY_SOCKET": "@" + name[1:]},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            while not manager.recv(4096).startswith(b"READY=1"):
                pass
            yield Daemon(folder, process.pid, time.monotonic() - began)
            process.send_signal(signal.SIGTERM)
            if process.wait(END_SECONDS) != 0:
                raise ProbeFailed(f"the daemon ended with {process.returncode}")
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()

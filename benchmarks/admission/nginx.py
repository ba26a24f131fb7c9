# SPDX-License-Identifier: Apache-2.0
"""How near does a run come to what nginx allows, if nobody tells it the limits?

Real processes, real sockets: a queue of jobs, a worker, nginx with `limit_conn` and `limit_req`,
and an upstream with a latency. What is counted is what nginx wrote down.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.runner import Check, Outcome, Sense, Setup, Table
from penstock.testing import ProviderRules, SimulatedProvider
from tests.nginx.server import Nginx, NginxLimits, Served

CONNECTIONS = 12
PER_SECOND = 100
BURST = 20
RATE = 0.9  # of the ideal
LATE_REFUSALS = 0.02  # of the calls after the beginning
BEGINNING_SECONDS = 5.0
RUN_SECONDS = 600.0  # that a run may take at all
PENSTOCK = [sys.executable, "-m", "penstock_command"]

PIPELINE = """
import os
from penstock import Context, Penstock

app = Penstock("hidden")
service = app.provider("service", base_url=os.environ["HIDDEN_URL"])

@app.task(uses=service, max_attempts=1, timeout=60)
async def fetch(ctx: Context, number: int) -> int:
    reply = await service.http.get(f"/{number}")
    reply.raise_for_status()
    return len(reply.content)
"""


@dataclass(frozen=True, slots=True)
class Course:
    """How a run went."""

    calls: int
    seconds: float  # from the first call to the last answer
    ideal_seconds: float
    refused: int
    late: int  # calls after the beginning
    late_refused: int
    failed_jobs: int

    @property
    def part_of_ideal(self) -> float:
        return self.ideal_seconds / self.seconds

    @property
    def late_refusals(self) -> float:
        return self.late_refused / self.late if self.late else 0.0


def run(folder: Path, calls: int, latency: float, slots: int = 64) -> Course:
    """So many jobs of one call each, through an nginx that hides its limits."""
    limits = NginxLimits(connections=CONNECTIONS, per_second=PER_SECOND, burst=BURST)
    (folder / "pipeline.py").write_text(PIPELINE)
    with (
        SimulatedProvider(ProviderRules(latency=latency)) as upstream,
        Nginx(upstream.url, limits) as nginx,
    ):
        environment = {**os.environ, "HIDDEN_URL": nginx.url}
        lines = "".join(f'{{"key": "{n}", "payload": {{"number": {n}}}}}\n' for n in range(calls))
        _call(folder, environment, "queue", "import", "-", "--task", "fetch", text=lines)
        _call(folder, environment, "queue", "run", "--drain", "--slots", str(slots))
        stats = json.loads(_call(folder, environment, "queue", "stats", "--json"))
        return course(nginx.log(), latency, calls - stats["states"]["done"])


def course(served: list[Served], latency: float, failed_jobs: int) -> Course:
    """What the log of a run says."""
    good = [one for one in served if one.status == 200]
    began = min(one.began for one in served)
    late = [one for one in served if one.began - began >= BEGINNING_SECONDS]
    return Course(
        len(good),
        max(one.ended for one in good) - began,
        ideal_seconds(len(good), latency),
        sum(one.status == 429 for one in served),
        len(late),
        sum(one.status == 429 for one in late),
        failed_jobs,
    )


def ideal_seconds(calls: int, latency: float) -> float:
    """What somebody who knows both limits needs."""
    by_rate = max(0.0, calls - BURST) / PER_SECOND + latency
    by_connections = -(-calls // CONNECTIONS) * latency
    return max(by_rate, by_connections)


def measure(setup: Setup) -> Outcome:
    """Once where the rate binds, once where the connections do."""
    calls = setup.size(2_000, smoke=400)
    checks, rows = [], []
    for name, latency in (("limit_req binds", 0.1), ("limit_conn binds", 0.2)):
        folder = setup.folder / name.replace(" ", "_")
        folder.mkdir()
        found = run(folder, calls, latency)
        if not setup.smoke:
            checks += [
                Check(
                    f"nginx, {name}: rate, × the ideal", found.part_of_ideal, Sense.AT_LEAST, RATE
                ),
                Check(
                    f"nginx, {name}: 429s after the first 5 s, part of the calls",
                    found.late_refusals,
                    Sense.BELOW,
                    LATE_REFUSALS,
                ),
            ]
        checks.append(
            Check(f"nginx, {name}: failed jobs", found.failed_jobs, Sense.AT_MOST, 0, timing=False)
        )
        rows.append(
            (
                name,
                latency,
                found.calls,
                found.seconds,
                found.ideal_seconds,
                found.part_of_ideal,
                found.refused,
                found.late_refused,
            )
        )
    title = f"nginx with hidden limits: {CONNECTIONS} calls at once, {PER_SECOND} a second"
    columns = ("limit", "latency, s", "calls", "s", "ideal, s", "× ideal", "429s", "429s after 5 s")
    return Outcome(tuple(checks), (Table(title, columns, tuple(rows)),))


def _call(folder: Path, environment: dict[str, str], *words: str, text: str | None = None) -> str:
    done = subprocess.run(
        [*PENSTOCK, *words],
        cwd=folder,
        env=environment,
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_SECONDS,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout

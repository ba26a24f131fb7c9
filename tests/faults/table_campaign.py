# SPDX-License-Identifier: Apache-2.0
"""Kill the generation of a table again and again; is it the same, and was anything bought twice?

The oracle is a run that nobody disturbs, and the provider, in the process of the test: its answers
follow from the request alone, so that the parts must have the same bytes. A kill may cost the calls
that had begun and were not answered in the journal, and no others.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from penstock.model.job import JobId
from penstock.model.journal import CallRef, CallState
from penstock.stores.open import open_store
from penstock.stores.protocol import JobFilter, Store
from penstock.testing import Lognormal, ProviderRules, SimulatedProvider, SimulatedRequest
from tests.faults.launcher import VARIABLE
from tests.forked import ForkedWithArrow
from tests.processes import REPOSITORY, children_of, environment_of_tests, is_alive, kill_run
from tests.waiting import wait_until

TABLE = "reviews"
PAID_COLUMNS = 3
SLOTS = 8  # cells at once
END_SECONDS = 600.0  # of a run, however busy the machine is
VICTIMS = ("worker", "supervisor", "run")
#: Where a part becomes durable and visible; at any of the first so many times.
POINTS = {
    "dataset.part_written": 6,
    "dataset.part_synced": 6,
    "dataset.renamed": 6,
    "dataset.staged": 2,
    "ack.in_tx": 2,
    "ack.committed": 2,
}
CONFIG = """
app = "table_app.py"
store = "{store}"
[datasets]
root = "out"
[runtime]
lease_ttl_seconds = 1.0
beat_seconds = 0.25
grace_seconds = 1.0
async_slots = {slots}
[tasks]
max_crashes = 1000
"""


def answer(request: SimulatedRequest) -> dict[str, object]:
    """A chat completion that follows from the request alone; some scores are no JSON at first."""
    asked = request.json()
    text = digest = hashlib.sha256(json.dumps(asked["messages"]).encode()).hexdigest()
    if asked["messages"][0]["content"].startswith("Rate: ") and digest[0] not in "abc":
        text = json.dumps({"stars": int(digest[1], 16) % 5 + 1})
    return {
        "model": asked["model"],
        "choices": [
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        ],
        "usage": {"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30},
    }


@dataclass
class Outcome:
    """What a campaign found."""

    rows: int
    needed: int = 0  # calls of a run that nobody disturbs
    begun: int = 0  # calls that the provider has seen
    in_flight: list[int] = field(default_factory=list)  # at each kill
    kills: Counter[str] = field(default_factory=Counter)
    missed: int = 0  # points that a run did not come to
    made: int = 0
    dropped: int = 0
    seconds: float = 0.0
    broken: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        flight = self.in_flight or [0]
        victims = ", ".join(f"{count} of {who}" for who, count in sorted(self.kills.items()))
        return [
            f"{self.rows} rows ({self.made} made, {self.dropped} dropped), {self.seconds:.0f} s, "
            f"{self.kills.total()} kills ({victims}), {self.missed} points not reached",
            f"{self.needed} calls needed, {self.begun} begun, so {self.begun - self.needed} were "
            f"bought again; in flight at the kills {sum(flight)} in all, {max(flight)} at most",
            *(f"BROKEN: {sentence}" for sentence in self.broken),
        ]


class TableCampaign:
    """Owns a provider, a folder, and the command that is killed in it."""

    def __init__(self, folder: Path, url: str | None = None, *, seed: int, rows: int) -> None:
        self.folder = folder
        self._random = random.Random(seed)
        self._url = url or f"sqlite:///{folder}/killed/tables.db"
        self._left_open: set[CallRef] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self.outcome = Outcome(rows)
        self.provider = SimulatedProvider(
            ProviderRules(latency=Lognormal(0.03)), seed=seed, answer=answer
        )

    def run(self, kills: int, deaths: int) -> Outcome:
        """Kill at random moments, and at points of the code; go on to the end, and compare.

        Args:
            kills: at moments that are spread over the calls.
            deaths: at named points, after them.
        """
        began = time.monotonic()
        with self.provider:
            whole = self._place("whole", f"sqlite:///{self.folder}/whole/tables.db")
            self._to_the_end(whole)
            if self.outcome.broken:
                return self.outcome
            needed = self.outcome.needed = self.provider.counts.calls
            killed = self._place("killed", self._url)
            share = needed / (kills + deaths + 1)
            try:
                for number in range(kills):
                    self._kill(killed, needed + share * (number + self._random.random()))
                for _ in range(deaths):
                    self._die(killed)
                self._to_the_end(killed)
            finally:
                if self._process is not None:
                    kill_run(self._process)
            self.outcome.begun = self.provider.counts.calls - needed
            self._judge(whole, killed)
        self.outcome.seconds = time.monotonic() - began
        return self.outcome

    def _place(self, name: str, url: str) -> Path:
        place = self.folder / name
        place.mkdir(parents=True)
        shutil.copy(REPOSITORY / "tests/faults/table_app.py", place)
        (place / "penstock.toml").write_text(CONFIG.format(store=url, slots=SLOTS))
        return place

    def _open(self) -> Store:
        return open_store(self._url, folder=self.folder / "killed")

    # ── Processes ─────────────────────────────────────────────────────────────────────────────

    def _start(self, place: Path, *words: str, points: object = None) -> subprocess.Popen[bytes]:
        more = {} if points is None else {VARIABLE: json.dumps({"worker": points})}
        with (place / "out.log").open("wb") as out, (place / "processes.log").open("ab") as log:
            return ForkedWithArrow(
                [sys.executable, "-m", "tests.faults.launcher", "supervisor", "table", *words],
                cwd=place,
                env=environment_of_tests(PENSTOCK_TEST_PROVIDER=self.provider.url, **more),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                start_new_session=True,
            )

    def _generate(self, place: Path, points: object = None) -> subprocess.Popen[bytes]:
        return self._start(place, "generate", "--rows", str(self.outcome.rows), points=points)

    def _kill(self, place: Path, after_calls: float) -> None:
        """Kill the worker, the supervisor or both once so many calls were made."""
        process = self._process = self._process or self._generate(place)
        asked = self.provider.counts.calls
        wait_until(
            lambda: (
                self.provider.counts.calls > max(asked, after_calls) or process.poll() is not None
            ),
            seconds=END_SECONDS,
        )
        time.sleep(self._random.uniform(0, 0.06))
        if process.poll() is not None:
            return  # it has ended before its kill
        victim = self._random.choice(VICTIMS)
        os.kill(process.pid, signal.SIGSTOP)  # or it would reap its worker before we have looked
        workers = children_of(process.pid)
        if victim != "supervisor":
            for pid in workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if victim != "worker":
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            self._process = None
        wait_until(lambda: not any(is_alive(pid) for pid in workers))
        self._count(victim)
        if victim == "worker":
            os.kill(process.pid, signal.SIGCONT)

    def _die(self, place: Path) -> None:
        """Let the whole run die where a part is written, staged or acknowledged."""
        if self._process is not None:
            kill_run(self._process)
            self._process = None
            self._count("run")
        point = self._random.choice(sorted(POINTS))
        mark = self.folder / f"once-{self.outcome.kills.total()}-{self.outcome.missed}"
        mark.touch()
        rule = {"at": self._random.randint(1, POINTS[point]), "once": str(mark), "whole": True}
        process = self._process = self._generate(place, {point: rule})
        process.wait(END_SECONDS)
        self._process = None
        if mark.exists():
            self.outcome.missed += 1
            return
        self._count(point)

    def _count(self, victim: str) -> None:
        self.outcome.kills[victim] += 1
        self.outcome.in_flight.append(self._open_calls())

    def _to_the_end(self, place: Path) -> None:
        process = self._process = self._process or self._generate(place)
        code = process.wait(END_SECONDS)
        self._process = None
        if code:
            said = (place / "processes.log").read_text()[-3_000:]
            self.outcome.broken.append(f"{place.name}: the command ended with {code}: {said}")

    # ── Questions ─────────────────────────────────────────────────────────────────────────────

    def _open_calls(self) -> int:
        """Calls that had begun when it was killed, and were not answered in the journal.

        Those that an earlier kill has left, and that nobody has begun again, are not counted twice.
        """
        with contextlib.closing(self._open()) as store:
            last, now = JobId(0), set()
            while page := store.jobs(JobFilter(), last, 500).result():
                last = page[-1].id
                now |= {
                    CallRef(call.key, call.token)
                    for job in page
                    for call in store.calls(job.id).result()
                    if call.state is CallState.OPEN
                }
        count = len(now - self._left_open)
        self._left_open |= now
        return count

    def _judge(self, whole: Path, killed: Path) -> None:
        outcome = self.outcome
        wanted, dropped = self._dropped(whole), self._dropped(killed)
        if wanted != dropped:
            outcome.broken.append(f"dropped: {wanted} undisturbed, {dropped} killed")
        self._told(killed, "export", TABLE, "--to", "jsonl", "--file", "rows.jsonl")
        lines = (killed / "rows.jsonl").read_text().splitlines()
        made = [int(json.loads(line)["id"].removeprefix("review-")) for line in lines]
        outcome.made, outcome.dropped = len(made), len(dropped)
        numbers = sorted([*made, *(row for row, _, _ in dropped)])
        if made != sorted(made) or numbers != list(range(outcome.rows)):
            outcome.broken.append(f"rows are lost, doubled or in disorder: {made}, {dropped}")
        if _parts(whole) != _parts(killed):
            outcome.broken.append("the parts are not those of an undisturbed run")
        if not 0 <= outcome.begun - outcome.needed <= sum(outcome.in_flight):
            outcome.broken.append("calls are missing, or more were bought again than in flight")
        if any(count > SLOTS for count in outcome.in_flight):
            outcome.broken.append(f"more than {SLOTS} calls were in flight: {outcome.in_flight}")
        with contextlib.closing(self._open()) as store:
            outcome.broken += store.check().result()
            outcome.broken += [f"a lock is left: {lock}" for lock in store.locks().result()]
            outcome.broken += [f"a plan is left: {plan.id}" for plan in store.open_plans().result()]

    def _dropped(self, place: Path) -> list[tuple[int, str, str]]:
        """Row, column and reason; values so far depend on when it was dropped."""
        told = map(json.loads, self._told(place, "dropped").splitlines())
        return [(one["row"], one["column"], one["reason"]) for one in told]

    def _told(self, place: Path, *words: str) -> str:
        process = self._start(place, *words)
        assert process.wait(END_SECONDS) == 0, (place / "processes.log").read_text()[-3_000:]
        return (place / "out.log").read_text()


def _parts(place: Path) -> dict[str, list[bytes]]:
    """The content of all files of rows, by the folder of their row group."""
    found: dict[str, list[bytes]] = {}
    for file in sorted((place / "out").rglob("part-*")):
        found.setdefault(file.parent.name, []).append(file.read_bytes())
    return found

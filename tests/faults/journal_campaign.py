# SPDX-License-Identifier: Apache-2.0
"""Kill a run whose calls cost money, again and again; was anything bought twice without need?

The oracle is the provider, in the process of the test: it counts what it was asked and what it has
served to the end. A kill may cost the calls that were in flight, which had begun and were not
answered in the journal, and no others. The run is stopped before it is looked at and killed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.model.job import TERMINAL, Job, JobId, JobState, NewJob
from penstock.model.journal import CallFigures, CallRef, CallState
from penstock.stores.protocol import JobFilter, Store
from penstock.testing.simulated_provider import (
    Lognormal,
    ProviderRules,
    SimulatedProvider,
    SimulatedRequest,
)
from tests.processes import REPOSITORY, children_of, environment_of_tests, is_alive, kill_run
from tests.waiting import wait_until

END_SECONDS = 300.0  # of a run, however busy the machine is
CALLS_EACH = 3
CONFIG = """
app = "journal_app.py"
store = "{store}"
[runtime]
lease_ttl_seconds = 1.0
beat_seconds = 0.25
grace_seconds = 1.0
async_slots = {slots}
[tasks]
max_crashes = 1000
"""


@dataclass
class Outcome:
    """What a campaign found."""

    calls: int = 0  # that the jobs make in all
    kills: Counter[str] = field(default_factory=Counter)  # by what was killed
    begun: int = 0  # calls that the provider has seen
    served: int = 0  # to the end
    in_flight: list[int] = field(default_factory=list)  # at each kill
    most_for_one: int = 0  # how often one and the same call was served
    figures: CallFigures = field(default_factory=CallFigures)
    put_back: int = 0  # jobs whose worker was killed too often while they ran alone
    seconds: float = 0.0
    broken: list[str] = field(default_factory=list)

    @property
    def extra(self) -> int:
        return self.served - self.calls

    def sound(self) -> bool:
        again = self.figures.resent  # at least those that had reached the provider
        is_told = self.begun - self.calls <= again <= sum(self.in_flight)
        return not self.broken and self.begun <= self.calls + sum(self.in_flight) and is_told

    def lines(self) -> list[str]:
        flight = self.in_flight or [0]
        return [
            f"{self.calls} calls, {self.kills.total()} kills ({self.kills['worker']} of the worker "
            f"alone), {self.seconds:.0f} s: begun {self.begun}, "
            f"served {self.served}, so {self.extra} were bought twice; in flight at the kills "
            f"{sum(flight)} in all, {max(flight)} at most",
            f"the journal says: bought {self.figures.bought}, reused {self.figures.reused}, "
            f"in doubt {self.figures.in_doubt}, sent again {self.figures.resent}; one call was "
            f"served {self.most_for_one} times at most; {self.put_back} jobs were put back",
            *(f"BROKEN: {sentence}" for sentence in self.broken),
        ]


def text_for(prompt: str) -> str:
    """What the provider answers; the same for the same prompt."""
    return hashlib.sha256(prompt.encode()).hexdigest() * 4


def _jobs(store: Store) -> Iterator[Job]:
    last = JobId(0)
    while page := store.jobs(JobFilter(), last, 500).result():
        yield from page
        last = page[-1].id


class Campaign:
    """Owns a provider, a folder, and the run that is killed in it."""

    def __init__(
        self,
        folder: Path,
        store_url: str,
        open_store: Callable[[], Store],
        *,
        seed: int,
        calls: int,
        kills: int,
        slots: int = 8,
        popen: type[subprocess.Popen[Any]] = subprocess.Popen,
    ) -> None:
        self._folder = folder
        self._open_store = open_store
        self._popen = popen
        self._random = random.Random(seed)
        self._jobs = calls // CALLS_EACH
        self._kills = kills
        self._slots = slots
        self._asked: Counter[str] = Counter()
        self._left_open: set[CallRef] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self.outcome = Outcome(calls=self._jobs * CALLS_EACH)
        self.provider = SimulatedProvider(
            ProviderRules(latency=Lognormal(0.03)), seed=seed, answer=self._answer
        )
        shutil.copy(REPOSITORY / "tests/faults/journal_app.py", folder / "journal_app.py")
        (folder / "penstock.toml").write_text(CONFIG.format(store=store_url, slots=slots))

    def _answer(self, request: SimulatedRequest) -> bytes:
        prompt = request.json()["prompt"]
        self._asked[prompt] += 1
        return text_for(prompt).encode()

    def run(self) -> Outcome:
        """Everything: enqueue, run and kill, run to the end, count."""
        began = time.monotonic()
        with self.provider:
            self._enqueue()
            try:
                for number in range(self._kills):
                    share = self.outcome.calls / (self._kills + 1)
                    if not self._run_and_kill(share * (number + self._random.random())):
                        break
                self._run_to_the_end()
            finally:
                if self._process is not None:
                    kill_run(self._process)
            counts = self.provider.counts
            self.outcome.begun = counts.calls
            self.outcome.served = counts.served
            self.outcome.most_for_one = max(self._asked.values(), default=0)
        self._ask()
        self.outcome.seconds = time.monotonic() - began
        return self.outcome

    # ── Processes ─────────────────────────────────────────────────────────────────────────────

    def _launch(self) -> subprocess.Popen[bytes]:
        environment = environment_of_tests(PENSTOCK_TEST_PROVIDER=self.provider.url)
        command = [sys.executable, "-m", "tests.faults.launcher", "supervisor"]
        with (self._folder / "processes.log").open("ab") as log:
            return self._popen(
                [*command, "queue", "run", "--drain"],
                cwd=self._folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _enqueue(self) -> None:
        store = self._open_store()
        try:
            jobs = [
                NewJob(
                    key=f"job-{number}",
                    task="ask",
                    payload=f'{{"number":{number},"calls":{CALLS_EACH}}}',
                    group="ask",
                )
                for number in range(self._jobs)
            ]
            store.enqueue(jobs).result()
        finally:
            store.close()

    def _run_and_kill(self, after_calls: float) -> bool:
        """Kill the worker, or the whole run, when so many calls were made; False: it has ended."""
        process = self._process = self._process or self._launch()
        while len(self._asked) < after_calls and process.poll() is None:
            time.sleep(0.002)
        self._await_worker(process)
        time.sleep(self._random.uniform(0, 0.06))
        if process.poll() is not None:
            return False
        os.kill(process.pid, signal.SIGSTOP)  # or it would reap its worker before we have looked
        workers = children_of(process.pid)
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        target = self._random.choice(["worker", "run"])
        if target == "run":
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            self._process = None
        wait_until(lambda: not any(is_alive(pid) for pid in workers))
        self.outcome.kills[target] += 1
        self.outcome.in_flight.append(self._open_calls())
        if target == "worker":
            os.kill(process.pid, signal.SIGCONT)
        return True

    def _await_worker(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until something is asked, so that there is somebody to kill."""
        asked = self._asked.total()
        wait_until(lambda: self._asked.total() > asked or process.poll() is not None)

    def _run_to_the_end(self) -> None:
        """Until all is done; a job whose worker died thrice while it ran alone is put back."""
        while True:
            process = self._process = self._process or self._launch()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self.outcome.broken.append(f"the run did not end within {END_SECONDS:g} s")
                return
            self._process = None
            put_back = self._put_back()
            self.outcome.put_back += put_back
            if not put_back:
                return

    def _put_back(self) -> int:
        store = self._open_store()
        try:
            crashed = sum(
                job.last_error is not None and job.last_error.kind == "crashed"
                for job in _jobs(store)
                if job.state is JobState.ERROR
            )
            if crashed:
                store.retry_failed(None, None).result()
            return crashed
        finally:
            store.close()

    # ── Questions ─────────────────────────────────────────────────────────────────────────────

    def _open_calls(self) -> int:
        """Calls that had begun when the run was killed, and were not answered in the journal.

        Those that an earlier kill has left, and that nobody has begun again, are not counted twice.
        """
        store = self._open_store()
        try:
            now = {
                CallRef(call.key, call.token)
                for job in _jobs(store)
                if job.state not in TERMINAL
                for call in store.calls(job.id).result()
                if call.state is CallState.OPEN
            }
        finally:
            store.close()
        count = len(now - self._left_open)
        self._left_open |= now
        return count

    def _ask(self) -> None:
        outcome = self.outcome
        store = self._open_store()
        try:
            outcome.broken += store.check().result()
            outcome.figures = store.call_figures(None).result()
            done = 0
            for job in _jobs(store):
                number = job.key.removeprefix("job-")
                if job.state is not JobState.DONE:
                    outcome.broken.append(f"{job.key} is {job.state}: {job.last_error}")
                elif job.result != f'"{self._expected(number)}"':
                    outcome.broken.append(f"{job.key} has another result")
                done += job.state is JobState.DONE
            if done != self._jobs:
                outcome.broken.append(f"{done} of {self._jobs} jobs are done")
        finally:
            store.close()
        if outcome.figures.bought < outcome.calls:
            outcome.broken.append("fewer answers were bought than calls were made")
        if outcome.figures.bought > outcome.served:
            outcome.broken.append("more answers were bought than the provider has served")
        most = self._slots * CALLS_EACH
        if any(count > most for count in outcome.in_flight):
            outcome.broken.append(f"more than {most} calls were in flight at a kill")

    def _expected(self, number: str) -> str:
        answers = [text_for(f"{number}/{index}") for index in range(CALLS_EACH)]
        return hashlib.sha256(" ".join(answers).encode()).hexdigest()

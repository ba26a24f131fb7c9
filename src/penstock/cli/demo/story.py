# SPDX-License-Identifier: Apache-2.0
"""What happens in the three acts?

Every moment is chosen by what was seen, not by time: a slow machine tells the same story.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path

from penstock.cli.demo.accounts import Accounts, AtTheKill, spent
from penstock.cli.demo.processes import Shell
from penstock.cli.demo.screen import Screen, bar
from penstock.cli.demo.service import PaidService
from penstock.cli.demo.sizes import CALLS_EACH, Sizes
from penstock.clock import Clock, blocking_sleep
from penstock.errors import PenstockError
from penstock.model.job import JobState
from penstock.model.views import WorkerView
from penstock.model.worker import read_status
from penstock.stores.open import open_store
from penstock.stores.protocol import Store
from penstock.terminal_text import span

STORE_URL = "sqlite:///.penstock/demo.db"
TICK_SECONDS = 0.1
STEP_SECONDS = 180.0  # that one step of the story may take on a very slow machine
FOUND_PART = 0.75  # of what the provider allows: so much of it is found
SQUEEZED_AT = 0.25  # of all answers: the provider changes its mind by then
EASED_AT = 0.45
KILLED_AT = 0.5
LAST_KILL_AT = 0.85  # also if the limit is not back by then

#: Has somebody asked for the end?
IsStopped = Callable[[], bool]


class StoryStopped(Exception):
    """Somebody wants the end, and has it."""


class Story:
    """Owns the provider, the commands and the store of one demo, and tells what they do."""

    def __init__(
        self, sizes: Sizes, folder: Path, screen: Screen, clock: Clock, is_stopped: IsStopped
    ) -> None:
        self._sizes = sizes
        self._folder = folder
        self._screen = screen
        self._clock = clock
        self._is_stopped = is_stopped
        self._service = PaidService(sizes)
        self._shell = Shell(folder, clock)
        self._began = clock.monotonic()
        self._limit = 0
        self._workers: list[WorkerView] = []

    def tell(self) -> list[str]:
        """All of it; what does not add up, if anything."""
        with ExitStack() as end:
            url = self._service.serve(end)
            end.callback(self._shell.close)
            self._write_project(url)
            self._screen.line(
                f"{self._sizes.documents} documents, {CALLS_EACH} paid calls each, to a model on "
                f"this machine that allows {self._sizes.allowed} calls at once and tells nobody."
            )
            store = self._first_act(end)
            kill = self._second_act(store)
            accounts = self._third_act(store, kill)
            self._report(accounts)
            return accounts.problems()

    # ── Acts ──────────────────────────────────────────────────────────────────────────────────

    def _first_act(self, end: ExitStack) -> Store:
        sizes, service = self._sizes, self._service
        self._screen.act("Act 1: the provider changes its mind")
        self._type("queue", "import", "documents.jsonl", "--task", "summarise")
        self._until(self._shell.has_ended)
        self._type("queue", "run", "--drain")
        store = open_store(STORE_URL, folder=self._folder, reading_will_do=True)
        end.callback(store.close)

        self._watch(store, lambda: self._limit >= FOUND_PART * sizes.allowed, SQUEEZED_AT)
        found, refused = self._limit, service.counts.refused
        service.allow(sizes.squeezed)
        self._screen.line(f"  Now the provider allows {sizes.squeezed} at once:")
        self._watch(store, lambda: self._limit <= sizes.squeezed + 1, EASED_AT)
        fallen, burst = self._limit, service.counts.refused - refused
        service.allow(sizes.allowed)
        self._screen.line(f"  {burst} calls were refused; it allows {sizes.allowed} again:")
        self._watch(
            store,
            lambda: self._limit >= FOUND_PART * sizes.allowed and self._part() >= KILLED_AT,
            LAST_KILL_AT,
        )
        self._screen.line(f"  The limit went {found} → {fallen} → {self._limit}.")
        return store

    def _second_act(self, store: Store) -> AtTheKill:
        self._screen.act("Act 2: kill -9")
        self._watch(store, lambda: self._service.counts.in_flight > 1 and bool(self._workers), 1.0)
        if self._shell.has_ended() or not self._workers:
            raise PenstockError("The demo's run ended before it could be killed; run it again.")
        pid = self._workers[0].pid
        self._screen.line(f"$ kill -9 {pid}")
        self._shell.kill_worker(pid)
        kill = AtTheKill.read(store, self._service)
        self._shell.let_go()
        self._screen.line(
            f"  Worker {pid} is dead. It had {kill.in_hand} documents in hand: "
            f"{kill.to_reuse} of their answers are in the journal, "
            f"{len(kill.in_flight)} calls were in flight."
        )
        return kill

    def _third_act(self, store: Store, kill: AtTheKill) -> Accounts:
        self._screen.act("Act 3: the resume")
        self._screen.line("  The supervisor has seen it, and starts another worker.")
        self._watch(store, lambda: False, None)
        accounts = Accounts.read(self._sizes, store, self._service, kill)
        self._screen.line(
            f"  {accounts.figures.reused} answers reused, {accounts.bought_again} bought again."
        )
        self._screen.line(
            f"  In flight at the kill: {len(kill.in_flight)}, sent again, since their answers had "
            f"not arrived; {accounts.sent_twice} of them had reached the provider."
        )
        return accounts

    def _report(self, accounts: Accounts) -> None:
        figures, done = accounts.figures, accounts.states[JobState.DONE]
        self._screen.act("Report")
        for name, said in {
            "documents": f"{self._sizes.documents} accepted, {done} done, {accounts.lost} lost",
            "answers": f"{figures.bought} bought, {figures.reused} reused, "
            f"{accounts.bought_again} bought again",
            "provider": f"{accounts.accepted.total()} calls taken on = {self._sizes.calls} + "
            f"{accounts.sent_twice} in flight at the kill; {accounts.served} answered to the end",
            "429s": f"{accounts.refused}, waited out: {accounts.charged} attempts were charged",
            "spent": spent(figures.spent),
            "wall": span(self._clock.monotonic() - self._began),
        }.items():
            self._screen.line(f"  {name:<10} {said}")

    # ── Steps ─────────────────────────────────────────────────────────────────────────────────

    def _write_project(self, url: str) -> None:
        templates = files("penstock.cli").joinpath("templates")
        for name in ("pipeline.py", "penstock.toml"):
            text = templates.joinpath(f"demo_{name}.tmpl").read_text(encoding="utf-8")
            text = text.replace("@URL@", url).replace("@SLOTS@", str(self._sizes.slots))
            (self._folder / name).write_text(text, encoding="utf-8")
        lines = (
            json.dumps({"key": f"document-{number}", "number": number})
            for number in range(1, self._sizes.documents + 1)
        )
        (self._folder / "documents.jsonl").write_text("\n".join(lines) + "\n")

    def _type(self, *arguments: str) -> None:
        self._screen.line(f"$ penstock {' '.join(arguments)}")
        self._shell.start(*arguments)

    def _part(self) -> float:
        """How much of all answers has been given?"""
        return self._service.counts.served / self._sizes.calls

    def _watch(self, store: Store, true: Callable[[], bool], at_most: float | None) -> None:
        """Show the run until something is true, or so much is done, or it has ended.

        Workers tell of their limit once a second: it is waited for as long as there is time.
        """

        def seen() -> bool:
            self._look(store)
            if true() or at_most is None:
                return true()
            return self._part() >= (at_most if self._limit else max(at_most, LAST_KILL_AT))

        self._until(lambda: self._shell.has_ended() or seen())

    def _look(self, store: Store) -> None:
        self._workers = [one for one in store.workers().result() if one.alive]
        # Suspects run one by one in a worker of their own: the other one's limit is what counts.
        limit = max((_limit_of(worker) for worker in self._workers), default=0)
        moved, self._limit = limit != self._limit, limit
        counts, sizes = self._service.counts, self._sizes
        done = store.stats().result().states.get(JobState.DONE, 0)
        no_limit = "a worker starts" if done < sizes.documents else "the worker ends"
        shown = f"limit {limit:>2} {bar(limit, sizes.allowed)}" if limit else no_limit
        self._screen.status(
            f"  {shown:<{len('limit 12 ') + sizes.allowed}}  {counts.in_flight:>2} in flight  "
            f"{counts.refused:>3} × 429  {counts.served:>4} answers  "
            f"{done:>3} of {sizes.documents} documents",
            moved=moved,
        )

    def _until(self, true: Callable[[], bool]) -> None:
        """Wait for something; StoryStopped if somebody wants the end."""
        late_at = self._clock.monotonic() + STEP_SECONDS
        while not true():
            if self._is_stopped():
                raise StoryStopped
            blocking_sleep(TICK_SECONDS)
            if self._clock.monotonic() > late_at:
                raise PenstockError(
                    f"The demo waited {STEP_SECONDS:g} s for its next step; the machine is busy, "
                    "or this is our bug. Run it again with --keep DIR and read DIR/commands.log."
                )


def _limit_of(worker: WorkerView) -> int:
    """Calls at once that a worker allows itself, as it said last; 0: it has not said anything."""
    status = read_status(worker.status)
    return 0 if status is None else sum(use.limit for use in status.providers)

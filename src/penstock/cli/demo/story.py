# SPDX-License-Identifier: Apache-2.0
"""The demo in three acts (429s, kill -9, resume), its simulated provider and its final accounts.

Every step is triggered by what was observed, not by time: a slow machine shows the same.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from penstock.cli.demo.processes import Shell
from penstock.clock import Clock, blocking_sleep
from penstock.errors import PenstockError
from penstock.model.job import TERMINAL, Job, JobId, JobState
from penstock.model.journal import CallFigures, CallState
from penstock.model.spending import MICROS, Amount
from penstock.model.views import WorkerView
from penstock.model.worker import read_status
from penstock.requests.journal.paid_policy import fingerprint
from penstock.stores.open import open_store
from penstock.stores.protocol import JobFilter, Store
from penstock.terminal_text import format_duration, write
from penstock.testing import Lognormal, ProviderRules, SimulatedProvider, SimulatedRequest
from penstock.testing.simulated_provider import Counts, Reply

CALLS_EACH = 3  # of a document: draft, criticism, final text
SEED = 7
REFUSAL_SECONDS = 0.05  # how long a refusal is on its way
PAGE = 500  # jobs that are read at once
PLAIN_SECONDS = 2.0  # between two lines about the same thing
CLEAR = "\r\x1b[2K"
BOLD, PLAIN = "\x1b[1m", "\x1b[0m"
STORE_URL = "sqlite:///.penstock/demo.db"
TICK_SECONDS = 0.1
STEP_SECONDS = 180.0  # that one step of the story may take on a very slow machine
FOUND_PART = 0.75  # of what the provider allows: so much of it is found
SQUEEZED_AT = 0.25  # of all answers: the provider changes its mind by then
EASED_AT = 0.45
KILLED_AT = 0.5
LAST_KILL_AT = 0.85  # also if the limit is not back by then


@dataclass(frozen=True, slots=True)
class Sizes:
    """The measures of one story."""

    documents: int
    allowed: int  # calls at once that the provider hides
    squeezed: int  # the same for a while
    slots: int  # documents in hand at once
    latency_seconds: float
    retry_after_seconds: float  # told with a refusal

    @property
    def calls(self) -> int:
        return self.documents * CALLS_EACH


FULL = Sizes(
    documents=250,
    allowed=16,
    squeezed=4,
    slots=20,
    latency_seconds=0.2,
    retry_after_seconds=1.0,
)
FAST = Sizes(
    documents=140,
    allowed=12,
    squeezed=3,
    slots=14,
    latency_seconds=0.1,
    retry_after_seconds=0.3,
)


class PaidService:
    """A model on loopback that costs money, with a limit that it tells nobody."""

    def __init__(self, sizes: Sizes) -> None:
        rules = ProviderRules(
            concurrency=sizes.allowed,
            latency=Lognormal(sizes.latency_seconds, sigma=0.2),
            retry_after_seconds=sizes.retry_after_seconds,
            refusal_seconds=REFUSAL_SECONDS,
        )
        self._provider = SimulatedProvider(rules, seed=SEED, script=self._note)
        self._prints: list[str] = []  # of the calls, in the order of arrival

    def serve(self, until: ExitStack) -> str:
        """Listen until the stack is closed; where."""
        return until.enter_context(self._provider).url

    def allow(self, calls_at_once: int) -> None:
        self._provider.change(concurrency=calls_at_once)

    @property
    def counts(self) -> Counts:
        return self._provider.counts

    @property
    def arrived(self) -> int:
        """Calls that have come so far."""
        return len(self._prints)

    def accepted(self) -> Counter[str]:
        """How often each call was taken on, so may have been charged for, and not refused."""
        log = self._provider.log
        return Counter(self._prints[call.number - 1] for call in log if not call.refused)

    def asked_since(self, arrived: int, prints: Iterable[str]) -> int:
        """How many of these calls have come again after so many arrivals."""
        return len(set(self._prints[arrived:]) & set(prints))

    def _note(self, request: SimulatedRequest) -> Reply | None:
        url = f"{self._provider.url}{request.path}"
        kind = request.headers.get("content-type", "")
        self._prints.append(fingerprint(request.method, url, request.body, kind))
        return None


@dataclass(frozen=True, slots=True)
class KillSnapshot:
    """What the dead worker left in the store and at the provider."""

    in_hand: int  # documents that were begun and not finished
    answered: frozenset[str]  # calls whose answers are in the journal
    to_reuse: int  # of those, the ones of documents that are not finished
    in_flight: frozenset[str]  # calls that began, and whose answers had not arrived
    arrived: int  # calls that the provider had seen

    @classmethod
    def read(cls, store: Store, service: PaidService) -> KillSnapshot:
        """Read it while nothing runs."""
        answered, in_flight, to_reuse, in_hand = set(), set(), 0, 0
        for job in _jobs(store):
            calls = store.calls(job.id).result()
            kept = {call.key.fingerprint for call in calls if call.state is CallState.ANSWERED}
            answered |= kept
            if job.state in TERMINAL:
                continue
            begun = {call.key.fingerprint for call in calls if call.state is CallState.OPEN}
            in_flight |= begun
            to_reuse += len(kept)
            in_hand += bool(kept or begun)
        return cls(in_hand, frozenset(answered), to_reuse, frozenset(in_flight), service.arrived)


@dataclass(frozen=True, slots=True)
class Accounts:
    """The final counts of the store, the journal and the provider."""

    sizes: Sizes
    states: Counter[JobState]
    charged: int  # attempts that failed by a fault of the documents themselves
    figures: CallFigures  # of the journal
    kill: KillSnapshot
    bought_again: int  # answers of the journal that the provider was asked for once more
    accepted: Counter[str]  # how often the provider took each call on
    refused: int  # calls that it refused
    served: int  # calls that it answered to the end

    @classmethod
    def read(cls, sizes: Sizes, store: Store, service: PaidService, kill: KillSnapshot) -> Accounts:
        """Ask everybody, when all is over."""
        jobs = list(_jobs(store))
        return cls(
            sizes,
            Counter(job.state for job in jobs),
            sum(job.attempts for job in jobs),
            store.call_figures(None).result(),
            kill,
            service.asked_since(kill.arrived, kill.answered),
            service.accepted(),
            service.counts.refused,
            service.counts.served,
        )

    @property
    def lost(self) -> int:
        return self.sizes.documents - self.states[JobState.DONE]

    @property
    def sent_twice(self) -> int:
        """Calls that the provider took on again."""
        return self.accepted.total() - len(self.accepted)

    def problems(self) -> list[str]:
        """Promises that the counts do not confirm; empty if all hold."""
        again = [call for call, times in self.accepted.items() if times > 1]
        rules = {
            f"{self.lost} documents are lost": self.lost == 0,
            f"{self.charged} attempts were charged to documents": self.charged == 0,
            f"{self.bought_again} answers were bought again": self.bought_again == 0,
            "calls were sent twice that were not in flight": self.kill.in_flight.issuperset(again),
            "a call was sent more than twice": max(self.accepted.values(), default=0) <= 2,
            f"the journal bought {self.figures.bought} answers for {self.sizes.calls} calls": (
                self.figures.bought == self.sizes.calls == len(self.accepted)
            ),
            f"{self.kill.to_reuse} answers were there and {self.figures.reused} were reused": (
                self.figures.reused >= self.kill.to_reuse
            ),
            "the provider served fewer calls than were paid": self.served >= self.figures.bought,
        }
        return [sentence for sentence, holds in rules.items() if not holds]


def spent(amount: Amount) -> str:
    """Money, if the model has a price, and tokens."""
    tokens = f"{amount.tokens:,} tokens"
    return f"${amount.micros / MICROS:.4f} for {tokens}" if amount.micros else tokens


def _jobs(store: Store) -> Iterator[Job]:
    last = JobId(0)
    while page := store.jobs(JobFilter(), last, PAGE).result():
        yield from page
        last = page[-1].id


class ReaderLeft(Exception):
    """Nobody reads the story any more."""


class Screen:
    """Owns the last line of the story."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._is_live = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._is_bold = self._is_live and "NO_COLOR" not in os.environ
        self._drawn = ""
        self._next_at = 0.0

    def act(self, title: str) -> None:
        """A new part begins."""
        self.line()
        self.line(f"{BOLD}{title}{PLAIN}" if self._is_bold else title)

    def line(self, text: str = "") -> None:
        """Say something that stays, under what was drawn last."""
        end = "\n" if self._drawn else ""
        self._drawn = ""
        self._write(f"{end}{text}\n")

    def status(self, text: str, *, moved: bool) -> None:
        """Say how it goes: in place, or as a line now and then and whenever something moved."""
        if self._is_live:
            text = text[: shutil.get_terminal_size().columns - 1]
            if text != self._drawn:
                self._drawn = text
                self._write(f"{CLEAR}{text}")
        elif moved or self._clock.monotonic() >= self._next_at:
            self._next_at = self._clock.monotonic() + PLAIN_SECONDS
            self.line(text)

    def close(self) -> None:
        """Leave the cursor where the shell expects it."""
        if self._drawn:
            self._drawn = ""
            write(CLEAR)

    def _write(self, text: str) -> None:
        if not write(text):
            raise ReaderLeft


def bar(part: int, whole: int) -> str:
    """A limit, drawn as wide as it is."""
    encoding = (sys.stdout.encoding or "").lower()
    full, empty = ("█", "░") if encoding.startswith("utf") else ("#", ".")
    part = min(part, whole)
    return full * part + empty * (whole - part)


#: Whether the demo was asked to stop.
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

    def _second_act(self, store: Store) -> KillSnapshot:
        self._screen.act("Act 2: kill -9")
        self._watch(store, lambda: self._service.counts.in_flight > 1 and bool(self._workers), 1.0)
        if self._shell.has_ended() or not self._workers:
            raise PenstockError("The demo's run ended before it could be killed; run it again.")
        pid = self._workers[0].pid
        self._screen.line(f"$ kill -9 {pid}")
        self._shell.kill_worker(pid)
        kill = KillSnapshot.read(store, self._service)
        self._shell.resume()
        self._screen.line(
            f"  Worker {pid} is dead. It had {kill.in_hand} documents in hand: "
            f"{kill.to_reuse} of their answers are in the journal, "
            f"{len(kill.in_flight)} calls were in flight."
        )
        return kill

    def _third_act(self, store: Store, kill: KillSnapshot) -> Accounts:
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
            "wall": format_duration(self._clock.monotonic() - self._began),
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
        """The part of all calls that is answered."""
        return self._service.counts.served / self._sizes.calls

    def _watch(self, store: Store, true: Callable[[], bool], at_most: float | None) -> None:
        """Show the run until something is true, or so much is done, or it has ended.

        Workers tell of their limit once a second: it is waited for as long as there is time.
        """

        def seen() -> bool:
            self._poll(store)
            if true() or at_most is None:
                return true()
            return self._part() >= (at_most if self._limit else max(at_most, LAST_KILL_AT))

        self._until(lambda: self._shell.has_ended() or seen())

    def _poll(self, store: Store) -> None:
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
        """Wait for a condition; StoryStopped if the demo is asked to stop."""
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

# SPDX-License-Identifier: Apache-2.0
"""Judges a round from outside: by what the ledger wrote down, what was killed, and what is told.

What is told comes from the command line (`queue list --json`, `budget show --json`); no database is
opened here. Each method looks for one kind of harm, and gives a sentence for each case of it.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.campaign.shop import DOOMED_ATTEMPTS, SEATS, Batch, kids_of, make_app, shared_kid

ENDED = {"done", "skipped", "error", "cancelled"}
MAX_CRASHES = 3
#: What a kill may lie before a begin that it explains: the ledger hears late on a busy machine, and
#: a worker whose supervisor is dead sees that within a second.
SLACK_SECONDS = 5.0
IN_PROCESS = {"crunch", "program"}

Job = dict[str, Any]
Key = tuple[str, str]  # app, key


@dataclass
class Execution:
    """One visit of a body or a program."""

    id: str
    app: str
    key: str
    task: str
    seat: str | None
    pid: int
    run: str
    began: float
    owner: str | None = None  # whose job it is; a program does not say
    ended: float | None = None
    how: str | None = None  # "done", "skipped", the name of an error; None: it broke off


@dataclass
class Send:
    id: int
    call: str
    app: str
    how: str
    cost: int
    billed: int
    visit: str | None
    idempotency: str | None
    at: float


@dataclass
class Kill:
    kind: str
    runs: list[str]
    pids: list[int]
    before: float
    at: float

    def hits(self, execution: Execution) -> bool:
        if execution.pid in self.pids:
            return True
        is_wide = self.kind != "worker" or execution.task in IN_PROCESS
        return is_wide and execution.run in self.runs


@dataclass
class Evidence:
    """All that is known of a round."""

    executions: dict[str, Execution] = field(default_factory=dict)
    sends: dict[int, Send] = field(default_factory=dict)
    got: list[tuple[str, int, float]] = field(default_factory=list)  # call, send, when
    seen: list[tuple[Key, str, float]] = field(default_factory=list)  # job, execution, when
    saw: list[tuple[Key, dict[str, str]]] = field(default_factory=list)
    offered: dict[Key, list[str]] = field(default_factory=dict)  # app and batch
    accepted: set[Key] = field(default_factory=set)
    kills: list[Kill] = field(default_factory=list)
    stops: list[Kill] = field(default_factory=list)  # in good order, by a signal
    freezes: list[Kill] = field(default_factory=list)  # from before the first to after the last
    budgets: list[tuple[float, str, int]] = field(default_factory=list)
    jobs: dict[Key, Job] = field(default_factory=dict)
    accounts: dict[str, dict[str, Any]] = field(default_factory=dict)
    after: dict[Key, list[tuple[str, bool]]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Evidence:
        evidence = cls()
        for line in (folder / "ledger.jsonl").read_text().splitlines():
            fact = json.loads(line)
            getattr(evidence, f"_{fact.pop('what')}")(fact.pop("at"), fact)
        for line in (folder / "kills.jsonl").read_text().splitlines():
            fact = json.loads(line)
            what, at = fact.pop("what"), fact.pop("at")
            if what == "kill":
                evidence.kills.append(Kill(at=at, **fact))
            elif what == "freeze":
                evidence.freezes.append(Kill(at=at, **fact))
            elif what == "stop":
                evidence.stops.append(Kill("stop", [fact["run"]], [], at, at))
            elif what == "start":
                evidence.budgets.append((at, fact["app"], fact["budget"]))
        for app, told in json.loads((folder / "told.json").read_text()).items():
            evidence.jobs |= {(app, job["key"]): job for job in told["jobs"] if job["app"] == app}
            evidence.accounts |= {account["app"]: account for account in told["budgets"]}
        evidence.after = evidence._dependencies()
        return evidence

    def _begin(self, at: float, fact: dict[str, Any]) -> None:
        known: Any = {name: fact[name] for name in Execution.__annotations__ if name in fact}
        self.executions[fact["visit"]] = Execution(id=fact["visit"], began=at, **known)

    def _end(self, at: float, fact: dict[str, Any]) -> None:
        execution = self.executions[fact["visit"]]
        execution.ended, execution.how = at, fact["how"]

    def _lost(self, at: float, fact: dict[str, Any]) -> None:
        self.executions[fact["visit"]].ended = at

    def _send(self, at: float, fact: dict[str, Any]) -> None:
        send = fact.pop("send")
        self.sends[send] = Send(id=send, at=at, **fact)

    def _replied(self, at: float, fact: dict[str, Any]) -> None:
        pass

    _gone = _replied

    def _accepted(self, at: float, fact: dict[str, Any]) -> None:
        self.accepted |= {(fact["app"], key) for key in fact["accepted"]}

    def _note(self, at: float, fact: dict[str, Any]) -> None:
        if "got" in fact:
            self.got.append((fact["got"], fact["send"], at))
        elif "seen" in fact:
            for key, execution in fact["seen"].items():
                self.seen.append(((fact["app"], key), execution, at))
        elif "saw" in fact:
            by = self.executions[fact["visit"]]
            self.saw.append(((by.app, by.key), fact["saw"]))
        elif "offered" in fact:
            self.offered[fact["app"], str(fact["batch"])] = fact["offered"]

    def _dependencies(self) -> dict[Key, list[tuple[str, bool]]]:
        """What each job comes after, and whether that must have succeeded."""
        after: dict[Key, list[tuple[str, bool]]] = {}
        for name, batch in self.offered:
            for request in Batch(make_app(name), name, int(batch)).requests:
                edges = [(edge.key, edge.kind == "success") for edge in request.after]
                after[name, str(request.key)] = edges
        for (name, key), job in self.jobs.items():
            if job["task"] == "join" and key.endswith(".join") and (name, key) not in after:
                stem = key.removesuffix(".join")
                after[name, key] = [(f"{stem}.{n}", True) for n in range(2)]
        return after

    def of_job(self) -> dict[Key, list[Execution]]:
        """The bodies that ran for each job, in order; programs are not bodies."""
        found: dict[Key, list[Execution]] = defaultdict(list)
        for execution in self.executions.values():
            if execution.task != "program":
                found[execution.app, execution.key].append(execution)
        return found


class Oracle:
    """Says what is wrong."""

    def __init__(self, evidence: Evidence) -> None:
        self._of = evidence
        self._bodies = evidence.of_job()

    def judge(self) -> dict[str, list[str]]:
        """Each kind of harm, with a sentence for each case."""
        return {
            "lost": [*self._lost()],
            "ended twice": [*self._ended_twice()],
            "ended wrongly": [*self._ended_wrongly()],
            "stuck": [*self._stuck()],
            "leaked": [*self._leaked()],
            "out of order": [*self._out_of_order()],
            "limits exceeded": [*self._limits_exceeded()],
            "ran beside itself": [*self._beside_itself()],
            "ran again unprovoked": [*self._ran_again()],
            "by another app": [*self._foreign()],
            "bought twice": [*self._bought_twice()],
            "overspent": [*self._overspent()],
            "accounts differ": [*self._accounts_differ()],
        }

    def counts(self) -> dict[str, int]:
        """How much there was to go wrong."""
        of = self._of
        delivered = {send for _, send, _ in of.got}
        undelivered = [s for s in of.sends.values() if s.how == "served" and s.id not in delivered]
        return {
            "kills": len(of.kills),
            "freezes": len(of.freezes),
            "jobs": len(of.jobs),
            "executions": sum(map(len, self._bodies.values())),
            "cut off by kills": sum(e.how is None for e in of.executions.values()),
            "paid calls": len({send.call for send in of.sends.values()}),
            "in flight at kills": self._in_flight_at_kills(),
            "bought again": len(undelivered),
        }

    # ── jobs ─────────────────────────────────────────────────────────────────────────────────────

    def _lost(self) -> Iterator[str]:
        jobs = self._of.jobs
        for app, key in sorted(self._of.accepted - set(jobs)):
            yield f"{app}: {key} was accepted and is not there"
        for (app, batch), keys in self._of.offered.items():
            there = sum((app, key) in jobs for key in keys)
            if there not in (0, len(keys)):
                yield f"{app}: of batch {batch} {there} of {len(keys)} jobs are there"
        for (app, key), job in jobs.items():
            if job["task"] == "fetch" and job["state"] == "done":
                for kid in sorted({*self._kids(key, job)}):
                    if (app, kid) not in jobs:
                        yield f"{app}: {key} is done and its child {kid} is not there"

    @staticmethod
    def _kids(key: str, job: Job) -> Iterator[str]:
        kids = job["result"]["kids"]
        yield from kids
        for n in range(kids_of(key)):
            yield f"{key}.{job['result']['execution']}.{n}"
        if shared := shared_kid(key):
            yield shared

    def _ended_twice(self) -> Iterator[str]:
        for (app, key), execution, at in self._of.seen:
            job = self._of.jobs.get((app, key))
            if job is None or _winner(job) != execution:
                yield f"{app}: {key} was seen done by {execution}, and is now {_told(job)}"
            for later in self._bodies[app, key]:
                if later.began > at and not self._stood_still(later.id, later.began):
                    yield f"{app}: {key} ran again as {later.id} after its end had been seen"
        for (app, key), saw in self._of.saw:
            for parent, execution in saw.items():
                job = self._of.jobs.get((app, parent))
                if job is None or _winner(job) != execution:
                    yield f"{app}: {key} saw {parent} done by {execution}, now {_told(job)}"

    def _ended_wrongly(self) -> Iterator[str]:
        for (app, key), job in self._of.jobs.items():
            expected = self._expected(app, key, job)
            state = job["state"]
            if state in ENDED and state != expected and not self._crashed(app, key, job):
                yield f"{app}: {key} should be {expected}, and is {_told(job)}"
            if state == "done":
                by = self._of.executions.get(_winner(job) or "")
                if by is None or by.how != "done" or (by.app, by.key) != (app, key):
                    yield f"{app}: {key} is done by {_winner(job)}, which did not come to its end"

    def _crashed(self, app: str, key: str, job: Job) -> bool:
        """Whether a job was taken for poison, as it may be after so many kills."""
        cut = sum(execution.how is None for execution in self._bodies[app, key])
        return (job["error"] or {}).get("category") == "crashed" and cut >= MAX_CRASHES

    def _expected(self, app: str, key: str, job: Job) -> str:
        parents = self._of.after.get((app, key), [])
        for parent, must_succeed in parents:
            if must_succeed and self._of.jobs[app, parent]["state"] != "done":
                return "skipped"
        return {"doomed": "error", "skipper": "skipped"}.get(str(job["task"]), "done")

    def _stuck(self) -> Iterator[str]:
        for (app, key), job in self._of.jobs.items():
            if job["state"] not in ENDED:
                yield f"{app}: {key} is {_told(job)} after the last drain"

    def _leaked(self) -> Iterator[str]:
        """Children of an execution that was not the one that ended its job."""
        for app, key in self._of.jobs:
            parts = key.split(".")
            if len(parts) == 4 and parts[1] != "shared":
                parent = self._of.jobs.get((app, f"{parts[0]}.{parts[1]}"))
                if parent is None or _winner(parent) != parts[2]:
                    yield f"{app}: {key} is there, and its parent is {_told(parent)}"
        for app, key in self._of.jobs:
            if key.endswith(".shared"):
                stem = key.split(".")[0]
                if not any(
                    shared_kid(parent) == key and job["state"] == "done"
                    for (of, parent), job in self._of.jobs.items()
                    if of == app and job["task"] == "fetch" and parent.startswith(f"{stem}.")
                ):
                    yield f"{app}: {key} is there, and none of its parents has ended"

    def _out_of_order(self) -> Iterator[str]:
        for (app, key), parents in self._of.after.items():
            bodies = self._bodies.get((app, key), [])
            for parent, _ in parents:
                ends = [e.ended for e in self._bodies.get((app, parent), []) if e.how is not None]
                skipped = self._of.jobs.get((app, parent), {}).get("state") == "skipped"
                for body in bodies:
                    if not skipped and not any(end < body.began for end in ends if end):
                        yield f"{app}: {key} began before {parent} had ended"

    # ── who ran when ─────────────────────────────────────────────────────────────────────────────

    def _moments(self, seat: str) -> list[tuple[float, int, str]]:
        """When each execution took and left a seat: a task with its program is one."""
        spans: dict[str, tuple[float, float]] = {}
        for execution in self._of.executions.values():
            root = execution.id.removesuffix("-program")
            if self._of.executions.get(root, execution).seat == seat:
                began, ended = execution.began, execution.ended or float("inf")
                known = spans.get(root, (began, ended))
                spans[root] = (min(known[0], began), max(known[1], ended))
        moments = [(began, 1, root) for root, (began, _) in spans.items()]
        return sorted(moments + [(ended, -1, root) for root, (_, ended) in spans.items()])

    def _limits_exceeded(self) -> Iterator[str]:
        for seat, limit in SEATS.items():
            holders: set[str] = set()
            for at, step, root in self._moments(seat):
                holders = holders | {root} if step > 0 else holders - {root}
                late = {root for root in holders if self._stood_still(root, at)}
                if step > 0 and len(holders - late) > limit:
                    who = ", ".join(map(self._describe, sorted(holders)))
                    yield f"seat {seat} of {limit} was held by {len(holders)} at {at:.3f}: {who}"

    def _stood_still(self, execution: str, at: float) -> bool:
        """Whether it may have lost its lease while its run was frozen, and not know it yet.

        What a loop had started when it was frozen takes its first step when it wakes up, and is
        cancelled at its second.
        """
        of = self._of.executions[execution]
        return self._hit(of, at, self._of.freezes) and any(
            freeze.before <= at <= freeze.at + SLACK_SECONDS
            for freeze in self._of.freezes
            if freeze.hits(of)
        )

    def _describe(self, execution: str) -> str:
        of = self._of.executions[execution]
        ended = f"{of.ended:.3f}" if of.ended else "now"
        return f"{of.app} {of.key} ({of.run}, pid {of.pid}, {of.began:.3f} to {ended})"

    def _beside_itself(self) -> Iterator[str]:
        for (app, key), bodies in self._bodies.items():
            for first, second in itertools.pairwise(bodies):
                is_over = first.ended is not None and first.ended <= second.began
                if not is_over and not self._stood_still(first.id, second.began):
                    yield (
                        f"{app}: {key} ran twice at once: {self._describe(first.id)}, "
                        f"{self._describe(second.id)}"
                    )

    def _ran_again(self) -> Iterator[str]:
        """A body that had not failed runs again only because something was killed or stopped."""
        kills = self._of.kills + self._of.stops + self._of.freezes
        for (app, key), bodies in self._bodies.items():
            for first, second in itertools.pairwise(bodies):
                has_failed = first.how not in (None, "done")
                is_provoked = has_failed or self._hit(first, second.began, kills)
                if not is_provoked and not self._stood_still(second.id, second.began):
                    yield f"{app}: {key} ran again after {self._describe(first.id)}, {first.how}"
            failures = sum(body.how == "ValueError" for body in bodies)
            job = self._of.jobs.get((app, key))
            if job and job["task"] == "doomed" and failures < DOOMED_ATTEMPTS:
                yield f"{app}: {key} is {_told(job)} after {failures} attempts"

    @staticmethod
    def _hit(execution: Execution, until: float, kills: list[Kill]) -> bool:
        return any(
            kill.hits(execution)
            and kill.at + SLACK_SECONDS >= execution.began
            and kill.before <= until
            for kill in kills
        )

    def _foreign(self) -> Iterator[str]:
        for execution in self._of.executions.values():
            if execution.owner not in (None, execution.app):
                yield f"{execution.owner}'s {execution.key} was run by {execution.app}"

    # ── money ────────────────────────────────────────────────────────────────────────────────────

    def _by_call(self) -> dict[str, list[Send]]:
        found: dict[str, list[Send]] = defaultdict(list)
        for send in self._of.sends.values():
            found[send.call].append(send)
        return found

    def _in_flight_at_kills(self) -> int:
        """Sends whose answer no body had, when what had sent them was killed."""
        got = {send: at for _, send, at in self._of.got}
        found = set()
        for send in self._of.sends.values():
            by = self._of.executions.get(send.visit or "")
            if by is None or send.how != "served":
                continue
            until = min(got.get(send.id, float("inf")), by.ended or float("inf"))
            if any(k.hits(by) and send.at <= k.at and k.before <= until for k in self._of.kills):
                found.add(send.id)
        return len(found)

    def _bought_twice(self) -> Iterator[str]:
        kills = self._of.kills + self._of.freezes
        got = defaultdict(set)
        for call, send, _ in self._of.got:
            got[call].add(send)
        for call, sends in self._by_call().items():
            if len(got[call]) > 1:
                yield f"{call} was answered by several sends: {sorted(got[call])}"
            for first, second in itertools.pairwise(sends):
                if any(earlier.id in got[call] for earlier in sends if earlier.id < second.id):
                    yield f"{call} was sent again as {second.id} after its answer was delivered"
                elif first.how == "served":
                    by = self._of.executions.get(first.visit or "")
                    if by is None or not self._hit(by, second.at, kills):
                        yield f"{call} was sent again as {second.id}, and nothing was killed"
        yield from self._wrong_idempotency()

    def _wrong_idempotency(self) -> Iterator[str]:
        calls = defaultdict(set)
        for call, sends in self._by_call().items():
            keys = {send.idempotency for send in sends}
            if len(keys) > 1 or None in keys:
                yield f"{call} was sent under the idempotency keys {keys}"
            for key in keys:
                calls[key].add(call)
        for key, names in calls.items():
            if len(names) > 1:
                yield f"the idempotency key {key} stood for {sorted(names)}"

    def _overspent(self) -> Iterator[str]:
        for send in self._of.sends.values():
            budgets = [b for at, app, b in self._of.budgets if app == send.app and at <= send.at]
            allowed = max(budgets, default=0)
            if 0 not in budgets and send.billed > allowed:  # 0: nobody has said one
                yield f"{send.app}: {send.billed} of {allowed} micro-dollars at send {send.id}"

    def _accounts_differ(self) -> Iterator[str]:
        delivered = {send for _, send, _ in self._of.got}
        for app, account in self._of.accounts.items():
            sends = [send for send in self._of.sends.values() if send.app == app]
            spent = sum(send.cost for send in sends if send.id in delivered)
            doubtful = sum(send.cost for send in sends if send.id not in delivered)
            told = {name: _micro(account[f"{name}_usd"]) for name in ("spent", "in_doubt")}
            if told["spent"] != spent:
                yield f"{app}: told {told['spent']} spent, sold {spent} micro-dollars"
            if told["in_doubt"] < doubtful:
                yield f"{app}: told {told['in_doubt']} in doubt, billed {doubtful} undelivered"
            if _micro(account["reserved_usd"]):
                yield f"{app}: {account['reserved_usd']} is reserved, and nothing runs"


def _winner(job: Job) -> str | None:
    """The execution whose end a job has."""
    result = job["result"]
    return str(result["execution"]) if result else None


def _told(job: Job | None) -> str:
    if job is None:
        return "not there"
    error = job["error"] or {}
    return " ".join(map(str, filter(None, (job["state"], _winner(job), error.get("message")))))


def _micro(usd: str) -> int:
    return int(Decimal(usd) * 1_000_000)


def sentences(harm: dict[str, list[str]], most: int = 5) -> Iterable[str]:
    """What to print of what was found."""
    for kind, cases in harm.items():
        for case in cases[:most]:
            yield f"  {kind}: {case}"
        if len(cases) > most:
            yield f"  {kind}: and {len(cases) - most} more"

# SPDX-License-Identifier: Apache-2.0
"""The integrator of waiting time of one worker: what limits it, and how long tasks wait at gates.

At each instant exactly one cause limits a worker. Time is charged when something changes, to what
held until then; so all charges together are the time that has passed. A worker is as its last turn
left it (`turned`). Where that depends on what the running attempts do, each of them is in its own
code, waits for a reply, or waits for a permit, and those in the same place have equal parts of the
time. Every change costs O(1): parts are counted by a clock that runs slower the more share the
time. The tasks that wait at gates meanwhile are counted from turn to turn, by the same clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from penstock.admission.requests.decisions import RequestAdmissionLease
from penstock.admission.tasks.decisions import TaskAdmissionLease
from penstock.admission.tasks.queue import BlockedLine
from penstock.model.provider import ANY, ProviderModelKey
from penstock.model.request import RequestAdmissionItem, RequestReleaseOutcome
from penstock.model.run import CAUSES_SHOWN, ActivityTime, CauseTime, GateSeconds, LimitKind
from penstock.model.task import SchedulerResourceRequest

GATES_MAX = 256  # kept apart; what comes beyond is counted under "other"
MODELS_KEPT = 8_192  # whose reasons are known; beyond, all are forgotten
CAUSES_MAX = 1_000  # kept apart; what comes beyond is charged to `other` of its kind
HELD_MAX = 1_024  # requests whose use is kept apart; beyond, equal ones are counted together
OTHER = "other"

Ref = tuple[int, int]  # an attempt: its job and its token


class Cause(NamedTuple):
    """What limits a worker as a turn has left it.

    With `gate`, whatever keeps requests to that provider back. With `by_holders`, the cause holds
    unless most of those that run use models whose permits are waited for: then what the waiting
    ones wait for, since more of them at once would only wait with them.
    """

    kind: LimitKind | None  # None: what those do that run
    where: str = ""
    level: float | None = None
    by_holders: bool = False
    gate: ProviderModelKey | None = None  # its model may be `*`


class RequestLimit(NamedTuple):
    """The limit that holds requests to a model back."""

    kind: LimitKind
    level: float | None  # where the limit stands


class _Charged:
    __slots__ = ("level_seconds", "levelled", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.levelled = 0.0  # of these: with a level
        self.level_seconds = 0.0

    def add(self, seconds: float, level: float | None) -> None:
        self.seconds += seconds
        if level is not None:
            self.levelled += seconds
            self.level_seconds += seconds * level


class _Place:
    """Attempts that do the same: wait for one model's reply, or for its permit."""

    __slots__ = ("clock", "count", "key", "waits", "wall")

    def __init__(self, key: ProviderModelKey, waits: bool) -> None:
        self.key = key
        self.waits = waits
        self.count = 0
        self.clock = 0.0  # up to which its parts of the time are charged
        self.wall = 0.0  # monotonic: up to which its attempts' time is counted


class _Attempt:
    """What the requests of one attempt do; waiting for a permit comes before all else."""

    __slots__ = ("flying", "place", "replies_of", "waiting", "waits_for")

    def __init__(self) -> None:
        self.waiting = 0
        self.flying = 0
        self.waits_for: ProviderModelKey | None = None
        self.replies_of: ProviderModelKey | None = None
        self.place: _Place | None = None


class _Held(msgspec.Struct):
    """For how long some resources were held; it keeps the request, so that its identity stays."""

    request: SchedulerResourceRequest
    seconds: float = 0.0


class Bottleneck:
    """Owns the integrals of one worker. Belongs to one loop; a listener of request admission."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._since = self._began = self._gates_since = monotonic()
        self._cause = Cause(LimitKind.STORE)  # until it has a name there
        self._running = 0
        self._blocked: dict[str, int] = {}  # gate → tasks that wait there
        self._gates: dict[str, list[float]] = {}  # gate → seconds, task seconds
        #: Of leases that came back, by the identity of what they asked for: hashing it costs more.
        self._held: dict[int, _Held] = {}
        self._charged: dict[tuple[LimitKind, str], _Charged] = {}
        self._doing: dict[tuple[LimitKind, str], float] = {}
        self._running_seconds = 0.0  # summed over attempts
        self._shared = 0.0  # time that was given to those that run, in equal parts
        self._taken = 0.0  # of that: by those that wait for something
        self._clock = 0.0  # seconds that each of those got who run
        self._permit_clock = 0.0  # and, besides, each of those who wait for a permit
        self._attempts: dict[Ref, _Attempt] = {}
        self._places: dict[tuple[ProviderModelKey, bool], _Place] = {}
        self._lines: dict[str, dict[_Place, None]] = {}  # provider → where permits are waited for
        self._waiting = 0  # attempts that wait for a permit
        self._outside = 0  # and those that wait for a reply
        self._pressed = 0  # of these: a reply of a model for which others wait for a permit
        self._limits: dict[ProviderModelKey, RequestLimit] = {}
        self._limited_last: dict[str, ProviderModelKey] = {}  # provider → model

    def __repr__(self) -> str:
        return f"<Bottleneck {self._cause.kind or 'shared'} {self._cause.where}>"

    # ── What the worker says ──────────────────────────────────────────────────────────────────

    def turned(self, running: int, cause: Cause, blocked: Iterable[BlockedLine]) -> None:
        """A turn has ended: what limits the worker from now on, and which tasks wait at gates."""
        self._charge()
        self._settle_gates()
        self._running = running
        self._cause = cause
        found: dict[str, int] = {}
        for line in blocked:  # several may wait for the same
            name = self._kept(_gate_of(line))
            found[name] = found.get(name, 0) + line.tasks
        self._blocked = found

    def came_back(self, lease: TaskAdmissionLease) -> None:
        """The resources of a task are free again."""
        request = lease.item.resource_request
        held = self._held.get(id(request))
        if held is None:
            if len(self._held) >= HELD_MAX:
                self._merge_held()
            held = self._held[id(request)] = _Held(request)
        held.seconds += self._monotonic() - lease.acquired_at

    def _merge_held(self) -> None:
        """Keep one request of those that ask for the same."""
        merged: dict[SchedulerResourceRequest, _Held] = {}
        for one in self._held.values():
            merged.setdefault(one.request, _Held(one.request)).seconds += one.seconds
        self._held = {id(one.request): one for one in merged.values()}

    def began(self, ref: Ref) -> None:
        """An attempt begins whose requests are to be heard of."""
        self._attempts[ref] = _Attempt()

    def left(self, ref: Ref) -> None:
        """An attempt has ended or was detached; safe to repeat."""
        attempt = self._attempts.pop(ref, None)
        if attempt is not None and attempt.place is not None:
            self._charge()
            self._move(attempt, None)

    # ── What request admission says ───────────────────────────────────────────────────────────

    def queued(self, item: RequestAdmissionItem) -> None:
        attempt = self._attempt_of(item)
        if attempt is not None:
            attempt.waiting += 1
            attempt.waits_for = item.resource.provider_model
            self._place(attempt)

    def dequeued(self, item: RequestAdmissionItem) -> None:
        attempt = self._attempt_of(item)
        if attempt is not None and attempt.waiting:
            attempt.waiting -= 1
            self._place(attempt)

    def granted(self, lease: RequestAdmissionLease) -> None:
        attempt = self._attempt_of(lease.item)
        if attempt is not None:
            attempt.flying += 1
            attempt.replies_of = lease.item.resource.provider_model
            self._place(attempt)

    def released(
        self, lease: RequestAdmissionLease, outcome: RequestReleaseOutcome, now: float
    ) -> None:
        attempt = self._attempt_of(lease.item)
        if attempt is not None and attempt.flying:
            attempt.flying -= 1
            self._place(attempt)

    def held_back(self, model: ProviderModelKey, kind: LimitKind, level: float | None) -> None:
        limit = RequestLimit(kind, level)
        last = self._limited_last.get(model.provider)
        if self._limits.get(model) == limit and last == model:
            return
        self._charge()
        for place in self._lines.get(model.provider, ()):
            self._settle(place)
        if len(self._limits) >= MODELS_KEPT:
            self._limits.clear()
        self._limits[model] = limit
        self._limited_last[model.provider] = model

    def _attempt_of(self, item: RequestAdmissionItem) -> _Attempt | None:
        context = item.event_context
        if context is None or context.job_id is None or context.execution is None:
            return None
        return self._attempts.get((context.job_id, context.execution))

    # ── What is asked ─────────────────────────────────────────────────────────────────────────

    def causes(self) -> tuple[CauseTime, ...]:
        """Everything up to now, most time first; a bounded number, and none of it is lost."""
        self._charge()
        for place in self._places.values():
            self._settle(place)
        found = [
            CauseTime(
                kind,
                where,
                charged.seconds,
                charged.level_seconds / charged.levelled if charged.levelled else None,
            )
            for (kind, where), charged in self._charged.items()
        ]
        own = self._shared - self._taken
        if own > 0:
            found.append(CauseTime(LimitKind.OWN_CODE, "", own))
        found.sort(key=lambda cause: -cause.seconds)
        rest = found[CAUSES_SHOWN:]
        if not rest:
            return tuple(found)
        kinds: dict[LimitKind, float] = {}
        for cause in rest:
            kinds[cause.kind] = kinds.get(cause.kind, 0.0) + cause.seconds
        others = (CauseTime(kind, OTHER, seconds) for kind, seconds in kinds.items())
        return (*found[:CAUSES_SHOWN], *others)

    def doing(self) -> tuple[ActivityTime, ...]:
        """What attempts did up to now, in seconds summed over them; most first."""
        self._charge()
        for place in self._places.values():
            self._settle(place)
        found = [
            ActivityTime(kind, where, seconds) for (kind, where), seconds in self._doing.items()
        ]
        own = self._running_seconds - sum(one.seconds for one in found)
        if own > 0:
            found.append(ActivityTime(LimitKind.OWN_CODE, "", own))
        found.sort(key=lambda one: -one.seconds)
        return tuple(found[:CAUSES_SHOWN])

    def gates(self) -> dict[str, GateSeconds]:
        """How long tasks have waited up to now, by "reason resource"; most first."""
        self._charge()
        self._settle_gates()
        longest = sorted(self._gates.items(), key=lambda gate: -gate[1][1])
        return {name: GateSeconds(*times) for name, times in longest if times[1]}

    def used(self, held: Iterable[TaskAdmissionLease]) -> dict[str, float]:
        """Resource → amount × seconds, with the leases that are still held."""
        now = self._monotonic()
        found: dict[str, float] = {}
        times = [(one.request, one.seconds) for one in self._held.values()]
        times += [(lease.item.resource_request, now - lease.acquired_at) for lease in held]
        for request, seconds in times:
            for resource, amount in request.needs:
                found[resource] = found.get(resource, 0.0) + amount * seconds
        return found

    @property
    def seconds(self) -> float:
        """All the time that was charged."""
        return self._since - self._began

    # ── Charging ──────────────────────────────────────────────────────────────────────────────

    def _charge(self) -> None:
        """What limited the worker until now has done so until now."""
        now = self._monotonic()
        passed = now - self._since
        if passed <= 0:
            return
        self._since = now
        cause, waiting = self._cause, self._waiting
        running = max(self._running, waiting + self._outside)
        self._running_seconds += passed * running
        if cause.kind is None or (
            cause.by_holders and waiting and 2 * (waiting + self._pressed) > running
        ):
            self._shared += passed
            if cause.kind is None:
                self._clock += passed / max(running, 1)
            else:
                self._permit_clock += passed / waiting
        elif cause.gate is None:
            self._book(cause.kind, cause.where, passed, cause.level)
        else:
            limit, where = self._limit_of(cause.gate)
            self._book(limit.kind, where, passed, limit.level)

    def _settle_gates(self) -> None:
        """Those that waited at gates have done so up to the last charge."""
        passed = self._since - self._gates_since
        self._gates_since = self._since
        if passed > 0:
            for name, tasks in self._blocked.items():
                times = self._gates[name]
                times[0] += passed
                times[1] += passed * tasks

    def _kept(self, gate: str) -> str:
        """The name under which the times of a gate are kept."""
        if gate not in self._gates:
            if len(self._gates) >= GATES_MAX:
                gate = OTHER
            self._gates.setdefault(gate, [0.0, 0.0])
        return gate

    def _limit_of(self, model: ProviderModelKey) -> tuple[RequestLimit, str]:
        """What holds requests to a model back, and which model that is."""
        last = self._limited_last.get(model.provider)
        first = (
            (last, model)
            if last is not None and ANY in (last.model, model.model)
            else (model, last)
        )
        for key in first:
            if key is not None and (limit := self._limits.get(key)) is not None:
                return limit, place_name(key)
        return RequestLimit(LimitKind.ADAPTIVE_LIMIT, None), place_name(model)

    def _book(self, kind: LimitKind, where: str, seconds: float, level: float | None) -> None:
        key = (kind, where)
        charged = self._charged.get(key)
        if charged is None:
            if len(self._charged) >= CAUSES_MAX:
                key = (kind, OTHER)
            charged = self._charged.setdefault(key, _Charged())
        charged.add(seconds, level)

    # ── Places ────────────────────────────────────────────────────────────────────────────────

    def _place(self, attempt: _Attempt) -> None:
        """Put an attempt where its requests say; most changes change nothing."""
        key = attempt.waits_for if attempt.waiting else attempt.replies_of
        if not (attempt.waiting or attempt.flying) or key is None:
            place = None
        else:
            waits = attempt.waiting > 0
            place = self._places.get((key, waits)) or self._open(key, waits)
        if place is not attempt.place:
            self._charge()
            self._move(attempt, place)

    def _open(self, key: ProviderModelKey, waits: bool) -> _Place:
        place = self._places[key, waits] = _Place(key, waits)
        if waits:
            self._lines.setdefault(key.provider, {})[place] = None
        return place

    def _close(self, place: _Place) -> None:
        """Remove a place that is empty now."""
        del self._places[place.key, place.waits]
        if place.waits:
            line = self._lines[place.key.provider]
            del line[place]
            if not line:
                del self._lines[place.key.provider]

    def _move(self, attempt: _Attempt, place: _Place | None) -> None:
        for one, by in ((attempt.place, -1), (place, 1)):
            if one is None:
                continue
            self._settle(one)
            self._pressed -= self._pressed_at(one.key)
            one.count += by
            self._pressed += self._pressed_at(one.key)
            if one.waits:
                self._waiting += by
            else:
                self._outside += by
            if not one.count:
                self._close(one)
        attempt.place = place

    def _pressed_at(self, key: ProviderModelKey) -> int:
        """Attempts that wait for a reply of a model while others wait for its permit."""
        line, flying = self._places.get((key, True)), self._places.get((key, False))
        return flying.count if flying is not None and line is not None and line.count else 0

    def _settle(self, place: _Place) -> None:
        """Book what the attempts of a place got since it was last looked at."""
        clock = self._clock + self._permit_clock if place.waits else self._clock
        count, since = place.count, place.wall
        part, place.clock, place.wall = clock - place.clock, clock, self._since
        if not count:
            return
        if place.waits:
            limit, where = self._limit_of(place.key)
        else:
            limit, where = RequestLimit(LimitKind.LATENCY, None), place_name(place.key)
        if part > 0:
            self._taken += part * count
            self._book(limit.kind, where, part * count, limit.level)
        key = (limit.kind, where)
        if key not in self._doing and len(self._doing) >= CAUSES_MAX:
            key = (limit.kind, OTHER)
        self._doing[key] = self._doing.get(key, 0.0) + count * (self._since - since)


def place_name(model: ProviderModelKey) -> str:
    """What people call a model of a provider."""
    return model.provider if model.model == ANY else f"{model.provider}/{model.model}"


def _gate_of(line: BlockedLine) -> str:
    """Reason and resource of a line, in words that do not change."""
    denied = line.denied
    where = denied.resource if denied.resource is not None else denied.item.request_resource_key
    return str(denied.reason) if where is None else f"{denied.reason} {where}"

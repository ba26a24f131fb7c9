# SPDX-License-Identifier: Apache-2.0
"""What limited a run, in percent of its time, and which one change would help most?

Pure: the parts that workers left of a run go in, an explanation comes out.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

import msgspec

from penstock.clock import MICROSECONDS
from penstock.model.job import WorkerId
from penstock.model.run import (
    CauseTime,
    Doing,
    LimitKind,
    ModelFigures,
    RunDocument,
    RunPart,
    read_document,
)
from penstock.model.spending import BudgetStop


class PlaceOfRun(msgspec.Struct, frozen=True):
    """One place, with what those said who had it."""

    documents: tuple[RunDocument, ...]  # the last is that of whoever it belongs to in the end

    @property
    def last(self) -> RunDocument:
        return self.documents[-1]

    @property
    def serving(self) -> tuple[RunDocument, ...]:
        """Without those that ran suspects alone, unless there was nobody else."""
        return tuple(one for one in self.documents if not one.solo) or self.documents

    def models(self) -> list[ModelFigures]:
        """The figures of each model at this place."""
        found: dict[tuple[str, str], list[ModelFigures]] = {}
        for one in (one for document in self.documents for one in document.models):
            found.setdefault((one.provider, one.model), []).append(one)
        return [_succession(same) for same in found.values()]


def read_parts(parts: Iterable[RunPart]) -> list[tuple[RunPart, RunDocument]]:
    """Those parts that this version can read."""
    return [(part, said) for part in parts if (said := read_document(part.document)) is not None]


def places_of(read: Iterable[tuple[RunPart, RunDocument]]) -> tuple[PlaceOfRun, ...]:
    """The places of a run, each with those who had it."""
    found: dict[Hashable, list[RunDocument]] = {}
    for part, document in read:
        key = part.worker if document.place is None else document.place
        found.setdefault(key, []).append(document)
    order = (sorted(said, key=lambda one: (not one.solo, one.told_at)) for said in found.values())
    return tuple(PlaceOfRun(tuple(said)) for said in order)


def name_in(part: RunPart, document: RunDocument) -> WorkerId:
    """Under which name a worker was known when it last told of its run."""
    return WorkerId(document.worker) or part.worker


def _succession(found: Sequence[ModelFigures]) -> ModelFigures:
    """The same model at one place: what was sent is added up, of limits the last counts."""
    ceilings = [one.ceiling for one in found if one.ceiling is not None]
    return msgspec.structs.replace(
        found[-1],
        domains=tuple(sorted({domain for one in found for domain in one.domains})),
        requests=sum(one.requests for one in found),
        refused=sum(one.refused for one in found),
        failed=sum(one.failed for one in found),
        tokens=sum(one.tokens for one in found),
        limit_reached=max(one.limit_reached for one in found),
        in_flight_max=max(one.in_flight_max for one in found),
        waiting_max=max(one.waiting_max for one in found),
        ceiling=ceilings[-1] if ceilings else None,
    )


WHOLE = 100  # percent

OF_PROVIDERS = frozenset(
    {
        LimitKind.ADAPTIVE_LIMIT,
        LimitKind.LEARNED_RATE,
        LimitKind.MAX_PARALLEL,
        LimitKind.RPM,
        LimitKind.TPM,
        LimitKind.COOLDOWN,
        LimitKind.LATENCY,
    }
)


class Share(msgspec.Struct, frozen=True):
    """One thing that limited a run."""

    kind: LimitKind
    where: str
    percent: int  # of the time in which there was something to do
    seconds: float  # summed over the workers
    level: float | None = None  # where the limit stood on average, all workers together


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A run over all its workers."""

    run_id: str
    workers: int
    at_once: int  # who replaces another is not one more
    is_over: bool  # no worker is left
    unheard: int  # workers that are gone without a last word: killed, most likely
    unheard_seconds: float  # what they did in so many seconds before is not known
    over_budget: str | None  # what has ended workers before the work was done, and what to raise
    began_at: int
    told_at: int  # the oldest of the last words of those that still run
    wall_seconds: float
    busy_seconds: float  # summed over workers: in which there was something to do
    idle_seconds: float
    cpu_seconds: float
    late_seconds: float  # their loops came so much later than they were to
    ended: int
    retries: int
    put_back: int  # attempts that a provider refused
    slots: dict[str, int]  # all workers together, by kind
    shares: tuple[Share, ...]  # they add up to 100 percent, or there are none
    doing: tuple[Doing, ...]  # seconds summed over attempts
    models: tuple[ModelFigures, ...]
    running_mean: float  # how many attempts ran at once

    def model(self, where: str) -> ModelFigures | None:
        """The figures of a model, or of all models of a provider as one."""
        found = [one for one in self.models if where in (one.provider, model_name(one))]
        return merged(found) if found else None


class Unreadable(msgspec.Struct, frozen=True):
    """A run of which nothing can be read by this version."""

    run_id: str
    parts: int


def facts_of(
    parts: Sequence[RunPart], *, alive: Collection[WorkerId] | None = None
) -> RunFacts | Unreadable | None:
    """A run from what its workers left; None if they left nothing.

    Args:
        parts: the last words of its workers.
        alive: those of its workers that still answer; None: nobody knows, and those that have not
            said that they end are believed to. Whoever was killed could not say it.
    """
    if not parts:
        return None
    run_id = parts[0].run_id
    read = read_parts(parts)
    if not read:
        return Unreadable(run_id, len(parts))
    documents = [document for _, document in read]
    places = places_of(read)
    at_work = [document for place in places for document in place.serving]
    going_on = [(part, document) for part, document in read if not document.over]
    unheard: list[RunDocument] = []
    if alive is not None:
        unheard = [said for part, said in going_on if name_in(part, said) not in alive]
        going_on = [(part, said) for part, said in going_on if name_in(part, said) in alive]
    began_at = min(document.began_at for document in documents)
    ended_at = max(document.told_at for document in documents)
    shares, busy = shares_of(places)
    running = sum(one.seconds for document in at_work for one in document.doing)
    return RunFacts(
        run_id=run_id,
        workers=len(documents),
        at_once=len(places),
        is_over=not (going_on if alive is None else alive),
        unheard=len(unheard),
        unheard_seconds=max((said.within_seconds for said in unheard), default=0.0),
        over_budget=" ".join(stop.sentence for stop in stops_of(documents)) or None,
        began_at=began_at,
        told_at=min(
            (part.saved_at for part, _ in going_on),
            default=max(part.saved_at for part, _ in read),
        ),
        wall_seconds=max(0, ended_at - began_at) / MICROSECONDS,
        busy_seconds=busy,
        idle_seconds=_seconds(at_work) - busy,
        cpu_seconds=sum(document.cpu_seconds for document in at_work),
        late_seconds=sum(document.late_seconds for document in at_work),
        ended=sum(document.ended for document in documents),
        retries=sum(document.retries for document in documents),
        put_back=sum(document.put_back for document in documents),
        slots=_slots(places),
        shares=shares,
        doing=_doing(documents),
        models=_models(places),
        running_mean=running * len(places) / busy if busy else 0.0,
    )


def stops_of(documents: Iterable[RunDocument]) -> tuple[BudgetStop, ...]:
    """The budgets that have ended a run, as its last worker said: it knew of the others."""
    told = [document for document in documents if document.stops]
    last = max(told, key=lambda document: document.told_at, default=None)
    return () if last is None else last.stops


def shares_of(places: Sequence[PlaceOfRun]) -> tuple[tuple[Share, ...], float]:
    """What limited a run, the most first, and all the seconds in which there was something."""
    only = _only_models(document for place in places for document in place.documents)
    seconds: dict[tuple[LimitKind, str], float] = {}
    levels: dict[tuple[LimitKind, str], float] = {}
    for place in places:
        own = _causes(place, only)
        for key, (spent, levelled, level_seconds) in own.items():
            seconds[key] = seconds.get(key, 0.0) + spent
            if levelled:  # each place has its own part of a limit
                levels[key] = levels.get(key, 0.0) + level_seconds / levelled
    keys = sorted(seconds, key=lambda key: (-seconds[key], key))
    percents = whole_percents([seconds[key] for key in keys])
    shares = tuple(
        Share(*key, percent, seconds[key], levels.get(key))
        for key, percent in zip(keys, percents, strict=True)
    )
    return shares, sum(seconds.values())


def _causes(
    place: PlaceOfRun, only: Mapping[str, str]
) -> dict[tuple[LimitKind, str], tuple[float, float, float]]:
    """Of each cause: its seconds, those with a level, and the level summed over these."""
    found: dict[tuple[LimitKind, str], tuple[float, float, float]] = {}
    for cause in (cause for document in place.serving for cause in document.causes):
        if cause.kind is LimitKind.IDLE or cause.seconds <= 0:
            continue
        where = only.get(cause.where) if cause.kind in OF_PROVIDERS else None
        key = (cause.kind, where or cause.where)
        spent, levelled, level_seconds = found.get(key, (0.0, 0.0, 0.0))
        if cause.level is not None:
            levelled += cause.seconds
            level_seconds += cause.level * cause.seconds
        found[key] = spent + cause.seconds, levelled, level_seconds
    return found


def _only_models(documents: Iterable[RunDocument]) -> dict[str, str]:
    """Providers of which one model was used: what holds for such a provider holds for the model."""
    used: dict[str, set[str]] = {}
    for one in (one for document in documents for one in document.models):
        used.setdefault(one.provider, set()).add(model_name(one))
    return {provider: min(models) for provider, models in used.items() if len(models) == 1}


def whole_percents(parts: Sequence[float]) -> list[int]:
    """Parts as whole percents that add up to 100: the largest remainders are rounded up."""
    whole = sum(parts)
    if not whole > 0:
        return [0] * len(parts)
    exact = [part / whole * WHOLE for part in parts]
    found = [int(value) for value in exact]
    order = sorted(range(len(parts)), key=lambda n: (found[n] - exact[n], n))
    for n in order[: WHOLE - sum(found)]:
        found[n] += 1
    return found


def model_name(one: ModelFigures) -> str:
    return f"{one.provider}/{one.model}"


def merged(found: Sequence[ModelFigures]) -> ModelFigures:
    """Figures of several places, or of several models, as one."""
    first = found[0]
    ceilings = [one.ceiling for one in found if one.ceiling is not None]
    same = all(one.model == first.model for one in found)
    return ModelFigures(
        provider=first.provider,
        model=first.model if same else "*",
        domains=tuple(sorted({domain for one in found for domain in one.domains})),
        requests=sum(one.requests for one in found),
        refused=sum(one.refused for one in found),
        failed=sum(one.failed for one in found),
        tokens=sum(one.tokens for one in found),
        limit=sum(one.limit for one in found),
        limit_max=sum(one.limit_max for one in found),
        limit_reached=sum(one.limit_reached for one in found),
        in_flight_max=sum(one.in_flight_max for one in found),
        waiting_max=sum(one.waiting_max for one in found),
        ceiling=sum(ceilings) if ceilings else None,
        rpm=_sum([one.rpm for one in found]),
        tpm=_sum([one.tpm for one in found]),
        mode=first.mode if same else "",
        rate=_sum([one.rate for one in found]),
    )


def _sum(values: Iterable[float | None]) -> float | None:
    said = [value for value in values if value is not None]
    return sum(said) if said else None


def _seconds(documents: Iterable[RunDocument]) -> float:
    causes: Iterable[CauseTime] = (cause for one in documents for cause in one.causes)
    return sum(cause.seconds for cause in causes)


def _slots(places: Iterable[PlaceOfRun]) -> dict[str, int]:
    found: dict[str, int] = {}
    for kind, count in (slot for place in places for slot in place.last.slots.items()):
        found[kind] = found.get(kind, 0) + count
    return found


def _doing(documents: Iterable[RunDocument]) -> tuple[Doing, ...]:
    found: dict[tuple[LimitKind, str], float] = {}
    for one in (one for document in documents for one in document.doing):
        found[one.kind, one.where] = found.get((one.kind, one.where), 0.0) + one.seconds
    order = sorted(found, key=lambda key: (-found[key], key))
    return tuple(Doing(*key, found[key]) for key in order)


def _models(places: Iterable[PlaceOfRun]) -> tuple[ModelFigures, ...]:
    found: dict[str, list[ModelFigures]] = {}
    for one in (one for place in places for one in place.models()):
        found.setdefault(model_name(one), []).append(one)
    every = [merged(same) for same in found.values()]
    return tuple(sorted(every, key=lambda one: (-one.requests, model_name(one))))

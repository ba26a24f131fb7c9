# SPDX-License-Identifier: Apache-2.0
"""Explains a run: its bottlenecks in percent of its time, and the one change that would help most.

Pure: the records that the workers of a run saved go in, an explanation comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from penstock.clock import MICROSECONDS
from penstock.model.job import WorkerId
from penstock.model.provider import ClosedAccount
from penstock.model.run import (
    ActivityTime,
    CauseTime,
    LimitKind,
    ModelFigures,
    RunDocument,
    RunPart,
    read_document,
)
from penstock.model.spending import BudgetStop
from penstock.observe.phrases import sum_known
from penstock.sentences import command, counted

PROVIDER_LIMITS = frozenset(
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
MOST = 0.5  # of the time
BUSY = 0.8  # of the time: a processor that works as much has no more to give to one loop


class WorkerPlace(msgspec.Struct, frozen=True):
    """One worker's place in a run, with the records of the workers that held it in turn."""

    documents: tuple[RunDocument, ...]  # the last one is of the worker that holds it now

    @property
    def last(self) -> RunDocument:
        return self.documents[-1]

    @property
    def serving(self) -> tuple[RunDocument, ...]:
        """Without workers that ran suspects only, unless there was no other."""
        return tuple(one for one in self.documents if not one.solo) or self.documents

    def models(self) -> list[ModelFigures]:
        """The figures of each model at this place."""
        found: dict[tuple[str, str], list[ModelFigures]] = {}
        for one in (one for document in self.documents for one in document.models):
            found.setdefault((one.provider, one.model), []).append(one)
        return [_merge_successive(same) for same in found.values()]


def readable_parts(parts: Iterable[RunPart]) -> list[tuple[RunPart, RunDocument]]:
    """Decode the records that this version can read."""
    return [(part, said) for part in parts if (said := read_document(part.document)) is not None]


def worker_places(read: Iterable[tuple[RunPart, RunDocument]]) -> tuple[WorkerPlace, ...]:
    """Group the records of a run by the place of their worker."""
    found: dict[Hashable, list[RunDocument]] = {}
    for part, document in read:
        key = part.worker if document.place is None else document.place
        found.setdefault(key, []).append(document)
    order = (sorted(said, key=lambda one: (not one.solo, one.told_at)) for said in found.values())
    return tuple(WorkerPlace(tuple(said)) for said in order)


def _worker_name(part: RunPart, document: RunDocument) -> WorkerId:
    """The id under which a worker last saved its record."""
    return WorkerId(document.worker) or part.worker


class Share(msgspec.Struct, frozen=True):
    """One bottleneck of a run, and its part of the time."""

    kind: LimitKind
    where: str
    percent: int  # of the time in which there was something to do
    seconds: float  # summed over the workers
    level: float | None = None  # where the limit stood on average, all workers together


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A run, summed over all its workers."""

    run_id: str
    workers: int
    at_once: int  # workers at the same time; a replacement is not one more
    is_over: bool  # no worker is left
    unheard: int  # workers that ended without a final record: killed, most likely
    unheard_seconds: float  # how much of their work may be missing
    over_budget: str | None  # the budget that ended workers early, and what to raise
    lacks_price: bool = False  # one of them had money left, and no price to count by
    closed_account: str | None = None  # the account that ended workers early, and what to do
    began_at: int
    told_at: int  # the oldest of the last records of workers that still run
    wall_seconds: float
    busy_seconds: float  # summed over workers: the time in which there was work
    idle_seconds: float
    cpu_seconds: float
    late_seconds: float  # how late their event loops were, in sum
    ended: int
    retries: int
    put_back: int  # attempts that a provider refused
    slots: dict[str, int]  # all workers together, by kind
    shares: tuple[Share, ...]  # they add up to 100 percent, or there are none
    doing: tuple[ActivityTime, ...]  # seconds summed over attempts
    models: tuple[ModelFigures, ...]
    running_mean: float  # how many attempts ran at once

    def model(self, where: str) -> ModelFigures | None:
        """The figures of a model, or of all models of a provider as one."""
        found = [one for one in self.models if where in (one.provider, _model_name(one))]
        return _merge(found) if found else None


class Unreadable(msgspec.Struct, frozen=True):
    """A run whose records were all written by another version."""

    run_id: str
    parts: int


def run_facts(
    parts: Sequence[RunPart], *, alive: Collection[WorkerId] | None = None
) -> RunFacts | Unreadable | None:
    """Sum up a run from the records of its workers; None if there are none.

    Args:
        parts: the last record of each worker.
        alive: its workers that are alive; None: not known, so each without a final record counts
            as alive. A worker that was killed leaves none.
    """
    if not parts:
        return None
    run_id = parts[0].run_id
    read = readable_parts(parts)
    if not read:
        return Unreadable(run_id, len(parts))
    documents = [document for _, document in read]
    places = worker_places(read)
    at_work = [document for place in places for document in place.serving]
    going_on = [(part, document) for part, document in read if not document.over]
    unheard: list[RunDocument] = []
    if alive is not None:
        unheard = [said for part, said in going_on if _worker_name(part, said) not in alive]
        going_on = [(part, said) for part, said in going_on if _worker_name(part, said) in alive]
    began_at = min(document.began_at for document in documents)
    ended_at = max(document.told_at for document in documents)
    shares, busy = _cause_shares(places)
    running = sum(one.seconds for document in at_work for one in document.doing)
    return RunFacts(
        run_id=run_id,
        workers=len(documents),
        at_once=len(places),
        is_over=not (going_on if alive is None else alive),
        unheard=len(unheard),
        unheard_seconds=max((said.within_seconds for said in unheard), default=0.0),
        over_budget=" ".join(stop.sentence for stop in budget_stops(documents)) or None,
        lacks_price=any(stop.refusal.price_is_missing for stop in budget_stops(documents)),
        closed_account=" ".join(one.sentence for one in closed_accounts(documents)) or None,
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


def budget_stops(documents: Iterable[RunDocument]) -> tuple[BudgetStop, ...]:
    """The budgets that ended a run, by the last record that names some."""
    told = [document for document in documents if document.stops]
    last = max(told, key=lambda document: document.told_at, default=None)
    return () if last is None else last.stops


def closed_accounts(documents: Iterable[RunDocument]) -> tuple[ClosedAccount, ...]:
    """The accounts that ended a run, by the last record that names some."""
    told = [document for document in documents if document.closed_accounts]
    last = max(told, key=lambda document: document.told_at, default=None)
    return () if last is None else last.closed_accounts


def _cause_shares(places: Sequence[WorkerPlace]) -> tuple[tuple[Share, ...], float]:
    """The bottlenecks of a run, the largest first, and the seconds of all of them."""
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
    place: WorkerPlace, only: Mapping[str, str]
) -> dict[tuple[LimitKind, str], tuple[float, float, float]]:
    """Of each cause: its seconds, those with a level, and the level summed over these."""
    found: dict[tuple[LimitKind, str], tuple[float, float, float]] = {}
    for cause in (cause for document in place.serving for cause in document.causes):
        if cause.kind is LimitKind.IDLE or cause.seconds <= 0:
            continue
        where = only.get(cause.where) if cause.kind in PROVIDER_LIMITS else None
        key = (cause.kind, where or cause.where)
        spent, levelled, level_seconds = found.get(key, (0.0, 0.0, 0.0))
        if cause.level is not None:
            levelled += cause.seconds
            level_seconds += cause.level * cause.seconds
        found[key] = spent + cause.seconds, levelled, level_seconds
    return found


def _only_models(documents: Iterable[RunDocument]) -> dict[str, str]:
    """Providers with one model in use: a limit of such a provider is one of its model."""
    used: dict[str, set[str]] = {}
    for one in (one for document in documents for one in document.models):
        used.setdefault(one.provider, set()).add(_model_name(one))
    return {provider: min(models) for provider, models in used.items() if len(models) == 1}


def whole_percents(parts: Sequence[float]) -> list[int]:
    """Parts as whole percents that add up to 100: the largest remainders are rounded up."""
    whole = sum(parts)
    if not whole > 0:
        return [0] * len(parts)
    exact = [part / whole * 100 for part in parts]
    found = [int(value) for value in exact]
    order = sorted(range(len(parts)), key=lambda n: (found[n] - exact[n], n))
    for n in order[: 100 - sum(found)]:
        found[n] += 1
    return found


def _model_name(one: ModelFigures) -> str:
    return f"{one.provider}/{one.model}"


def _merge_successive(found: Sequence[ModelFigures]) -> ModelFigures:
    """Figures of successive workers at one place: counts add up, of limits the last one holds."""
    ceilings = [one.ceiling for one in found if one.ceiling is not None]
    maxima = ("limit_reached", "in_flight_max", "waiting_max")
    return msgspec.structs.replace(
        found[-1],
        **_counts(found),
        **{name: max(getattr(one, name) for one in found) for name in maxima},
        ceiling=ceilings[-1] if ceilings else None,
    )


def _merge(found: Sequence[ModelFigures]) -> ModelFigures:
    """Figures of several places, or of several models, as one: limits add up, too."""
    first = found[0]
    same = all(one.model == first.model for one in found)
    added = ("limit", "limit_max", "limit_reached", "in_flight_max", "waiting_max")
    optional = ("ceiling", "rpm", "tpm", "rate")
    return msgspec.structs.replace(
        first,
        model=first.model if same else "*",
        mode=first.mode if same else "",
        **_counts(found),
        **{name: sum(getattr(one, name) for one in found) for name in added},
        **{name: sum_known(getattr(one, name) for one in found) for name in optional},
    )


def _counts(found: Sequence[ModelFigures]) -> dict[str, object]:
    names = ("requests", "refused", "failed", "tokens")
    return {
        "domains": tuple(sorted({domain for one in found for domain in one.domains})),
        **{name: sum(getattr(one, name) for one in found) for name in names},
    }


def _seconds(documents: Iterable[RunDocument]) -> float:
    causes: Iterable[CauseTime] = (cause for one in documents for cause in one.causes)
    return sum(cause.seconds for cause in causes)


def _slots(places: Iterable[WorkerPlace]) -> dict[str, int]:
    found: dict[str, int] = {}
    for kind, count in (slot for place in places for slot in place.last.slots.items()):
        found[kind] = found.get(kind, 0) + count
    return found


def _doing(documents: Iterable[RunDocument]) -> tuple[ActivityTime, ...]:
    found: dict[tuple[LimitKind, str], float] = {}
    for one in (one for document in documents for one in document.doing):
        found[one.kind, one.where] = found.get((one.kind, one.where), 0.0) + one.seconds
    order = sorted(found, key=lambda key: (-found[key], key))
    return tuple(ActivityTime(*key, found[key]) for key in order)


def _models(places: Iterable[WorkerPlace]) -> tuple[ModelFigures, ...]:
    found: dict[str, list[ModelFigures]] = {}
    for one in (one for place in places for one in place.models()):
        found.setdefault(_model_name(one), []).append(one)
    every = [_merge(same) for same in found.values()]
    return tuple(sorted(every, key=lambda one: (-one.requests, _model_name(one))))


class Advice(msgspec.Struct, frozen=True):
    """What limited a run most, and the one change that would help."""

    sentence: str
    change: str


def cause_name(share: Share, facts: RunFacts) -> str:
    """The short name of a bottleneck."""
    return _CAUSES[share.kind].name.format(_where(share, facts))


def advise(facts: RunFacts) -> Advice | None:
    """The main bottleneck, and the one change that would help most; None if there was none."""
    if not facts.shares:
        return None
    share = facts.shares[0]
    if share.kind is LimitKind.STORE and not (facts.ended or facts.doing):
        return None  # it started, found no work, and ended
    if mostly_idle(facts):  # then its part of the whole run says more than of the busy time
        whole = facts.busy_seconds + facts.idle_seconds
        share = msgspec.structs.replace(share, percent=round(100 * share.seconds / whole))
    return Advice(*_CAUSES[share.kind].advise(share, facts))


def mostly_idle(facts: RunFacts) -> bool:
    """Whether there was nothing to do most of the time, as for a daemon between its ticks."""
    return facts.idle_seconds > MOST * (facts.busy_seconds + facts.idle_seconds)


def _during(share: Share) -> str:
    return f"for {share.percent}% of the run"


def _where(share: Share, facts: RunFacts) -> str:
    """A model with its domain, if it has only one."""
    model = facts.model(share.where)
    if model is None or len(model.domains) != 1 or model.domains == ("http",):
        return share.where
    return f"{share.where} {model.domains[0]}"


def _number(value: float | None) -> str:
    if value is None:
        return "?"
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def _model(share: Share, facts: RunFacts) -> ModelFigures:
    provider, _, model = share.where.partition("/")
    return facts.model(share.where) or ModelFigures(provider=provider, model=model or "*")


def _ask(model: ModelFigures, more: str) -> str:
    """What helps where the provider is the limit: a plain service sells nothing else."""
    if model.tokens:
        return f"Ask {model.provider} for {more}, or send part of the work to another model"
    return f"Make fewer requests, or ask whoever runs {model.provider} for {more}"


def _tokens_each(model: ModelFigures) -> str:
    if not (model.tokens and model.requests):
        return ""
    return f": {_number(model.tokens / model.requests)} tokens each now"


def _refusals(model: ModelFigures) -> str:
    return f"{model.refused:,} of {counted(model.requests, 'request')}"


# ── One of each kind: the sentence, and the change ────────────────────────────────────────────


def _slots_advice(share: Share, facts: RunFacts) -> tuple[str, str]:
    count, setting = facts.slots.get(share.where, 0), f"runtime.{share.where}_slots"
    sentence = (
        f"All {counted(count, f'{share.where} slot')} were taken {_during(share)}, while other "
        "jobs were ready."
    )
    each = count // max(facts.at_once, 1)
    spent = sum(one.seconds for one in facts.doing)
    own = sum(one.seconds for one in facts.doing if one.kind is LimitKind.OWN_CODE)
    if spent and own < MOST * spent:
        return sentence, (
            f"Raise {setting} from {each:,}: jobs in a slot waited for replies "
            f"{1 - own / spent:.0%} of the time, which costs no CPU."
        )
    if share.where == "process":
        return sentence, (
            f"Give it more cores, and raise {setting} from {each:,} to as many: the tasks' own "
            "code took all the time."
        )
    return sentence, _event_loop_advice(facts) or (
        f"Raise {setting} from {each:,}: the tasks' own code took the time, and the processor had "
        f"{_idle_cpu(facts)} to spare."
    )


def _event_loop_advice(facts: RunFacts) -> str | None:
    """The change to make if the event loops themselves were saturated or blocked."""
    stored = sum(one.seconds for one in facts.shares if one.kind is LimitKind.STORE)
    whole = facts.busy_seconds - stored
    if not whole > 0:
        return None
    cpu, late = facts.cpu_seconds / whole, facts.late_seconds / whole
    if cpu >= BUSY:
        return (
            f"Add worker processes (--processes {2 * facts.at_once}): each kept "
            f"a processor busy {min(cpu, 1.0):.0%} of the time, and more slots would not help."
        )
    if late >= MOST:
        return (
            f"Do not block the event loop, which did not respond {min(late, 1.0):.0%} of the time: "
            "use await, or write the task as `def`, which runs in a thread."
        )
    return None


def _idle_cpu(facts: RunFacts) -> str:
    whole = facts.busy_seconds + facts.idle_seconds
    return f"{max(0.0, 1 - facts.cpu_seconds / whole) if whole else 1.0:.0%}"


def _fair_order_advice(share: Share, facts: RunFacts) -> tuple[str, str]:
    return (
        f"Groups that had used their share waited for other groups {_during(share)}.",
        "Give the groups that matter a larger weight, or spread the waiting jobs over more groups.",
    )


def _keyed_advice(share: Share, facts: RunFacts) -> tuple[str, str]:
    level = 0 if share.level is None else round(share.level / max(facts.at_once, 1))
    return (
        f"The limit {share.where!r} of {level:,} was full {_during(share)}, while slots were free.",
        f"Raise it if what it protects can take more: "
        f"{command('queue', 'limit', share.where, str(2 * max(level, 1)))}",
    )


def _adaptive_advice(share: Share, facts: RunFacts) -> tuple[str, str]:
    model = _model(share, facts)
    where, level = _where(share, facts), f"{round(model.limit or share.level or 0):,}"
    sentence = f"{where} sat at its adaptive limit of {level} {_during(share)}"
    if not model.refused:
        return (
            f"{sentence}, and was never refused.",
            f"Let it run longer: the limit had grown to {model.limit_reached:,} and had not yet "
            "found the provider's own; the next run starts from there.",
        )
    at = "" if model.ceiling is None else f" at {round(model.ceiling) + 1:,}"
    learned = level if model.ceiling is None else f"{round(model.ceiling):,}"
    return (
        f"{sentence}; the provider answered 429{at} ({_refusals(model)}).",
        f"{_ask(model, f'a higher limit than {learned} at once')}: more slots or workers would "
        "not help.",
    )


def _rate_advice(share: Share, facts: RunFacts) -> tuple[str, str]:
    model = _model(share, facts)
    rate = "" if model.rate is None else f" of {model.rate:.3g} a second"
    return (
        f"{_where(share, facts)} was kept to its learned rate{rate} {_during(share)}; the provider "
        f"refused {_refusals(model)}.",
        f"{_ask(model, 'a higher rate')}: more slots or workers would not help.",
    )


def _max_parallel_advice(share: Share, facts: RunFacts) -> tuple[str, str]:
    model = _model(share, facts)
    level = _number(share.level or model.limit_max)
    return (
        f"{_where(share, facts)} had as many requests in flight as its max_parallel of {level} "
        f"allows {_during(share)}.",
        f"Raise providers.{model.provider}.max_parallel from {level}: the provider refused "
        f"{_refusals(model)}.",
    )


def _per_minute_advice(share: Share, facts: RunFacts) -> tuple[str, str]:
    model, name, level = _model(share, facts), share.kind.value, _number(share.level)
    counts_requests = share.kind is LimitKind.RPM
    return (
        f"{_where(share, facts)} had used up its {level} "
        f"{'requests' if counts_requests else 'tokens'} a minute ({name}) {_during(share)}.",
        f"Raise providers.{model.provider}.{name} from {level} if your account allows more, or "
        f"make {'fewer' if counts_requests else 'smaller'} requests{_tokens_each(model)}.",
    )


def _cooldown_advice(share: Share, facts: RunFacts) -> tuple[str, str]:
    model = _model(share, facts)
    is_failing = model.failed > model.refused
    count, what = (model.failed, "errored") if is_failing else (model.refused, "were refused")
    return (
        f"{_where(share, facts)} was in a cool-down {_during(share)}; {count:,} of "
        f"{counted(model.requests, 'request')} {what}.",
        f"Find out what is wrong with {model.provider}, or send the work elsewhere."
        if is_failing
        else f"Set providers.{model.provider}.rpm or max_parallel below what {model.provider} "
        "grants you, so that it does not refuse requests and cause a pause.",
    )


def _budget_advice(share: Share, facts: RunFacts) -> tuple[str, str]:
    return (
        f"{share.where} was used up {_during(share)}.",
        f"Raise {share.where} in penstock.toml, or wait for its next period.",
    )


def _latency_advice(share: Share, facts: RunFacts) -> tuple[str, str]:
    model, key = _model(share, facts), (LimitKind.LATENCY, share.where)
    seconds = sum(one.seconds for one in facts.doing if (one.kind, one.where) == key)
    each = f"{seconds / model.requests:.3g} s each" if model.requests else "long"
    return (
        f"Jobs waited for replies of {_where(share, facts)} {_during(share)}; these took {each}, "
        "and nothing else was ready.",
        f"Have more in flight at once: at most {model.in_flight_max:,} of {model.limit_max:,} were "
        f"used; split long jobs{', or choose a faster model' if model.tokens else ''}.",
    )


def _own_code_advice(share: Share, facts: RunFacts) -> tuple[str, str]:
    return (
        f"The tasks' own code ran {_during(share)}, {_mean(facts.running_mean)} at once, and "
        "nothing else was ready.",
        _event_loop_advice(facts)
        or f"Make the tasks' code faster, or split it into more jobs: {_free(facts)} were free.",
    )


def _dependencies_advice(share: Share, facts: RunFacts) -> tuple[str, str]:
    return (
        f"Jobs waited for other jobs {_during(share)}, while {_mean(facts.running_mean)} ran at "
        f"once and {_free(facts)} were free.",
        "Let jobs depend only on those whose results they need (`after`; in a build `--eager`), "
        "or make those on the longest chain faster: more slots or workers would not help.",
    )


def _mean(count: float) -> str:
    """A mean in two digits, or in whole numbers."""
    return f"{count:.2g}" if count < 10 else f"{count:,.0f}"


def _free(facts: RunFacts) -> str:
    slots = sum(facts.slots.values())
    return f"{max(0, slots - round(facts.running_mean)):,} of {counted(slots, 'slot')}"


def _delays_advice(share: Share, facts: RunFacts) -> tuple[str, str]:
    count = facts.put_back
    refused = f", and {count:,} {'was' if count == 1 else 'were'} refused" if count else ""
    return (
        f"The remaining jobs were delayed or waiting for a retry {_during(share)}; "
        f"{counted(facts.retries, 'attempt')} had ended in an error{refused}.",
        f"Look at their errors ({command('queue', 'list', '--state', 'queued')}), or enqueue with "
        "less delay.",
    )


def _elsewhere_advice(share: Share, facts: RunFacts) -> tuple[str, str]:
    return (
        f"Other workers held the remaining jobs {_during(share)}.",
        "Split the longest jobs: some workers had nothing to do while others finished theirs.",
    )


def _suspects_advice(share: Share, facts: RunFacts) -> tuple[str, str]:
    return (
        f"Jobs that ran when a worker died were run again in quarantine, apart from all others, "
        f"{_during(share)}.",
        "Find out what killed the worker (the log names the signal; memory is the usual cause): "
        "without a crash nothing is in quarantine.",
    )


def _lost_advice(share: Share, facts: RunFacts) -> tuple[str, str]:
    return (
        f"Dead workers held the remaining jobs {_during(share)}: nobody else could take them "
        "before their leases ended.",
        "Stop a run with Ctrl-C or SIGTERM, which gives its jobs back at once; "
        "runtime.lease_ttl_seconds is how long the jobs of a dead machine wait.",
    )


def _paused_advice(share: Share, facts: RunFacts) -> tuple[str, str]:
    return (f"The queue was paused {_during(share)}.", command("queue", "resume"))


def _store_advice(share: Share, facts: RunFacts) -> tuple[str, str]:
    rate = facts.ended / facts.wall_seconds if facts.wall_seconds else 0.0
    shown = f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"
    return (
        f"Workers waited for the store {_during(share)}, at {shown} jobs a second.",
        "Do more in each job, or give the store a faster disk; with many workers a PostgreSQL "
        "server handles more than a file does.",
    )


def _idle_advice(share: Share, facts: RunFacts) -> tuple[str, str]:
    return ("There was nothing to do.", "Enqueue more work.")


class _Cause(NamedTuple):
    name: str  # with a place for the slots, the limit or the model
    advise: Callable[[Share, RunFacts], tuple[str, str]]


_CAUSES = {
    LimitKind.SLOTS: _Cause("{} slots", _slots_advice),
    LimitKind.FAIR_ORDER: _Cause("fair order", _fair_order_advice),
    LimitKind.KEYED_LIMIT: _Cause("limit {}", _keyed_advice),
    LimitKind.ADAPTIVE_LIMIT: _Cause("{}: adaptive limit", _adaptive_advice),
    LimitKind.LEARNED_RATE: _Cause("{}: learned rate", _rate_advice),
    LimitKind.MAX_PARALLEL: _Cause("{}: max_parallel", _max_parallel_advice),
    LimitKind.RPM: _Cause("{}: rpm", _per_minute_advice),
    LimitKind.TPM: _Cause("{}: tpm", _per_minute_advice),
    LimitKind.COOLDOWN: _Cause("{}: cool-down", _cooldown_advice),
    LimitKind.BUDGET: _Cause("budget {}", _budget_advice),
    LimitKind.LATENCY: _Cause("{}: replies", _latency_advice),
    LimitKind.OWN_CODE: _Cause("the tasks' own code", _own_code_advice),
    LimitKind.DEPENDENCIES: _Cause("dependencies", _dependencies_advice),
    LimitKind.DELAYS: _Cause("delays and retries", _delays_advice),
    LimitKind.ELSEWHERE: _Cause("jobs held by other workers", _elsewhere_advice),
    LimitKind.SUSPECTS: _Cause("jobs in quarantine after a crash", _suspects_advice),
    LimitKind.LOST: _Cause("jobs held by dead workers", _lost_advice),
    LimitKind.PAUSED: _Cause("the queue was paused", _paused_advice),
    LimitKind.STORE: _Cause("the store", _store_advice),
    LimitKind.IDLE: _Cause("nothing to do", _idle_advice),
}


def format_unheard(facts: RunFacts) -> str | None:
    """Workers that were killed, most likely, and how much of their work is not counted."""
    if not facts.unheard:
        return None
    whose = "its" if facts.unheard == 1 else "their"
    return (
        f"{counted(facts.unheard, 'worker')} ended without a final report, killed most likely: up "
        f"to the last {max(facts.unheard_seconds, 1):,.0f} s of {whose} work are not counted here."
    )


def run_state(facts: RunFacts) -> str:
    """How a run that is over has ended."""
    return "ended without a final report" if facts.unheard == facts.workers else "over"

# SPDX-License-Identifier: Apache-2.0
"""`penstock why`: explains why a job, a unit of a schedule or a slice is not done."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from difflib import get_close_matches
from typing import Annotated

import typer
from msgspec.structs import replace

from penstock.app.app import Penstock
from penstock.app.build import current_request, kept_datasets
from penstock.cli.app_inspect import outline_of, probe_app
from penstock.cli.completion import closest_names, complete_key, known_keys, nearest_keys
from penstock.cli.target import AppOption, JsonOption, StoreOption, Target, only_utf8
from penstock.clock import MICROSECONDS, SystemClock, to_micros
from penstock.config.budgets import budgets_of
from penstock.config.find_app import DEFAULT_FILE
from penstock.definitions.dataset import Dataset
from penstock.errors import PenstockError, UsageError
from penstock.model.dataset import Calendar, DatasetSpec, moment_name, slice_name, utc_text
from penstock.model.job import SCHEDULE, Job, JobKind, kind_of_key
from penstock.model.plan import BuildPlan, BuildRequest
from penstock.model.schedule import UnitView
from penstock.observe.phrases import at
from penstock.observe.why.facts import Explanation, Gate, JobFacts, Limit
from penstock.observe.why.gather import gather_facts
from penstock.observe.why.job import explain
from penstock.observe.why.schedule import PAGE, explain_unit, failed_start, never_armed, unit_facts
from penstock.observe.why.slice import (
    SliceLookups,
    WantedSlice,
    explain_slice,
    no_slice,
    several_slices,
    slice_facts,
)
from penstock.planning.calendars.timestamps import find_slice, parse_moment
from penstock.planning.graph import closure
from penstock.planning.needs import CalendarReader, needed_moments, spacing
from penstock.planning.timing import parse_timing
from penstock.process_identity import is_gone
from penstock.sentences import command
from penstock.stores.protocol import SliceRange, Store
from penstock.terminal_text import escaped, format_duration, iso_time, print_document, say

SECOND = 1_000_000  # microseconds
DAY = 86_400_000_000  # microseconds
AHEAD_MAX = 400 * DAY  # how far the next slice of a calendar is looked for
FIRST_SHOWN = 1_000  # slices that are named as to be built before
UNITS_COMPARED = 20_000
#: What a time says about a gate; that of another job is in the sentence about it.
WHEN = {
    Gate.NOT_DUE: "at",
    Gate.RUNNING: "by",
    Gate.SILENT: "at",
    Gate.DETACHED: "by",
    Gate.SLOTS: "about",
    Gate.FAIR_SHARE: "about",
    Gate.COOLDOWN: "about",
    Gate.POLICY: "about",
    Gate.OVERLAPPING: "by",
    Gate.DEGRADED: "at",
    Gate.OTHERS: "at",
    Gate.PREFLIGHT: "at",
    Gate.FUTURE: "at",
}


def why_slice(target: Target, key: str) -> Explanation | None:
    """Explain a slice; None if a job has that key.

    The app is imported, since its calendars say which slices there are.

    Raises:
        UsageError: the dataset is unknown, or what follows is no time.
    """
    name, _, text = key.partition("@")
    with target.app_for_reading() as app:
        if app.store.job(key).result() is not None:
            return None
        dataset = app.registry.find_dataset(name)
        app.registry.check_datasets()
        now = to_micros(SystemClock().now())
        found = find_slice(dataset.calendar, text)
        if not found:
            near = _nearest_slices(dataset, parse_moment(text, dataset.calendar, now))
            return no_slice(key, dataset.calendar.text, near)
        if len(found) > 1:
            names = [slice_name(name, at, dataset.calendar) for at in found[:3]]
            return several_slices(key, names, len(found))
        wanted = _wanted(app, dataset.spec, found[0], now)
        looks = SliceLookups(
            job=_asker(target, app), keys=_keys(target, app), named=_named(app), gone=is_gone
        )
        return explain_slice(slice_facts(app.store, wanted, looks, now))


def _nearest_slices(dataset: Dataset[..., object], at: int) -> list[str]:
    """The slices before and after a moment that has none."""
    calendar = dataset.calendar
    moments = [*calendar.before(at, 1), *_next(calendar, at)]
    return [slice_name(dataset.name, one, calendar) for one in moments]


def _next(calendar: Calendar, at: int) -> list[int]:
    reach = min(spacing(calendar, at), DAY)
    while reach <= AHEAD_MAX:
        found = calendar.between(at, at + reach)
        if found:
            return [found[0]]
        reach *= 4
    return []


def _wanted(app: Penstock, spec: DatasetSpec, at: int, now: int) -> WantedSlice:
    """A slice, what it is made of, and what a build of it would have to build before."""
    named = _named(app)
    name = named(spec.name, at)
    specs = app.registry.dataset_specs
    needed: list[SliceRange] = []
    first: list[str] = []
    count, impossible = 0, None
    request = BuildRequest(targets=(spec.name,), ranges=((at, at + 1),), yes=True)
    try:
        for need in spec.needs:
            up = specs[need.dataset]
            moments = needed_moments(spec, [at], need, up, CalendarReader())
            if moments:
                needed.append(SliceRange(up.name, moments[0], moments[-1]))
        plan = app.plan_request(request, max(now, at))
        first, count = _to_build(plan, spec.name, at, named)
    except UsageError as error:
        impossible = str(error)
    return WantedSlice(
        dataset=spec.name,
        at=at,
        name=name,
        version=spec.version,
        batch=spec.batch,
        needed=tuple(needed),
        first=tuple(first),
        first_count=count,
        impossible=impossible,
        command=_command(spec, at),
        kept_by=None if impossible else _keeper(app, spec.name, at, now),
    )


def _keeper(app: Penstock, dataset: str, at: int, now: int) -> str | None:
    """The schedule whose next tick builds a slice; None: none does."""
    for unit, keeps in kept_datasets(app.registry).items():
        if dataset in closure(app.registry.dataset_specs, keeps.targets):
            plan = app.plan_request(current_request(app.datasets, keeps, now), now)
            jobs = (job for level in plan.levels for job in level if job.dataset == dataset)
            if any(at in job.timestamps for job in jobs):
                return unit
    return None


def _to_build(
    plan: BuildPlan, dataset: str, at: int, named: Callable[[str, int], str]
) -> tuple[list[str], int]:
    """Slices that a plan would build besides one, in the order of its levels."""
    others = [
        (job.dataset, moment)
        for level in plan.levels
        for job in level
        for moment in job.timestamps
        if (job.dataset, moment) != (dataset, at)
    ]
    return [named(*one) for one in others[:FIRST_SHOWN]], len(others)


def _command(spec: DatasetSpec, at: int) -> str:
    """What builds one slice: its day if that has no other, else its moment."""
    start = moment_name(at, spec.calendar)
    if spec.calendar.daily:
        end = (date.fromisoformat(start) + timedelta(days=1)).isoformat()
    else:
        end = utc_text(at + min(spacing(spec.calendar, at), SECOND))
    return command("build", spec.name, "--from", start, "--to", end)


def _named(app: Penstock) -> Callable[[str, int], str]:
    return lambda dataset, at: slice_name(dataset, at, app.datasets[dataset].calendar)


def _asker(target: Target, app: Penstock) -> Callable[[str], JobFacts | None]:
    configured = target.configured()
    caps = configured.settings.caps()
    budgets = budgets_of(configured.settings, configured.sources)
    return lambda key: gather_facts(app.store, key, caps, SystemClock(), budgets)


def _keys(target: Target, app: Penstock) -> Callable[[str, int], list[str]]:
    url = app.store_url(app.load(target.flags, folder=target.folder))

    def keys(start: str, limit: int) -> list[str]:
        try:
            return known_keys(url, start, limit, folder=target.folder)
        except (PenstockError, TimeoutError):
            return []

    return keys


def why(
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY",
            help="The job's key, a unit of a schedule (schedule:NAME:PARTITION), or a slice "
            "(NAME@TIME).",
            autocompletion=complete_key,
            callback=only_utf8,
        ),
    ],
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say why a job, schedule or slice is not done, what lets it go on, and which command would."""
    target = Target.named(app=app, store=store)
    kind = kind_of_key(key)
    found = why_slice(target, key) if kind is JobKind.SLICE else None
    if found is not None:
        _tell(found, round(SystemClock().now() * MICROSECONDS), as_json=as_json)
        return
    configured = target.configured()
    with target.opened_store() as opened:
        target.mean(opened, key)
        budgets = budgets_of(configured.settings, configured.sources)
        facts = gather_facts(opened, key, configured.settings.caps(), SystemClock(), budgets)
        found = _never_armed(target, opened, key) if facts is None else _explained(opened, facts)
        url = opened.url
        if found is None and kind is JobKind.TICK:
            raise PenstockError(
                f"No unit of a schedule has the name {key!r} in the store {url}"
                f"{_nearest_unit(opened, key)}. Correct the name, or name another store with "
                f"--store; '{command('run')}' arms what is new once its preflights have passed."
            )
    if found is None and kind is JobKind.PREFLIGHT:
        raise PenstockError(
            f"{key!r} is a check, not a job: it runs when a daemon starts; "
            f"'{command('run', '--check')}' "
            "runs it now and prints its result."
        )
    if found is None:
        dataset = key.partition("@")[0]
        if dataset in outline_of(configured.settings.app, target.folder).datasets:
            raise PenstockError(
                f"{dataset!r} is a dataset, and {key!r} names no slice of it; ask for one by its "
                f"date: '{command('why', f'{dataset}@2024-01-05')}'."
            )
        raise PenstockError(
            f"No job has the key {key!r} in the store {url}{nearest_keys(target, key)}. "
            "Correct the key, or name another store with --store."
        )
    if facts is not None and found.gate is Gate.NO_WORKER:
        found = _undefined_task(target, found, facts.this.job) or found
    now = round(SystemClock().now() * MICROSECONDS) if facts is None else facts.now
    _tell(found, now, as_json=as_json)


def _undefined_task(target: Target, found: Explanation, job: Job) -> Explanation | None:
    """Explain that no worker of the app can help, since it does not define the job's task."""
    named = target.configured().settings.app
    outline = outline_of(named, target.folder)
    if job.kind is not JobKind.JOB or outline.name != job.app or job.task in outline.tasks:
        return None
    flags = {name: str(value) for name, value in target.flags.items()}
    app = probe_app(flags, target.folder, named or DEFAULT_FILE)  # the outline is of one file
    if app.problem is not None or app.name != job.app or job.task in app.tasks:
        return None
    near = get_close_matches(job.task, app.tasks, 1)
    closest = f"; closest: {near[0]!r}" if near else ""
    return replace(
        found,
        sentence=f"The app {app.name!r} does not define the task {job.task!r} of {job.key!r}, so "
        f"none of its workers takes it{closest}.",
        unblocks=f"the app defines it again (`name={job.task!r}` keeps an old name); or cancel it",
        command=command("queue", "cancel", job.key),
    )


def _tell(found: Explanation, now: int, *, as_json: bool) -> None:
    if as_json:
        print_document(document_of(found, now))
    else:
        for line in lines_of(found, now):
            say(line)


def _explained(store: Store, facts: JobFacts) -> Explanation:
    """Explain a job, or a unit of a schedule."""
    is_unit = facts.this.job.kind is JobKind.TICK
    unit = unit_facts(store, facts, passed_since) if is_unit else None
    return explain(facts) if unit is None else explain_unit(unit)


def passed_since(unit: UnitView, now: int) -> int:
    """Occurrences after the one that a unit is at, which have passed."""
    try:
        return parse_timing(unit.timing).after(unit.due_at, now).missed
    except UsageError:  # written by another version, or for a zone that is not known here
        return 0


def _never_armed(target: Target, store: Store, key: str) -> Explanation | None:
    """Explain a unit of an app that has none armed, since its last start failed; None: others."""
    if kind_of_key(key) is not JobKind.TICK:
        return None
    app = outline_of(target.configured().settings.app, target.folder).name
    if app is None or store.units(app, "", 1).result():
        return None
    start = failed_start(store, app, key.removeprefix(SCHEDULE).partition(":")[2])
    return None if start is None else never_armed(key, start)


def _nearest_unit(store: Store, key: str) -> str:
    """The nearest of all units, as far as there are not too many."""
    known: dict[str, str] = {}
    last = ""
    while len(known) < UNITS_COMPARED and (page := store.units(None, last, PAGE).result()):
        last = page[-1].key
        known |= {unit.key.casefold(): unit.key for unit in page}
    return closest_names(key, known)


def document_of(found: Explanation, now: int) -> dict[str, object]:
    """The explanation as a document; times as ISO in UTC."""
    return {
        "key": found.key,
        "state": None if found.state is None else found.state.value,
        "gate": found.gate.value,
        "sentence": found.sentence,
        "unblocks": found.unblocks,
        "when": iso_time(found.when),
        "command": found.command,
        "details": list(found.details),
        "waits_for": [
            {"key": link.key, "kind": link.kind.value, "state": link.state.value}
            for link in found.waits_for
        ],
        "chain": list(found.chain),
        "limits": [_limit(limit) for limit in found.limits],
        "worker": found.worker,
        "as_of": iso_time(found.as_of),
        "as_of_seconds": _age(found, now),
    }


def _limit(limit: Limit) -> dict[str, object]:
    return {
        "limit_key": limit.held.limit_key,
        "cap": limit.cap,
        "source": limit.source,
        "count": limit.held.count,
        "holders": [
            {
                "key": holder.key,
                "worker": holder.worker,
                "since": iso_time(holder.since),
                "lingers": holder.detached,
            }
            for holder in limit.held.holders
        ],
    }


def _age(found: Explanation, now: int) -> float | None:
    return None if found.as_of is None else max(now - found.as_of, 0) / MICROSECONDS


def lines_of(found: Explanation, now: int) -> list[str]:
    """The explanation as text: the answer first."""
    lines = [escaped(found.sentence)]
    age = _age(found, now)
    if age is not None:
        lines[0] += f" (As of {format_duration(age)} ago.)"
    if found.unblocks is not None:
        word = WHEN.get(found.gate)
        when = "" if found.when is None or word is None else f", {word} {at(found.when)}"
        lines.append(f"It goes on when {escaped(found.unblocks)}{when}.")
    if found.command is not None:
        lines.append(f"Command: {escaped(found.command)}")
    if found.details:
        lines += ["", *(escaped(detail) for detail in found.details)]
    return lines

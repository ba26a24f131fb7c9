# SPDX-License-Identifier: Apache-2.0
"""How is a slice that was named on the command line explained?"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, timedelta

from penstock.app.app import Penstock
from penstock.cli.completion import known_keys
from penstock.cli.target import Target
from penstock.clock import SystemClock, to_micros
from penstock.config.budgets import budgets_of
from penstock.definitions.dataset import Dataset
from penstock.errors import PenstockError, UsageError
from penstock.model.calendar import Calendar
from penstock.model.dataset import DatasetSpec, moment_name, slice_name, utc_text
from penstock.model.plan import BuildPlan, BuildRequest
from penstock.observe.phrases import command
from penstock.observe.why.facts import Facts, Why
from penstock.observe.why.gather import gather
from penstock.observe.why.slice import explain_slice, no_slice, several_slices
from penstock.observe.why.why_slice_gather import Looks, Wanted, slice_facts
from penstock.planning.calendars.slice_names import find_slice, moment_of
from penstock.planning.needs import CalendarReader, needed_moments, spacing
from penstock.process_identity import is_gone
from penstock.stores.datasets import SliceRange

SECOND = 1_000_000  # microseconds
DAY = 86_400_000_000  # microseconds
AHEAD_MAX = 400 * DAY  # how far the next slice of a calendar is looked for
FIRST_SHOWN = 1_000  # slices that are named as to be built before

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,127}@\d{4}-", re.ASCII)


def is_slice(key: str) -> bool:
    """Does this look like the name of a slice rather than the key of a job?"""
    return _NAME.match(key) is not None


def why_slice(target: Target, key: str) -> Why | None:
    """The answer for a slice; None if a job has that key.

    The app is imported, since its calendars say which slices there are.

    Raises:
        UsageError: the dataset is unknown, or what follows is no time.
    """
    name, _, text = key.partition("@")
    with target.looked_at_app() as app:
        if app.store.job(key).result() is not None:
            return None
        dataset = app.find_dataset(name)
        app.check_datasets()
        now = to_micros(SystemClock().now())
        found = find_slice(dataset.calendar, text)
        if not found:
            near = _nearest(dataset, moment_of(text, dataset.calendar, now))
            return no_slice(key, dataset.calendar.text, near)
        if len(found) > 1:
            names = [slice_name(name, at, dataset.calendar) for at in found[:3]]
            return several_slices(key, names, len(found))
        wanted = _wanted(app, dataset.spec, found[0], now)
        looks = Looks(
            job=_asker(target, app), keys=_keys(target, app), named=_named(app), gone=is_gone
        )
        return explain_slice(slice_facts(app.store, wanted, looks, now))


def _nearest(dataset: Dataset[..., object], at: int) -> list[str]:
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


def _wanted(app: Penstock, spec: DatasetSpec, at: int, now: int) -> Wanted:
    """A slice, what it is made of, and what a build of it would have to build before."""
    named = _named(app)
    name = named(spec.name, at)
    specs = app.dataset_specs
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
    return Wanted(
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
    )


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


def _asker(target: Target, app: Penstock) -> Callable[[str], Facts | None]:
    configured = target.configured()
    caps = configured.settings.caps()
    budgets = budgets_of(configured.settings, configured.sources)
    return lambda key: gather(app.store, key, caps, SystemClock(), budgets)


def _keys(target: Target, app: Penstock) -> Callable[[str, int], list[str]]:
    url = app.store_url(app.load(target.flags, folder=target.folder))

    def keys(start: str, limit: int) -> list[str]:
        try:
            return known_keys(url, start, limit, folder=target.folder)
        except (PenstockError, TimeoutError):
            return []

    return keys

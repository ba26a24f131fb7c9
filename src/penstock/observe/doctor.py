# SPDX-License-Identifier: Apache-2.0
"""Health checks of `penstock doctor`: Python, budgets, SDK retries, workers, tasks, builds."""

from __future__ import annotations

import ast
import platform
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path

from penstock.model.dataset import task_name
from penstock.model.job import PREFLIGHT, START, STEP, TERMINAL, JobState
from penstock.model.journal import CallFigures
from penstock.model.plan import LockView, PlanState
from penstock.model.schedule import PreflightResult, UnitView
from penstock.model.views import (
    AppView,
    Finding,
    QueueFacts,
    Stats,
    WorkerView,
    healthy,
    problem,
)
from penstock.model.worker import UnresponsiveWorker, read_status, unresponsive_workers
from penstock.observe.phrases import SAME_BUILD, owner, rebuild_command, some
from penstock.observe.providers import kept_accounts
from penstock.sentences import command, counted

PYTHON_MIN = (3, 11)
PLACES_SHOWN = 3
SDKS = frozenset(
    f"{kind}{name}" for kind in ("", "Async") for name in ("OpenAI", "AzureOpenAI", "Anthropic")
)
OLD_READY_SECONDS = 3600.0  # a job that is ready for longer is a problem
NAMES_SHOWN = 5
STEPS = (START, STEP)  # tasks of jobs of builds that no app defines


def budget_finding(count: int, unpriced: Sequence[str]) -> Finding:
    """Whether budgets in dollars have prices for the paid providers."""
    if not unpriced:
        return healthy("budgets", f"{count} set")
    names = ", ".join(map(repr, unpriced))
    return problem(
        "budgets",
        f"A budget counts dollars, and no model of the paid provider {names} has a price, so every "
        f"call would be refused; set usd_per_million_tokens = {{ input = …, output = … }} in "
        f'[providers.{unpriced[0]}.models."MODEL"].',
    )


def python_finding(version: tuple[int, int], system: str) -> Finding:
    """Whether Penstock supports this version of Python and this system."""
    name = ".".join(map(str, version))
    if version < PYTHON_MIN:
        wanted = ".".join(map(str, PYTHON_MIN))
        return problem("python", f"Python {name} is too old; install {wanted} or newer.")
    if system == "win32":
        return problem("python", "Penstock does not run on Windows; use Linux, or WSL.")
    return healthy(
        "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    )


def build_findings(facts: QueueFacts, gone: Callable[[str], bool]) -> Iterator[Finding]:
    """Check for abandoned plans, and for locks of processes that are gone."""
    dead = [lock for lock in facts.locks if gone(lock.mark)]
    yield _plans(facts, {lock.run_id for lock in dead})
    yield _locks(facts, dead)
    if facts.kept:
        yield _kept(facts)


def _plans(facts: QueueFacts, dead_runs: set[str]) -> Finding:
    holding = {lock.run_id for lock in facts.locks if lock.alive} - dead_runs
    left = [x for x in facts.plans if x.state is PlanState.LEFT or x.run_id not in holding]
    if not left:
        return healthy("builds", f"{counted(len(facts.plans), 'plan')} open, none abandoned")
    first = left[0]
    again = rebuild_command(first)
    build = SAME_BUILD if again is None else f"'{again}'"
    goes_on = "plans anew" if first.state is PlanState.DRAFT else "continues it"
    more = f"; {len(left) - 1:,} more were abandoned" if len(left) > 1 else ""
    return problem(
        "builds",
        f"The plan {first.id} was abandoned by {owner(first.run_id)}; {build} {goes_on}{more}.",
    )


def _kept(facts: QueueFacts) -> Finding:
    """Whether the last plans of schedules have built what they keep current."""
    failed = [(unit, end) for unit, end in facts.kept if end.failed]
    if not failed:
        return healthy("kept datasets", f"{counted(len(facts.kept), 'schedule')}, nothing failed")
    unit, end = failed[0]
    first = end.failures[0]
    more = f" and {end.failed - 1:,} more" if end.failed > 1 else ""
    others = f"; so did plans of {counted(len(failed) - 1, 'other')}" if len(failed) > 1 else ""
    return problem(
        "kept datasets",
        f"{first}{more} failed in the last plan of {unit!r}, whose next tick tries again{others}; "
        f"'{command('why', first)}' says why.",
    )


def _locks(facts: QueueFacts, dead: list[LockView]) -> Finding:
    text = f"{counted(len(facts.locks), 'dataset')} locked"
    if dead:
        names = some([repr(lock.name) for lock in dead])
        text += (
            f"; {names} by {owner(dead[0].run_id)}, whose process is gone: the next build "
            "takes over"
        )
    return healthy("locks", text)


def root_finding(path: str, root_id: str | None, facts: QueueFacts) -> Finding:
    """Whether the output root exists and is the one that open plans write to."""
    if root_id is None:
        return problem(
            "output root",
            f"The output root {path} is missing or has no id, and the store has committed slices; "
            "mount it again, or set datasets.root to the folder that they were built in.",
        )
    others = [plan for plan in facts.plans if plan.root != root_id]
    if others:
        return problem(
            "output root",
            f"The plan {others[0].id} writes to the output root {others[0].root}, and {path} is "
            f"{root_id}; set datasets.root to the folder of that plan, or start a new build, "
            "which abandons it.",
        )
    return healthy("output root", f"{path} ({root_id})")


def provider_finding(providers: Iterable[str], files: Iterable[str]) -> Finding | None:
    """Whether SDK clients of an app would retry behind its providers; None: it has no providers."""
    names = ", ".join(map(repr, sorted(providers)))
    if not names:
        return None
    calls = [call for file in sorted(set(files)) for call in _calls_in(Path(file))]
    bypasses = [place for place, name, said in calls if name in SDKS and "http_client" not in said]
    if bypasses:
        return problem(
            "providers",
            f"An SDK client sends past the providers {names} ({_places(bypasses)}), without "
            "permit, journal and budget; give it http_client=PROVIDER.http_client() and "
            "max_retries=0.",
        )
    retries = [
        place
        for place, _, said in calls
        if "http_client" in said and not _is_zero(said.get("max_retries"))
    ]
    if retries:
        return problem(
            "providers",
            f"An SDK client would retry by itself, without a permit ({_places(retries)}); give it "
            "max_retries=0.",
        )
    return healthy("providers", f"{names}; an SDK client on top of them needs max_retries=0")


def _calls_in(file: Path) -> Iterator[tuple[str, str, dict[str | None, ast.expr]]]:
    """Calls with known keywords, as far as the source can be read: place, name, keywords."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            said = {keyword.arg: keyword.value for keyword in node.keywords}
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if None not in said:  # **options
                yield f"{file.name}, line {node.lineno}", name, said


def _places(found: Sequence[str]) -> str:
    more = f" and {len(found) - PLACES_SHOWN} more" if len(found) > PLACES_SHOWN else ""
    return f"{', '.join(found[:PLACES_SHOWN])}{more}"


def _is_zero(value: ast.expr | None) -> bool:
    # What is no literal may be 0: that is no finding.
    return value is not None and (not isinstance(value, ast.Constant) or value.value == 0)


def queue_findings(
    facts: QueueFacts,
    known_tasks: Collection[str] | None,
    gone: Callable[[str], bool],
    app: str | None = None,
) -> Iterator[Finding]:
    """One finding per check.

    Args:
        facts: of the queue.
        known_tasks: of the app; None if it could not be read.
        gone: whether the process with a mark has certainly ended.
        app: its name.
    """
    silent = unresponsive_workers(facts.workers, gone)
    alive = [worker for worker in facts.workers if worker.alive and worker.id not in silent]
    yield _workers(facts, alive, silent.values())
    yield _waiting(facts.stats, len(alive))
    if known_tasks is not None:
        yield _tasks(facts, known_tasks, app)
    if len(facts.apps) > 1:
        yield _apps(facts.apps)
    yield _paused(facts)
    yield _limits(facts)
    yield from _accounts(facts)
    if facts.failed_checks:
        yield _failed_start(facts.failed_checks)
    if facts.stats.schedules:
        yield _schedules(facts)
    if facts.calls != CallFigures():
        yield _calls(facts.calls)


def _workers(
    facts: QueueFacts, alive: Sequence[WorkerView], silent: Collection[UnresponsiveWorker]
) -> Finding:
    names = [f"{worker.id} (pid {worker.pid} on {worker.host})" for worker in alive]
    text = f"{len(alive)} alive: {_some(names)}" if alive else "none alive"
    if silent:
        left = max(worker.lease_seconds for worker in silent)
        text += f"; {len(silent)} not responding, their leases end within {left:.0f} s"
    dead = len(facts.workers) - len(alive) - len(silent)
    if dead:
        text += f"; {dead} dead, the next worker takes back their jobs"
    return healthy("workers", text)


def _accounts(facts: QueueFacts) -> Iterator[Finding]:
    """The accounts of providers that a worker has found closed, and that are closed still."""
    statuses = [read_status(worker.status) for worker in facts.workers if worker.alive]
    closed = {one.provider: one.reason for told in statuses if told for one in told.closed_accounts}
    closed |= {one.provider: one.reason for one in kept_accounts(facts.cooldowns)}
    for provider, reason in closed.items():
        yield problem(
            "accounts",
            f"The account of provider {provider!r} is closed ({reason}): replace its key or fill "
            "the account; its jobs wait.",
        )


def _waiting(stats: Stats, alive: int) -> Finding:
    oldest, queued = stats.oldest_ready_seconds, stats.states.get(JobState.QUEUED, 0)
    if oldest is None:
        return healthy("waiting", f"no job is ready; {queued:,} queued")
    age = timedelta(seconds=round(oldest))
    if oldest < OLD_READY_SECONDS or stats.paused:
        return healthy("waiting", f"{queued:,} queued; the oldest ready one has waited for {age}")
    if alive:
        return problem(
            "waiting",
            f"A job has been ready for {age} although {alive} workers are alive; see which "
            f"by '{command('queue', 'list', '--state', 'queued')}', and start more workers or "
            "slots.",
        )
    return problem(
        "waiting",
        f"A job has been ready for {age} and no worker is alive; start one with "
        f"'{command('queue', 'run')}'.",
    )


def _apps(apps: Sequence[AppView]) -> Finding:
    """Whether every job belongs to one of the apps that share the store."""
    names = [app.name for app in apps if app.name]
    left = {
        task_name(t): sum(n.values()) for app in apps if not app.name for t, n in app.tasks.items()
    }
    if not left:
        return healthy("apps", f"{_some([repr(name) for name in names])} share the store")
    counts = _some([f"{count:,} of {name!r}" for name, count in sorted(left.items())])
    adopt = command("app", "adopt", names[0], "--task", min(left))
    return problem(
        "apps",
        f"{sum(left.values()):,} jobs belong to no app ({counts}), since they are older than the "
        f"apps that share the store, so nobody runs them; '{adopt}' gives those of a task to an "
        "app.",
    )


def _tasks_of(facts: QueueFacts, app: str | None) -> Mapping[str, Mapping[JobState, int]]:
    """Jobs by task; those of other apps are no business of this one."""
    own = [one for one in facts.apps if one.name == app]
    if not own:
        return facts.stats.shown_tasks
    return {task_name(name): counts for name, counts in own[0].tasks.items()}


def _tasks(facts: QueueFacts, known_tasks: Collection[str], app: str | None) -> Finding:
    unknown = {}
    served = {task_name(name) for name in (*facts.served, *STEPS)}
    for name, counts in _tasks_of(facts, app).items():
        left = sum(count for state, count in counts.items() if state not in TERMINAL)
        if left and name not in known_tasks and name not in served:
            unknown[name] = left
    if not unknown:
        return healthy(
            "tasks", f"the app knows the task of every unfinished job ({len(known_tasks)})"
        )
    name, left = max(unknown.items(), key=lambda entry: entry[1])
    near = get_close_matches(name, known_tasks, 1)
    others = f", and {len(unknown) - 1} more tasks are unknown" if len(unknown) > 1 else ""
    hint = f"; closest: {near[0]!r}" if near else ""
    return problem(
        "tasks",
        f"{left:,} unfinished jobs are of the task {name!r}, which the app does not "
        f"define{hint}{others}; define it (`name=` keeps an old name), or cancel these jobs with "
        f"'{command('queue', 'cancel', '--task', name, '--yes')}'.",
    )


def _paused(facts: QueueFacts) -> Finding:
    if facts.stats.paused:
        return problem(
            "paused",
            "The queue is paused, so nobody gets work; resume it with "
            f"'{command('queue', 'resume')}'.",
        )
    names = facts.stats.paused_schedules
    if names:
        verb = "is" if len(names) == 1 else "are"
        return problem(
            "paused",
            f"{_some([*names])} {verb} paused, so nothing of that ticks; resume it with "
            f"'{command('schedule', 'resume', names[0])}'.",
        )
    return healthy("paused", "no")


def _limits(facts: QueueFacts) -> Finding:
    closed = sorted(key for key, cap in facts.caps.items() if cap == 0)
    if closed:
        return problem(
            "limits",
            f"An operator has set the limit of {_some([repr(key) for key in closed])} to 0, so "
            f"these jobs never start; raise it with '{command('queue', 'limit', 'KEY', 'N')}'.",
        )
    return healthy("limits", f"{len(facts.caps)} set by operators, none of them 0")


def _failed_start(failed: tuple[PreflightResult, ...]) -> Finding:
    """Report the preflights that failed at the last start of a daemon."""
    first = failed[0].unit.removeprefix(PREFLIGHT)
    more = f", nor {len(failed) - 1:,} more" if len(failed) > 1 else ""
    return problem(
        "preflights",
        f"The last start of a daemon failed: the preflight {first!r} did not pass{more}; "
        f"'{command('run', '--check')}' runs them again and shows the errors.",
    )


def _schedules(facts: QueueFacts) -> Finding:
    """Check for units of schedules that are degraded, or ended in error."""
    ended = [unit for unit in facts.units if unit.state is JobState.ERROR]
    degraded = [unit for unit in facts.units if unit.is_failing and not unit.by_others]
    deferred = [unit for unit in facts.units if unit.is_failing and unit.by_others]
    if ended:
        return problem(
            "schedules",
            f"{_units(ended)} ended in error and will not tick again by "
            f"{'themselves' if len(ended) > 1 else 'itself'}; '{command('why', ended[0].key)}' "
            "says "
            f"why, and '{command('queue', 'retry-failed')}' or the next '{command('run')}' starts "
            "again.",
        )
    if degraded:
        return problem(
            "schedules",
            f"{_units(degraded)} degraded: the last try failed; "
            f"'{command('why', degraded[0].key)}' "
            "shows the error, and when the next try is.",
        )
    waiting = f"; {len(deferred):,} wait for others: {_some(_keys(deferred))}" if deferred else ""
    return healthy("schedules", f"{facts.stats.units:,} units, none of them degraded{waiting}")


def _units(units: list[UnitView]) -> str:
    if len(units) == 1:
        return f"The unit {units[0].key!r} {'has' if units[0].state is JobState.ERROR else 'is'}"
    word = "have" if units[0].state is JobState.ERROR else "are"
    return f"{len(units):,} units of schedules ({_some(_keys(units))}) {word}"


def _keys(units: list[UnitView]) -> list[str]:
    return [unit.key for unit in units]


def _calls(calls: CallFigures) -> Finding:
    text = f"{calls.bought:,} bought, {calls.reused:,} reused, {calls.in_doubt:,} in doubt"
    if calls.resent:
        text += f", {calls.resent:,} sent again"
    if calls.in_doubt:
        text += (
            "; they stay counted in budgets, since they may be billed; their jobs send them again, "
            "or wait where a provider has in_doubt = 'hold': look at "
            f"'{command('queue', 'list', '--state', 'error')}', then "
            f"'{command('queue', 'retry-failed')}'"
        )
    return healthy("paid calls", text)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more

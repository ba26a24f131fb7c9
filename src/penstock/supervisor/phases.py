# SPDX-License-Identifier: Apache-2.0
"""The phases of a run: preflights, arming or planning, then work.

A daemon begins with one worker, the lead, which runs the preflights and then arms the schedules;
a build with one that takes the locks and plans. Only then does anybody work. A run of the queue
works from the start.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from enum import Enum

from msgspec.structs import replace

from penstock.model.provider import ClosedAccount
from penstock.model.spending import BudgetStop
from penstock.model.views import Outlook
from penstock.supervisor.protocol import (
    Armed,
    Check,
    Checked,
    Checking,
    CrashedPreflight,
    Failed,
    Planned,
    RunSpec,
)

EXIT_PREFLIGHT_FAILED = 3  # exit code
NAMES_MAX = 5  # of preflights in one sentence
DEATHS_MAX = 5  # processes that may die before nobody looks any more

BLOCKS = (
    "it had not ended by preflight_timeout and could not be stopped: it blocks the event loop; use "
    "`await`, or make it a `def` preflight, which runs in a thread"
)

log = logging.getLogger("penstock.supervisor")


class PreflightCrashes:
    """Owns what is known of the processes that died in one start, and which preflight did it."""

    def __init__(self) -> None:
        self.alone: tuple[str, ...] = ()  # suspects, as people are shown them
        self.crashed: tuple[CrashedPreflight, ...] = ()
        self._deaths = 0

    def died(
        self, cause: str, running: Sequence[str], ended: Sequence[Check], *, blocked: bool
    ) -> bool:
        """A process died while these ran; True if another one is to check again.

        Args:
            cause: how it died, for people.
            running: checks that had not ended.
            ended: what is known of others.
            blocked: it was killed, since one of them could not be stopped.
        """
        self._deaths += 1
        passed = {check.unit for check in ended if check.passed}
        suspects = dict.fromkeys(name for name in self.alone if name not in passed)
        if len(running) == 1:
            problem = BLOCKS if blocked else f"the process died while it ran ({cause})"
            self.crashed += (CrashedPreflight(running[0], problem),)
            suspects.pop(running[0], None)
        else:
            suspects.update(dict.fromkeys(running))
        self.alone = tuple(suspects)
        return bool(running) and self._deaths < DEATHS_MAX


class BudgetStops:
    """Owns what the workers of one run have said about budgets and accounts when they ended."""

    def __init__(self) -> None:
        self._stops: dict[str, BudgetStop] = {}  # by budget; the last word has the numbers of now
        self._accounts: dict[str, ClosedAccount] = {}  # by provider

    def __bool__(self) -> bool:
        return bool(self._stops or self._accounts)

    def note_accounts(self, closed: Sequence[ClosedAccount]) -> None:
        for one in closed:
            before = self._accounts.get(one.provider)
            tasks = {*one.tasks, *(before.tasks if before is not None else ())}
            self._accounts[one.provider] = replace(one, tasks=tuple(sorted(tasks)))

    def accounts(self) -> tuple[ClosedAccount, ...]:
        return tuple(self._accounts.values())

    def sentences(self) -> list[str]:
        """What each of them says to people."""
        budgets = [stop.sentence for stop in self._stops.values()]
        return budgets + [one.sentence for one in self._accounts.values()]

    def note(self, stops: Sequence[BudgetStop]) -> None:
        for stop in stops:
            before = self._stops.get(stop.budget)
            tasks = {*stop.tasks, *(before.tasks if before is not None else ())}
            self._stops[stop.budget] = replace(stop, tasks=tuple(sorted(tasks)))

    def all(self) -> tuple[BudgetStop, ...]:
        return tuple(self._stops.values())

    def hold_up(self, outlook: Outlook | None) -> bool:
        """True if something still waits for them; another worker may have had what it needed."""
        if outlook is None:
            return bool(self)
        held = {task for stop in self._stops.values() for task in stop.tasks}
        held.update(task for one in self._accounts.values() for task in one.tasks)
        return any(sum(outlook.open_by_task.get(task, {}).values()) for task in held)


class Phase(Enum):
    CHECKING = "checking"  # preflights run
    ARMING = "arming"  # all have passed; their results are kept, schedules are armed
    PLANNING = "planning"  # a build waits for its locks, or is planned
    WORKING = "working"
    REFUSED = "refused"  # a preflight has failed: nothing else starts
    ENOUGH = "enough"  # nothing more was asked for, or everything is up to date


class Phases:
    """Owns the phase of one run and what its lead has told."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self.phase = _first(spec)
        self.crashes = PreflightCrashes()
        self._checks: dict[str, Check] = {}  # those that failed; with --check all of them
        self.checking: Checking | None = None  # how far they are
        self.checked: Checked | None = None
        self.armed: Armed | None = None
        self.planned: Planned | None = None

    @property
    def is_working(self) -> bool:
        return self.phase is Phase.WORKING

    @property
    def needs_lead(self) -> bool:
        """True if the next worker must check and arm, or plan, before it works."""
        return self.phase in (Phase.CHECKING, Phase.ARMING, Phase.PLANNING)

    def starters(self) -> range:
        """Which processes begin at once."""
        return range(self._spec.processes) if self.is_working else range(1)

    def followers(self) -> range:
        """Which processes wait for the lead."""
        return range(1, self._spec.processes)

    def hear(self, checks: Sequence[Check], checked: Checked | None, armed: Armed | None) -> bool:
        """Take in what the lead says; True if work begins now."""
        self._checks.update((check.unit, check) for check in checks)
        if self.phase is Phase.CHECKING and checked is not None:
            self.checked = checked
            if checked.failed:
                self.phase = Phase.REFUSED
            else:
                self.phase = Phase.ENOUGH if self._spec.check else Phase.ARMING
        if self.phase is Phase.ARMING and armed is not None:
            self.armed = armed
            self.phase = Phase.WORKING
            return True
        return False

    def hear_plan(self, planned: Planned | None) -> bool:
        """Take in what is to be built; True if work begins now."""
        if self.phase is not Phase.PLANNING or planned is None:
            return False
        self.planned = planned
        self.phase = Phase.ENOUGH if planned.plan_id is None else Phase.WORKING
        return self.is_working

    @property
    def status(self) -> str:
        """What comes before the work, for whoever asks how the run is."""
        return "A build is planned." if self.phase is Phase.PLANNING else "Preflights run."

    @property
    def ready_status(self) -> str:
        """What is served when the work begins."""
        if self.planned is not None:
            return "The build is planned, and its jobs run."
        return "Preflights have passed; schedules and the queue are served."

    @property
    def plan_id(self) -> str | None:
        return None if self.planned is None else self.planned.plan_id

    @property
    def checks(self) -> list[Check]:
        """What is known of each, the last word on it."""
        return list(self._checks.values())

    def lead_died(
        self, cause: str, overdue: Sequence[str], running: Sequence[str], *, has_begun: bool
    ) -> Failed | None:
        """A process died before the work began; None: another one is to run the other preflights.

        Args:
            cause: how it died, for people.
            overdue: preflights past their limit for which it was killed.
            running: those that had not ended.
            has_begun: it had read the app.
        """
        message = self.format_lead_death(cause, overdue, running, has_begun=has_begun)
        if self.phase is Phase.CHECKING:
            looks_again = self.crashes.died(cause, running, self.checks, blocked=bool(overdue))
            for crashed in self.crashes.crashed:
                name, _, partition = crashed.unit.partition(":")
                self._checks[crashed.unit] = Check(
                    name=name, partition=partition, passed=False, problem=crashed.problem
                )
            if looks_again:
                log.error("%s Another process checks again.", message)
                return None
        return Failed(message, self.exit_code() or 1)

    def known(self) -> Checked:
        """How many have passed and failed, also if the last word was never said."""
        if self.checked is not None:
            return self.checked
        failed = [check for check in self.checks if not check.passed]
        required = sum(check.required for check in failed)
        passed = len(self.checks) - len(failed)
        return Checked(passed=passed, failed=required, left_out=len(failed) - required)

    def exit_code(self) -> int | None:
        """With which code a run ends that has come no further; None: its work decides."""
        codes = {Phase.WORKING: None, Phase.ENOUGH: 0, Phase.PLANNING: 1}
        return codes.get(self.phase, EXIT_PREFLIGHT_FAILED)

    def format_lead_death(
        self,
        cause: str,
        overdue: Sequence[str] = (),
        running: Sequence[str] = (),
        *,
        has_begun: bool = True,
    ) -> str:
        """What is said if the lead dies before anybody works."""
        if not has_begun:
            return f"The process died while it read the app ({cause}); nothing was started."
        if self.phase is Phase.PLANNING:
            return (
                f"The process died before the build was planned ({cause}); nothing was built. The "
                "same command begins again."
            )
        if self.phase is not Phase.CHECKING:
            return f"The process died while schedules were armed ({cause}); nothing was started."
        if overdue:
            suspects = running or overdue
            blocks = "it blocks" if len(suspects) == 1 else "one of them blocks"
            return (
                f"The {_listed(suspects)} had not ended by preflight_timeout and could not be "
                f"stopped, so nothing else was started: {blocks} the event loop; use `await`, or "
                "make it a `def` preflight, which runs in a thread."
            )
        who = f"the {_listed(running)} ran" if running else "the preflights ran"
        return f"The process died while {who} ({cause}); nothing else was started."


def _first(spec: RunSpec) -> Phase:
    if spec.build is not None:
        return Phase.PLANNING
    return Phase.CHECKING if spec.daemon else Phase.WORKING


def format_armed(checked: Checked | None, armed: Armed) -> str:
    """What is said when the second phase begins."""
    passed, left_out = (0, 0) if checked is None else (checked.passed, checked.left_out)
    head = f"All {passed:,} preflights have passed" if passed > 1 else "The preflight has passed"
    if left_out:
        head = (
            f"{passed:,} of {passed + left_out:,} preflights have passed, the others are optional"
        )
    schedules = f"{armed.schedules:,} schedule{'' if armed.schedules == 1 else 's'}"
    units = f"{armed.units:,} unit{'' if armed.units == 1 else 's'} of {schedules}"
    return f"{head}; armed {units}." if passed or left_out else f"Armed {units}."


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:NAMES_MAX])
    rest = len(names) - NAMES_MAX
    more = f" and {rest:,} more" if rest > 0 else ""
    return f"preflight{'' if len(names) == 1 else 's'} {shown}{more}"

# SPDX-License-Identifier: Apache-2.0
"""`penstock run`: the daemon, which runs preflights, then schedules and the queue."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from penstock.cli.commands.run_supervised import (
    MaxJobsOption,
    ProcessesOption,
    ProcessSlotsOption,
    SlotsOption,
    ThreadsOption,
    spec_of,
    supervise,
    target_of,
)
from penstock.cli.target import AppOption, StoreOption
from penstock.clock import SystemClock
from penstock.errors import UsageError
from penstock.redaction.secrets import redacted
from penstock.supervisor.phases import EXIT_PREFLIGHT_FAILED, Phase, Phases
from penstock.supervisor.protocol import Check, Checked, unit_name
from penstock.supervisor.sd_notify import Announcer, SdNotify
from penstock.terminal_text import escaped, print_document, say, warn

ROWS_MAX = 200  # of the table; the rest is counted
NAME_WIDTH_MAX = 60
LEFT_OUT = "Not required: the units that it is about are left out until it passes."
PORT_MAX = 65_535


def check_lines(checks: Sequence[Check], checked: Checked) -> list[str]:
    """A row for each reported check: failed ones first, then by name."""
    rows = sorted(
        checks, key=lambda check: (check.passed, not check.required, check.name, check.partition)
    )
    shown = rows[:ROWS_MAX]
    names = [_unit(check) for check in shown]
    width = min(max(map(len, names), default=0), NAME_WIDTH_MAX)
    lines = []
    for check, name in zip(shown, names, strict=True):
        word = "passed" if check.passed else "FAILED" if check.required else "failed"
        lines.append(f"{word}  {name:<{width}}  {escaped(redacted(check.problem))}".rstrip())
        if check.hint and not check.passed:
            lines.append(f"{'':8}{'':<{width}}  {escaped(redacted(check.hint))}")
        if not (check.passed or check.required):
            lines.append(f"{'':8}{'':<{width}}  {LEFT_OUT}")
    if len(rows) > len(shown):
        lines.append(f"… and {len(rows) - len(shown):,} more")
    lines.append(_sum(checked))
    return lines


def checks_document(checks: Sequence[Check], checked: Checked) -> dict[str, object]:
    """The checks as a JSON document."""
    return {
        "passed": checked.passed,
        "failed": checked.failed,
        "left_out": checked.left_out,
        "preflights": [
            {
                "name": check.name,
                "partition": check.partition or None,
                "passed": check.passed,
                "required": check.required,
                "problem": redacted(check.problem) or None,
                "hint": redacted(check.hint) or None,
            }
            for check in sorted(checks, key=lambda check: (check.name, check.partition))
        ],
    }


def _unit(check: Check) -> str:
    return escaped(unit_name(check.name, check.partition))


def _sum(checked: Checked) -> str:
    total = checked.passed + checked.failed + checked.left_out
    if not total:
        return "The app has no preflights."
    if checked.left_out and not checked.failed:
        return (
            f"{checked.left_out:,} of {total:,} preflights did not pass; they are not required, "
            "so the others would work."
        )
    if not checked.failed:
        return "The preflight has passed." if total == 1 else f"All {total:,} preflights passed."
    return f"{checked.failed:,} of {total:,} preflights failed; nothing else was started."


def run_daemon(
    context: typer.Context,
    drain: Annotated[
        bool, typer.Option("--drain", help="End when no job is left; schedules do not count.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Run the preflights only, and print what they say.")
    ] = False,
    max_jobs: MaxJobsOption = None,
    processes: ProcessesOption = 1,
    slots: SlotsOption = None,
    threads: ThreadsOption = None,
    process_slots: ProcessSlotsOption = None,
    health: Annotated[
        int | None,
        typer.Option(
            "--health",
            metavar="PORT",
            min=0,
            max=PORT_MAX,
            help="Serve /live and /ready on this port of loopback; 0 chooses one.",
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="With --check: print one JSON document.")
    ] = False,
    app: AppOption = None,
    store: StoreOption = None,
) -> int:
    """Run the preflights, then the schedules and the queue, until it is stopped."""
    if json and not check:
        raise UsageError("--json belongs to --check; without it a daemon prints no document.")
    if check and drain:
        raise UsageError("--check runs no work, so there is nothing to --drain; leave one out.")
    if check and max_jobs is not None:
        raise UsageError("--check runs no work, so --max-jobs has none to count; leave one out.")
    target = target_of(app, store, slots, threads, process_slots)
    spec = spec_of(
        context,
        target,
        app,
        processes=1 if check else processes,
        drain=drain,
        max_jobs=max_jobs,
        daemon=True,
        check=check,
    )
    with _announcer(health) as announcer:
        code, supervisor = supervise(spec, target, announcer)
    is_wanted = check and code in (0, EXIT_PREFLIGHT_FAILED)
    _tell_checks(supervisor.phases, is_wanted=is_wanted, json=json)
    return code


def _tell_checks(phases: Phases, *, is_wanted: bool, json: bool) -> None:
    """Print the results of preflights: with --check, or if one has failed."""
    if json and is_wanted:
        print_document(checks_document(phases.checks, phases.known()))
    elif is_wanted and (phases.checked is not None or phases.checks):
        for line in check_lines(phases.checks, phases.known()):
            say(line)
    elif phases.phase is Phase.REFUSED or (phases.phase is Phase.CHECKING and phases.checks):
        failed = [check for check in phases.checks if not check.passed]
        for line in check_lines(failed, phases.known()):
            warn(line)


@contextlib.contextmanager
def _announcer(port: int | None) -> Iterator[Announcer]:
    """The announcer for systemd and the health server."""
    clock = SystemClock()
    notify = SdNotify.of_this_process()
    try:
        if port is None:
            yield Announcer(clock, notify)
            return
        from penstock.supervisor.health_server import LOOPBACK, Health, HealthServer

        health = Health(clock)
        server = HealthServer(health, port)
        try:
            warn(f"Health: http://{LOOPBACK}:{server.port}/live and /ready")
            yield Announcer(clock, notify, health)
        finally:
            server.close()
    finally:
        notify.close()

# SPDX-License-Identifier: Apache-2.0
"""`penstock build`: brings slices of datasets up to date."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from penstock.builds.build import end_build
from penstock.cli.commands.plan import (
    EndOption,
    StartOption,
    TargetsArgument,
    YesOption,
    plan_and_print,
)
from penstock.cli.commands.run_supervised import (
    ProcessesOption,
    ProcessSlotsOption,
    SlotsOption,
    ThreadsOption,
    spec_of,
    store_of,
    supervise,
    target_of,
)
from penstock.cli.render.plan_and_build import PlanFormat, report_document, report_lines
from penstock.cli.target import AppOption, JsonOption, StoreOption, Target
from penstock.clock import SystemClock
from penstock.model.plan import BuildReport, PlanFacts
from penstock.process_identity import own_identity
from penstock.stores.retry import repeat_unknown_async
from penstock.supervisor.protocol import BuildSpec, Planned
from penstock.supervisor.sd_notify import Announcer
from penstock.supervisor.supervisor import Supervisor
from penstock.terminal_text import print_document, say, warn


def build(
    context: typer.Context,
    targets: TargetsArgument,
    start: StartOption,
    end: EndOption,
    eager: Annotated[
        bool,
        typer.Option(
            "--eager", help="Start each job when its own needs are there, and commit it by itself."
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Build what is up to date as well.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan, and build nothing.")
    ] = False,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="Stop after the level in which something failed.")
    ] = False,
    yes: YesOption = False,
    processes: ProcessesOption = 1,
    slots: SlotsOption = None,
    threads: ThreadsOption = None,
    process_slots: ProcessSlotsOption = None,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Build slices of datasets, with all that they need; what is up to date is left alone."""
    spec = BuildSpec(
        targets=tuple(targets),
        start=start,
        end=end,
        force=force,
        eager=eager,
        fail_fast=fail_fast,
        yes=yes,
        mark=own_identity(),
    )
    if dry_run:
        target = Target.named(app=app, store=store)
        return plan_and_print(target, spec, PlanFormat.JSON if as_json else PlanFormat.TABLE)
    target = target_of(app, store, slots, threads, process_slots)
    run = spec_of(context, target, app, processes=processes, drain=False, build=spec)
    code, supervisor = supervise(run, target, Announcer(SystemClock()))
    report = ended_report(supervisor, target)
    planned = supervisor.phases.planned
    if planned is None:
        return code  # it did not come that far; why was said
    if planned.plan_id is None:
        report = BuildReport(plan_id=None, run_id=supervisor.run_id, fresh=planned.fresh)
    if report is None:
        return code or 1
    _tell(report, planned, as_json=as_json)
    return code if code or report.ok or report.stopped else 1


def ended_report(supervisor: Supervisor, target: Target) -> BuildReport | None:
    """End the plan of a run; None if there is none, or somebody else has it."""
    plan_id = supervisor.phases.plan_id
    if plan_id is None:
        return None
    with store_of(supervisor, target) as store:
        if store is None:
            return None
        row = store.plan(plan_id).result()
        if row is None or row.run_id != supervisor.run_id:
            return None  # another build has taken it over
        facts = PlanFacts.read(row.document)
        return asyncio.run(
            end_build(store, repeat_unknown_async, plan_id, facts, supervisor.run_id)
        )


def _tell(report: BuildReport, planned: Planned, *, as_json: bool) -> None:
    if as_json:
        print_document(report_document(report, planned))
        return
    for line in report_lines(report, planned):
        if not say(line):
            return
    if report.failed or report.skipped:
        warn("The same command retries what is missing.")

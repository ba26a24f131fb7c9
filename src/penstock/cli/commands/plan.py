# SPDX-License-Identifier: Apache-2.0
"""`penstock plan`: prints what a build would do; changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from penstock.app.build import typed_request
from penstock.cli.completion import complete_dataset
from penstock.cli.render.plan_and_build import (
    PlanFormat,
    plan_lines,
    to_graphviz,
    to_json,
    to_mermaid,
)
from penstock.cli.target import AppOption, StoreOption, Target
from penstock.clock import SystemClock, to_micros
from penstock.supervisor.protocol import BuildSpec
from penstock.terminal_text import safe_json, write

TargetsArgument = Annotated[
    list[str],
    typer.Argument(metavar="TARGET", help="Datasets, by name.", autocompletion=complete_dataset),
]
StartOption = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="D",
        help="The first moment: a date, or a time; local to each target's calendar.",
    ),
]
EndOption = Annotated[
    str,
    typer.Option(
        "--to", metavar="D", help='The end, itself excluded: a date or a time; or "now", "today".'
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", help="Allow more than a million slices.")]


def plan(
    targets: TargetsArgument,
    start: StartOption,
    end: EndOption,
    picture: Annotated[
        PlanFormat, typer.Option("--format", help="How the plan is printed.")
    ] = PlanFormat.TABLE,
    eager: Annotated[bool, typer.Option("--eager", help="As `penstock build --eager`.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Plan what is up to date as well.")
    ] = False,
    yes: YesOption = False,
    app: AppOption = None,
    store: StoreOption = None,
) -> int:
    """Print what a build would do: levels, counts, what is skipped and why."""
    spec = BuildSpec(
        targets=tuple(targets), start=start, end=end, force=force, eager=eager, yes=yes
    )
    return plan_and_print(Target.named(app=app, store=store), spec, picture)


def plan_and_print(target: Target, spec: BuildSpec, picture: PlanFormat) -> int:
    """Plan, print, and end with 0."""
    with target.app_for_reading() as app:
        for name in spec.targets:
            app.registry.find_dataset(name)
        now = to_micros(SystemClock().now())
        request = typed_request(app.datasets, spec, now)
        made = app.plan_request(request, now)
        specs = app.registry.dataset_specs
        if picture is PlanFormat.TABLE:
            pieces: Iterable[str] = (f"{line}\n" for line in plan_lines(made, specs))
        elif picture is PlanFormat.JSON:
            pieces = map(safe_json, to_json(made))
        else:
            draw = to_mermaid if picture is PlanFormat.MERMAID else to_graphviz
            pieces = [draw(made, specs)]
        all(map(write, pieces))  # until nobody reads any more
    return 0

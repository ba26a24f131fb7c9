# SPDX-License-Identifier: Apache-2.0
"""A preflight as declared: a health check that runs before any work begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Concatenate, NamedTuple, Protocol, TypedDict

from penstock.clock import Duration
from penstock.definitions.context import Context
from penstock.definitions.partitions import Spec
from penstock.definitions.provider import Uses
from penstock.definitions.task import P, R, TaskOptions
from penstock.errors import UsageError
from penstock.model.job import PREFLIGHT

HINT_LENGTH_MAX = 500  # characters


class Preflight(Spec[P, R]):
    """A check that runs once before the work, for each of its units."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        over: object,
        options: TaskOptions,
        *,
        recheck: bool = False,
        required: bool = True,
        hint: str | None = None,
    ) -> None:
        given: object = hint  # whatever a user without a type checker wrote
        if given is not None and not (isinstance(given, str) and len(given) <= HINT_LENGTH_MAX):
            raise UsageError(
                f"Preflight {name!r}: hint= is a text of at most {HINT_LENGTH_MAX} characters."
            )
        super().__init__(PREFLIGHT, name, function, over, options, Context)
        self.recheck = recheck  # it stays on duty: it decides when failed work goes on
        self.required = required  # False: what it is about is left out until it passes
        self.hint = hint  # what to do if it fails


class Check(NamedTuple):
    """One unit of a preflight that a unit of work depends on."""

    preflight: Preflight[..., Any]
    unit: str  # preflight:repository_exists:thumbrise/autosolve
    partition: str  # "": it is global
    payload: str


def checks_of(
    work: Spec[..., Any], payload: str, preflights: Iterable[Preflight[..., Any]]
) -> list[Check]:
    """Which units of preflights are about this unit of work: all of its dimensions are the work's.

    The finest come last. Nothing is asked but the payload, so every process can tell.
    """
    values = work.codec.named_arguments(payload)
    by_dimension = dict(zip((one.name for one in work.over), values.values(), strict=True))
    found = []
    for preflight in preflights:
        if any(one.name not in by_dimension for one in preflight.over):
            continue
        own = tuple(by_dimension[one.name] for one in preflight.over)
        names = [one.name_of(value) for one, value in zip(preflight.over, own, strict=True)]
        partition = "/".join(names) if names else None
        found.append(
            Check(
                preflight,
                preflight.unit_key(partition),
                partition or "",
                preflight.unit_payload(own).payload,
            )
        )
    found.sort(key=lambda check: len(check.preflight.over))
    return found


class PreflightOptions(TypedDict, total=False):
    """What can be said about a preflight besides over what it is."""

    recheck: bool
    required: bool
    name: str | None
    uses: Uses | tuple[Uses, ...] | list[Uses]
    timeout: Duration | None
    hint: str | None


class PreflightDecorator(Protocol[P]):
    """What `@app.preflight(...)` is: its function takes one value of each dimension."""

    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Preflight[P, R]: ...

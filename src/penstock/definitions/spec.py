# SPDX-License-Identifier: Apache-2.0
"""What do preflights and schedules have in common? They are tasks that the planner multiplies."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.definitions.context import Context
from penstock.definitions.partition_names import shown
from penstock.definitions.partitions import Partitions, dimensions_of
from penstock.definitions.request import JobRequest, check_name
from penstock.definitions.task import P, R, Task, TaskOptions
from penstock.errors import PayloadError, UsageError


class UnitPayload(NamedTuple):
    """What a unit hands to its function, and the keyed limits that follow from it."""

    payload: str  # strict JSON text
    limit_keys: tuple[str, ...]


class Spec(Task[P, R]):
    """A task of the daemon; its function takes one value of each dimension."""

    def __init__(
        self,
        prefix: str,
        name: str,
        function: Callable[..., Any],
        over: object,
        options: TaskOptions,
        context: type[Context],
    ) -> None:
        what = f"{prefix.rstrip(':').capitalize()} {name!r}"
        check_name(f"{prefix.rstrip(':')} name", name)
        if ":" in name:
            raise UsageError(f"{what}: the name cannot hold a ':', which ends it in unit names.")
        self.over = dimensions_of(what, over)
        self.plain_name = name  # without its prefix
        _check_parameters(what, function, self.over)
        super().__init__(f"{prefix}{name}", function, options, context)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.plain_name}>"

    def unit_key(self, partition: str | None) -> str:
        """The name of one of its units, which is also the key of its job."""
        return self.name if partition is None else f"{self.name}:{partition}"

    def job(self, *args: P.args, **kwargs: P.kwargs) -> JobRequest[R]:
        """Nobody enqueues it: a job of it would tick for ever beside its units."""
        raise self._no_job()

    def job_from_json(self, payload: str) -> JobRequest[R]:
        raise self._no_job()

    def _no_job(self) -> UsageError:
        kind = type(self).__name__
        return UsageError(
            f"{kind} {self.plain_name!r} cannot be enqueued: `penstock run` runs it. Put what it "
            "shares with a job into a function of its own, or into a task that it enqueues."
        )

    def unit_payload(self, values: tuple[Any, ...]) -> UnitPayload:
        """The arguments of one unit; PayloadError if they do not fit the signature."""
        request = self._request(self.codec.encode(values, {}))
        rebuilt = self.codec.named_arguments(request.payload)
        for (name, again), value in zip(rebuilt.items(), values, strict=True):
            if type(again) is not type(value) and again != value:
                raise PayloadError(
                    f"Task {self.name!r}, argument {name!r}: {shown(value)} would arrive as a "
                    f"{type(again).__name__}; annotate it with {type(value).__name__}."
                )
        return UnitPayload(request.payload, request.limit_keys)


def _check_parameters(
    what: str, function: Callable[..., Any], over: tuple[Partitions[Any], ...]
) -> None:
    """One parameter for each dimension, in order, each with a type."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise UsageError(f"{what} is no function whose parameters can be read.") from None
    own = parameters[1:]
    if len(own) != len(over):
        wants = "one parameter for each dimension of over=" if over else "no parameter"
        raise UsageError(
            f"{what} must take its context and {wants} ({len(over)}), it takes {len(own)} more: "
            f"{', '.join(str(one) for one in own)[:200] or 'none'}."
        )
    for parameter, dimension in zip(own, over, strict=True):
        if parameter.annotation is inspect.Parameter.empty:
            raise UsageError(
                f"{what}: the parameter {parameter.name!r} has no type; write that of the "
                f"partitions {dimension.name!r}, so that their values can be rebuilt from JSON."
            )

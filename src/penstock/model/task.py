# SPDX-License-Identifier: Apache-2.0
"""Schedulable tasks of a process: their groups, weights, resources and metadata."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from penstock.errors import SchedulingMetadataCode, SchedulingMetadataError, UsageError
from penstock.model.job import NAME_LENGTH_MAX
from penstock.model.provider import Endpoint

#: Every task holds one of these from its start to its end.
SUBMISSION = "submission"

_ONE_SUBMISSION: Mapping[str, int] = MappingProxyType({SUBMISSION: 1})


class SchedulerResourceRequest(msgspec.Struct, frozen=True):
    """How much of which resources a task holds while it runs; at least one submission."""

    amounts: Mapping[str, int] = _ONE_SUBMISSION
    needs: tuple[tuple[str, int], ...] = ()  # the same, sorted: equal requests have equal needs
    #: What it competes for: all that it needs, but the submission only if that is all. Every task
    #: needs one; a group that runs on threads must not keep others from the loop.
    contested: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        for resource, amount in self.amounts.items():
            if not resource:
                raise UsageError("The name of a resource cannot be empty.")
            if type(amount) is not int or amount <= 0:
                raise UsageError(
                    f"A task asks for a whole positive number of {resource!r}, got {amount!r}."
                )
        amounts = MappingProxyType({SUBMISSION: 1, **self.amounts})
        msgspec.structs.force_setattr(self, "amounts", amounts)
        needs = tuple(sorted(amounts.items()))
        others = tuple(need for need in needs if need[0] != SUBMISSION)
        msgspec.structs.force_setattr(self, "needs", needs)
        msgspec.structs.force_setattr(self, "contested", others or needs)

    def __hash__(self) -> int:
        return hash(self.needs)


class TaskGroupSpec(msgspec.Struct, frozen=True):
    """Tasks that share fairly with other groups."""

    key: str
    weight: int = 1  # its part of what groups compete for
    admitted_limit: int | None = None  # beyond so many it yields to others; None: no such limit

    def __post_init__(self) -> None:
        if type(self.weight) is not int or self.weight <= 0:
            raise UsageError(
                f"The weight of group {self.key!r} is a whole positive number, got {self.weight!r}."
            )
        limit = self.admitted_limit
        if limit is not None and (type(limit) is not int or limit <= 0):
            raise UsageError(
                f"The admitted limit of group {self.key!r} is a whole positive number or left out, "
                f"got {limit!r}."
            )


class SchedulableTask(msgspec.Struct, frozen=True):
    """A ready task with what the scheduler must know of it."""

    task_id: Hashable  # stable: the same work has the same id
    payload: Any
    group: TaskGroupSpec
    resource_request: SchedulerResourceRequest
    request_resource_key: Hashable | None = None  # the provider's resource that it will call
    priority: int = 0  # orders tasks inside their group, higher first
    part: str = ""  # of its group: parts take turns, as the columns of a table do


class ReadinessSource(Protocol):
    """Where a scheduler gets its tasks from. A verb that is repeated changes nothing more."""

    def ready_frontier(self) -> Sequence[SchedulableTask]:
        """Tasks that are ready and not yet acknowledged as enqueued."""
        ...

    def mark_enqueued(self, ids: Iterable[Hashable]) -> None:
        """Exactly these were taken in."""
        ...

    def mark_complete(self, task: SchedulableTask) -> None:
        """It has succeeded; others may be ready now."""
        ...


WEIGHT_MAX = 1_000_000

SchedulingKind = Literal["local", "model", "custom_model"]

#: What stands in an identity after its kind.
_PARTS = {
    "local": ("name",),
    "model": ("provider", "model", "generation kind"),
    "custom_model": ("namespace", "name", "version"),
}


class SchedulingMetadata(msgspec.Struct, frozen=True):
    """Which group the jobs of a task belong to, and the weight of that group among others.

    Tasks with the same identity share as one group, named by `group_key`. A group that is named
    (`group=`), or a partition, goes before it. Write `SchedulingMetadata.local("parse")`,
    `.model("openai", "gpt-5", "chat", weight=32)` or `.custom_model("acme", "ranker", "2")`.
    """

    kind: SchedulingKind = "local"
    identity: tuple[str, ...] = ("local", "default")
    weight: int = 1  # of a model: how many requests it may have at once

    def __post_init__(self) -> None:
        _check_kind(self.kind)
        _check_identity(self.kind, self.identity)
        _check_weight(self.identity, self.weight)

    @staticmethod
    def local(name: str = "default", weight: int = 1) -> SchedulingMetadata:
        """Work of this machine."""
        return SchedulingMetadata("local", ("local", name), weight)

    @staticmethod
    def model(provider: str, model: str, kind: str, weight: int) -> SchedulingMetadata:
        """Calls of one model of a provider; kind is such as "chat" or "embedding"."""
        return SchedulingMetadata("model", ("model", provider, model, kind), weight)

    @staticmethod
    def custom_model(
        namespace: str, name: str, version: str, weight: int = 1
    ) -> SchedulingMetadata:
        """Calls of something that only the author knows."""
        return SchedulingMetadata(
            "custom_model", ("custom_model", namespace, name, version), weight
        )

    @property
    def group_key(self) -> str:
        """The identity as one text; two identities never have the same."""
        return ":".join(part.replace("%", "%25").replace(":", "%3A") for part in self.identity)


@runtime_checkable
class SupportsSchedulingMetadata(Protocol):
    """Anything that says itself how it shares; accepted wherever metadata is."""

    def get_scheduling_metadata(self) -> SchedulingMetadata: ...


MetadataSource = SchedulingMetadata | SupportsSchedulingMetadata


class SchedulingDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """What is declared about one task or column, as far as scheduling goes."""

    name: str
    slot: str | None = None  # async, thread or process; None: it takes no slot
    metadata: MetadataSource | None = None
    limit_keys: tuple[str, ...] = ()  # keyed limits that every one of its tasks needs
    endpoints: tuple[Endpoint, ...] = ()  # what it calls


def metadata_of(source: object) -> SchedulingMetadata:
    """The metadata that an object is or gives; SchedulingMetadataError otherwise."""
    if isinstance(source, SchedulingMetadata):
        return source
    name = type(source).__qualname__
    try:
        ask: Callable[[], object] | None = getattr(source, "get_scheduling_metadata", None)
        if isinstance(source, type) or not callable(ask):
            raise SchedulingMetadataError(
                SchedulingMetadataCode.NOT_METADATA,
                "metadata is a SchedulingMetadata or an object with get_scheduling_metadata(), got "
                f"{_shown(source)}.",
            )
        found = ask()
    except SchedulingMetadataError:
        raise
    except Exception as error:
        raise SchedulingMetadataError(
            SchedulingMetadataCode.SOURCE_FAILED,
            f"{name}.get_scheduling_metadata() raised {type(error).__name__}: "
            f"{_said(error).rstrip('.')}.",
        ) from error
    if not isinstance(found, SchedulingMetadata):
        raise SchedulingMetadataError(
            SchedulingMetadataCode.NOT_METADATA,
            f"{name}.get_scheduling_metadata() gives a SchedulingMetadata, got {_shown(found)}.",
        )
    return found


def metadata_or_fallback(
    source: object,
) -> tuple[SchedulingMetadata, SchedulingMetadataError | None]:
    """The metadata of a source, or what its error gives instead, with that error."""
    try:
        return metadata_of(source), None
    except SchedulingMetadataError as error:
        if error.fallback is None:
            raise
        instead = error.fallback
        fallback = SchedulingMetadata(
            instead.kind,  # type: ignore[arg-type]  # it is checked there
            instead.identity,
            instead.weight,
        )
        return fallback, error


def _shown(thing: object) -> str:
    try:
        return f"{thing!r:.200}"
    except Exception:  # its own code
        return f"an object of {type(thing).__qualname__} that cannot be shown"


def _said(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # its own code
        return "it cannot be shown"


def _check_kind(kind: object) -> None:
    if not isinstance(kind, str) or kind not in _PARTS:
        raise SchedulingMetadataError(
            SchedulingMetadataCode.BAD_KIND,
            "The kind of scheduling metadata is 'local', 'model' or 'custom_model', got "
            f"{kind!r:.200}.",
        )


def _check_identity(kind: str, identity: object) -> None:
    parts = _PARTS[kind]
    if not isinstance(identity, tuple) or len(identity) != len(parts) + 1 or identity[0] != kind:
        shape = ", ".join([repr(kind), *parts])
        raise SchedulingMetadataError(
            SchedulingMetadataCode.BAD_IDENTITY,
            f"The identity of {kind!r} metadata is the tuple ({shape}), got {identity!r:.200}.",
        )
    for part, name in zip(parts, identity[1:], strict=True):
        if (
            not isinstance(name, str)
            or not 1 <= len(name) <= NAME_LENGTH_MAX
            or not name.isprintable()
            or name != name.strip()
        ):
            raise SchedulingMetadataError(
                SchedulingMetadataCode.BAD_IDENTITY,
                f"The {part} of {kind!r} metadata is a text of 1 to {NAME_LENGTH_MAX} printable "
                f"characters without spaces around it, got {name!r:.200}.",
            )


def _check_weight(identity: tuple[str, ...], weight: object) -> None:
    if type(weight) is not int or not 1 <= weight <= WEIGHT_MAX:
        raise SchedulingMetadataError(
            SchedulingMetadataCode.BAD_WEIGHT,
            f"The weight of {identity!r:.200} is a whole number from 1 to {WEIGHT_MAX:,}, got "
            f"{weight!r:.200}.",
        )

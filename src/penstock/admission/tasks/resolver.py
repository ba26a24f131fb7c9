# SPDX-License-Identifier: Apache-2.0
"""Resolves the scheduling metadata of tasks: their group, weight, resources and provider.

All definitions of a run are resolved together, before anything is scheduled: what two of them say
about one endpoint is merged, and errors of several are reported in one message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Mapping
from enum import StrEnum
from urllib.parse import quote

import msgspec

from penstock.errors import (
    InternalError,
    SchedulingMetadataCode,
    SchedulingMetadataError,
    UsageError,
)
from penstock.model.job import NAME_LENGTH_MAX
from penstock.model.provider import Endpoint, RequestResourceKey, SeveralResources
from penstock.model.task import (
    SchedulerResourceRequest,
    SchedulingDefinition,
    SchedulingMetadata,
    TaskGroupSpec,
    metadata_or_fallback,
)
from penstock.model.views import Diagnostic
from penstock.sentences import counted

REMEMBERED_MAX = 8_192  # answers for jobs and for keys, each: some windows full
CONTRIBUTORS_NAMED = 8  # of a merged cap, in its sentence

DEFAULT = SchedulingMetadata()


class SchedulingNote(StrEnum):
    """What was decided in place of the author."""

    FALLBACK = "fallback"  # the metadata could not be given, but what to use instead
    WEIGHTS_MERGED = "weights_merged"  # one endpoint or identity, several numbers: the least
    NO_CAP = "no_cap"  # an endpoint without a cap weighs 1
    SEVERAL_ENDPOINTS = "several_endpoints"  # they count as a model of their own


class ResolvedTaskScheduling(msgspec.Struct, frozen=True):
    """The group, resources and provider of a task."""

    group: TaskGroupSpec
    resource_request: SchedulerResourceRequest
    request_resource_key: Hashable | None = None  # what it calls: one resource, or several
    part: str = ""  # of the group: definitions that share one take turns


class TaskSchedulingResolver:
    """Owns the answers for all definitions of one run. Knows neither order nor capacity.

    Raises:
        SchedulingMetadataError: some definitions cannot be scheduled; it names all of them.
    """

    def __init__(self, definitions: Iterable[SchedulingDefinition]) -> None:
        self._definitions: dict[str, SchedulingDefinition] = {}
        for definition in definitions:
            if definition.name in self._definitions:
                raise UsageError(f"Two definitions are named {definition.name!r}; rename one.")
            self._definitions[definition.name] = definition
        notes: set[Diagnostic] = set()
        metadata_by_name = _Metadata(self._definitions, notes).resolve()
        self._resolved = {
            name: ResolvedTaskScheduling(
                _group(metadata),
                _request(self._definitions[name], self._definitions[name].limit_keys),
                _gate(self._definitions[name].endpoints),
                name,
            )
            for name, metadata in metadata_by_name.items()
        }
        self._durable = {
            name: (_request(definition, ()), self._resolved[name].group.weight)
            for name, definition in self._definitions.items()
        }
        #: The weight of each definition that weighs more than 1.
        self.weights: Mapping[str, int] = {
            name: weight for name, (_, weight) in self._durable.items() if weight > 1
        }
        self._groups: dict[str, TaskGroupSpec] = {}
        self._jobs: dict[tuple[str, str], ResolvedTaskScheduling] = {}
        self._keyed: dict[tuple[str, tuple[str, ...]], ResolvedTaskScheduling] = {}
        self.diagnostics: tuple[Diagnostic, ...] = tuple(sorted(notes))

    def __repr__(self) -> str:
        return (
            f"<TaskSchedulingResolver {len(self._definitions)} definitions, "
            f"{len(self.diagnostics)} diagnostics>"
        )

    def resolve(self, name: str, limit_keys: Iterable[str] = ()) -> ResolvedTaskScheduling:
        """Return the group and needs of a task in memory; its keyed limits are resources, too."""
        resolved = self._resolved.get(name)
        if resolved is None:
            raise _unknown(name)
        keys = tuple(limit_keys)
        if not keys:
            return resolved
        found = self._keyed.get((name, keys))
        if found is None:
            definition = self._definitions[name]
            found = ResolvedTaskScheduling(
                resolved.group,
                _request(definition, (*definition.limit_keys, *keys)),
                resolved.request_resource_key,
                name,
            )
            if len(self._keyed) >= REMEMBERED_MAX:
                self._keyed.clear()
            self._keyed[name, keys] = found
        return found

    def for_job(self, task: str, group: str) -> ResolvedTaskScheduling:
        """Return the same for a durable job: its own group; its keyed limits hold in the store.

        A group with jobs of several tasks weighs as much as the heaviest that was seen.
        """
        found = self._jobs.get((task, group))
        if found is not None and found.group is self._groups[group]:
            return found
        durable = self._durable.get(task)
        if durable is None:
            raise _unknown(task)
        request, weight = durable
        if len(self._jobs) >= REMEMBERED_MAX:
            self._jobs.clear()
            self._groups.clear()
        spec = self._groups.get(group)
        if spec is None or spec.weight < weight:
            spec = self._groups[group] = TaskGroupSpec(group, weight)
        found = ResolvedTaskScheduling(spec, request, self._resolved[task].request_resource_key)
        self._jobs[task, group] = found
        return found


class _Metadata:
    """Merges the metadata of all definitions where they are about the same endpoint."""

    def __init__(
        self, definitions: Mapping[str, SchedulingDefinition], notes: set[Diagnostic]
    ) -> None:
        self._definitions = definitions
        self._notes = notes
        self._claims: dict[tuple[str, ...], dict[str, int]] = {}  # who says which weight
        self._refused: dict[str, SchedulingMetadataError] = {}

    def resolve(self) -> dict[str, SchedulingMetadata]:
        for definition in self._definitions.values():
            for endpoint in definition.endpoints:
                if endpoint.cap is not None:
                    who = endpoint.alias or endpoint.resource.provider
                    self._claim(_model(endpoint.resource), who, endpoint.cap)
        metadata_by_name: dict[str, SchedulingMetadata] = {}
        for name, definition in self._definitions.items():
            try:
                metadata_by_name[name] = self._of(definition)
            except SchedulingMetadataError as error:
                self._refused[name] = error
        if self._refused:
            raise _refusal(self._refused)
        return {
            name: msgspec.structs.replace(metadata, weight=self._least(metadata))
            for name, metadata in metadata_by_name.items()
        }

    def _of(self, definition: SchedulingDefinition) -> SchedulingMetadata:
        """1. What the author says. 2. What the endpoints say. 3. The default."""
        if definition.metadata is None and definition.endpoints:
            return self._of_endpoints(definition.name, definition.endpoints)
        metadata = DEFAULT
        if definition.metadata is not None:
            metadata = self._declared(definition.name, definition.metadata)
        self._claim(_shared(metadata), definition.name, metadata.weight)
        return metadata

    def _declared(self, name: str, source: object) -> SchedulingMetadata:
        metadata, error = metadata_or_fallback(source)
        if error is not None:
            self._note(
                SchedulingNote.FALLBACK,
                name,
                f"{name!r} is scheduled as {metadata.group_key!r} instead ({error.code}): "
                f"{error.message}",
            )
            for about, text in error.diagnostics.items():
                self._note(error.code, about, text)
        return metadata

    def _of_endpoints(self, name: str, endpoints: Iterable[Endpoint]) -> SchedulingMetadata:
        resources = sorted({endpoint.resource for endpoint in endpoints})
        caps = [self._cap(name, resource) for resource in resources]
        models = [
            SchedulingMetadata.model(*resource, weight=cap)
            for resource, cap in zip(resources, caps, strict=True)
        ]
        if len(models) == 1:
            return models[0]
        metadata = SchedulingMetadata.custom_model(
            "endpoints", _joined(resources), "1", weight=min(caps)
        )
        self._note(
            SchedulingNote.SEVERAL_ENDPOINTS,
            name,
            f"{name!r} calls {len(models)} endpoints, so it is scheduled as "
            f"{metadata.group_key!r}, and held back while any of them has no room.",
        )
        return metadata

    def _cap(self, name: str, resource: RequestResourceKey) -> int:
        claims = self._claims.get(_model(resource))
        if claims:
            return min(claims.values())
        self._note(
            SchedulingNote.NO_CAP,
            name,
            f"Model {resource.model!r} of provider {resource.provider!r} has no cap, so {name!r} "
            "weighs 1.",
        )
        return 1

    def _claim(self, shared: tuple[str, ...], who: str, weight: int) -> None:
        claims = self._claims.setdefault(shared, {})
        claims[who] = min(weight, claims.get(who, weight))

    def _least(self, metadata: SchedulingMetadata) -> int:
        claims = self._claims.get(_shared(metadata))
        if not claims:
            return metadata.weight
        least = min(claims.values())
        if len(set(claims.values())) > 1:
            listed = sorted(claims.items())
            named = ", ".join(f"{weight} by {who!r}" for who, weight in listed[:CONTRIBUTORS_NAMED])
            rest = len(listed) - CONTRIBUTORS_NAMED
            about = ":".join(_shared(metadata))
            self._note(
                SchedulingNote.WEIGHTS_MERGED,
                about,
                f"The weight of {about!r} is given as {named}"
                f"{f' and {rest} more' if rest > 0 else ''}; the smallest is used: {least}.",
            )
        return least

    def _note(self, code: SchedulingNote | SchedulingMetadataCode, about: str, text: str) -> None:
        self._notes.add(Diagnostic(code, about, text))


def _joined(resources: Iterable[RequestResourceKey]) -> str:
    """Return one name for several resources, the same in every run."""
    name = "+".join("/".join(quote(part, safe=" :@") for part in key) for key in resources)
    if len(name) > NAME_LENGTH_MAX:
        return hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
    return name


def _shared(metadata: SchedulingMetadata) -> tuple[str, ...]:
    """Return what has one weight: a model over all its generation kinds, else the identity."""
    return metadata.identity[:3] if metadata.kind == "model" else metadata.identity


def _model(resource: RequestResourceKey) -> tuple[str, ...]:
    return ("model", *resource.provider_model)


def _group(metadata: SchedulingMetadata) -> TaskGroupSpec:
    """Tasks of a model beyond its cap would only wait for it: they let others go first."""
    limit = metadata.weight if metadata.kind == "model" else None
    return TaskGroupSpec(metadata.group_key, metadata.weight, limit)


def _request(
    definition: SchedulingDefinition, limit_keys: Iterable[str]
) -> SchedulerResourceRequest:
    amounts = dict.fromkeys(limit_keys, 1)
    if definition.slot is not None:
        amounts[definition.slot] = 1
    return SchedulerResourceRequest(amounts)


def _gate(endpoints: Iterable[Endpoint]) -> RequestResourceKey | SeveralResources | None:
    resources = sorted({endpoint.resource for endpoint in endpoints})
    if len(resources) > 1:
        return SeveralResources(tuple(resources))
    return resources[0] if resources else None


def _refusal(refused: Mapping[str, SchedulingMetadataError]) -> SchedulingMetadataError:
    listed = sorted(refused.items())
    errors = "; ".join(f"{name!r}: {error.message.rstrip('.')}" for name, error in listed)
    return SchedulingMetadataError(
        listed[0][1].code,
        f"Nothing is scheduled, since {counted(len(listed), 'definition')} cannot be: {errors}.",
        diagnostics={name: error.message for name, error in listed},
    )


def _unknown(name: str) -> InternalError:
    return InternalError(f"Nothing named {name!r} was defined when this run began.")

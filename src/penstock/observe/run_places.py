# SPDX-License-Identifier: Apache-2.0
"""Which workers of a run stood at the same place, one after the other?

Who replaces a worker that died has its place, and with it its slots and its part of every limit: of
those the last counts, and what they did is added up. A worker that runs suspects alone has the part
of a place besides the one whose it is, and limits nobody.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import msgspec

from penstock.model.job import WorkerId
from penstock.model.run import ModelFigures, RunDocument, read_document
from penstock.model.run_part import RunPart


class PlaceOfRun(msgspec.Struct, frozen=True):
    """One place, with what those said who had it."""

    documents: tuple[RunDocument, ...]  # the last is that of whoever it belongs to in the end

    @property
    def last(self) -> RunDocument:
        return self.documents[-1]

    @property
    def serving(self) -> tuple[RunDocument, ...]:
        """Without those that ran suspects alone, unless there was nobody else."""
        return tuple(one for one in self.documents if not one.solo) or self.documents

    def models(self) -> list[ModelFigures]:
        """The figures of each model at this place."""
        found: dict[tuple[str, str], list[ModelFigures]] = {}
        for one in (one for document in self.documents for one in document.models):
            found.setdefault((one.provider, one.model), []).append(one)
        return [_succession(same) for same in found.values()]


def read_parts(parts: Iterable[RunPart]) -> list[tuple[RunPart, RunDocument]]:
    """Those parts that this version can read."""
    return [(part, said) for part in parts if (said := read_document(part.document)) is not None]


def places_of(read: Iterable[tuple[RunPart, RunDocument]]) -> tuple[PlaceOfRun, ...]:
    """The places of a run, each with those who had it."""
    found: dict[Hashable, list[RunDocument]] = {}
    for part, document in read:
        key = part.worker if document.place is None else document.place
        found.setdefault(key, []).append(document)
    order = (sorted(said, key=lambda one: (not one.solo, one.told_at)) for said in found.values())
    return tuple(PlaceOfRun(tuple(said)) for said in order)


def name_in(part: RunPart, document: RunDocument) -> WorkerId:
    """Under which name a worker was known when it last told of its run."""
    return WorkerId(document.worker) or part.worker


def _succession(found: Sequence[ModelFigures]) -> ModelFigures:
    """The same model at one place: what was sent is added up, of limits the last counts."""
    ceilings = [one.ceiling for one in found if one.ceiling is not None]
    return msgspec.structs.replace(
        found[-1],
        domains=tuple(sorted({domain for one in found for domain in one.domains})),
        requests=sum(one.requests for one in found),
        refused=sum(one.refused for one in found),
        failed=sum(one.failed for one in found),
        tokens=sum(one.tokens for one in found),
        limit_reached=max(one.limit_reached for one in found),
        in_flight_max=max(one.in_flight_max for one in found),
        waiting_max=max(one.waiting_max for one in found),
        ceiling=ceilings[-1] if ceilings else None,
    )

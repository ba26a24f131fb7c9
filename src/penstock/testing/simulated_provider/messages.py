# SPDX-License-Identifier: Apache-2.0
"""Requests to a simulated provider, and the replies that it sends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """One call as the provider sees it when it arrives."""

    number: int  # from 1, in the order of arrival
    at_seconds: float  # since the first call
    method: str
    path: str  # without the query
    query: str
    headers: Mapping[str, str]  # names in lower case
    body: bytes
    in_flight: int  # other calls that are being served

    def json(self) -> Any:  # noqa: ANN401 (whatever a client sent)
        """The body as JSON; None if it is none."""
        try:
            return msgspec.json.decode(self.body)
        except msgspec.DecodeError:
            return None


class Ending(StrEnum):
    """What happens when all parts of a body are sent."""

    COMPLETE = "complete"
    RESET = "reset"  # the connection is reset, and more was promised
    HANG = "hang"  # nothing more comes, until the client leaves


class Part(msgspec.Struct, frozen=True, gc=False):
    """A piece of a body, and how long after the one before it comes."""

    data: bytes
    wait_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """How a call is answered."""

    #: None: the connection ends, or hangs, before any answer.
    status: int | None = field(default=200, kw_only=False)
    headers: tuple[tuple[str, str], ...] = ()
    parts: Iterable[Part] = ()  # may be endless
    wait_seconds: float = 0.0  # until the first byte
    ending: Ending = Ending.COMPLETE
    length: int | None = field(default=None)  # of the whole body; None: it comes in chunks
    tokens: int = 0  # that it used

    @classmethod
    def of(
        cls,
        content: bytes | Mapping[str, Any],
        *,
        status: int = 200,
        headers: Iterable[tuple[str, str]] = (),
        wait_seconds: float = 0.0,
        tokens: int = 0,
    ) -> Reply:
        """A body in one piece; a mapping becomes JSON."""
        if isinstance(content, bytes):
            data, kind = content, "application/octet-stream"
        else:
            data, kind = msgspec.json.encode(content), "application/json"
        typed = tuple(headers)
        if not any(name.lower() == "content-type" for name, _ in typed):
            typed = (("content-type", kind), *typed)
        return cls(
            status=status,
            headers=typed,
            parts=(Part(data),),
            wait_seconds=wait_seconds,
            length=len(data),
            tokens=tokens,
        )


def bytewise(parts: Iterable[Part], wait_seconds: float) -> Iterator[Part]:
    """The same body, one byte at a time."""
    for part in parts:
        for index in range(len(part.data)):
            yield Part(part.data[index : index + 1], wait_seconds)


def first_half(parts: Iterable[Part]) -> tuple[Part, ...]:
    """What is sent before a body breaks off."""
    whole = tuple(parts)
    if len(whole) == 1:
        return (Part(whole[0].data[: len(whole[0].data) // 2], whole[0].wait_seconds),)
    return whole[: len(whole) // 2]

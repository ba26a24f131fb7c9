# SPDX-License-Identifier: Apache-2.0
"""The protocol between a worker and its task processes: a job goes there, its end comes back.

Messages are JSON, in frames with their length in front. Nothing is pickled: the other process has
imported the same app, and looks the task up by its name.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Mapping

import msgspec

from penstock.definitions.context import JobInfo
from penstock.model.job import NewJob
from penstock.retry.classify import FailureClass

_LENGTH = struct.Struct("<Q")
_CHUNK = 1024 * 1024


class TaskOrder(msgspec.Struct, frozen=True, kw_only=True, tag="order"):
    """The app that a task process imports, and how it logs."""

    app: str | None
    folder: str
    path: tuple[str, ...]  # where modules are looked for
    log_level: str = "info"
    log_format: str = "text"


class RunJob(msgspec.Struct, frozen=True, tag="run"):
    """One body to run; the number comes back with every answer to it."""

    job: JobInfo
    payload: str
    preflight: Mapping[str, str] = {}  # what preflights have for it, as strict JSON text
    order: str | None = None  # what its kind sends along, as JSON text: slices, or its upstream
    number: int = 0


class Began(msgspec.Struct, frozen=True, tag="began"):
    """The app is there and the body begins: its time counts from now on."""


class Returned(msgspec.Struct, frozen=True, tag="returned"):
    """The body has returned: its result as JSON text, or why it is none, and what it enqueued."""

    result: str | None = None
    problem: str | None = None
    enqueued: tuple[NewJob, ...] = ()


class Raised(msgspec.Struct, frozen=True, tag="raised"):
    """The body has raised."""

    kind: str
    message: str
    where: str | None = None
    traceback: str | None = None
    category: FailureClass = FailureClass.UNKNOWN
    wait_seconds: float | None = None
    refused_at: str | None = None


class Skipped(msgspec.Struct, frozen=True, tag="skipped"):
    """The body has raised `Skip`."""

    reason: str


class BadPayload(msgspec.Struct, frozen=True, tag="payload"):
    """The arguments cannot be rebuilt."""

    message: str


class NotLoaded(msgspec.Struct, frozen=True, tag="not_loaded"):
    """The app cannot be imported there, or is not in what was imported."""

    message: str
    category: FailureClass


ToTask = TaskOrder | RunJob
FromTask = Began | Returned | Raised | Skipped | BadPayload | NotLoaded


class Answer(msgspec.Struct, frozen=True):
    """An answer, and to which body: a process that forked may have a double that answers too."""

    number: int
    what: FromTask
    recycle: str | None = None  # what the body has changed, so that no other may run there


_encode = msgspec.json.Encoder().encode
decode_to_task = msgspec.json.Decoder(ToTask).decode
decode_from_task = msgspec.json.Decoder(Answer).decode


def send(channel: socket.socket, message: ToTask | Answer) -> None:
    """Write one frame; OSError if nobody listens."""
    data = _encode(message)
    channel.sendall(_LENGTH.pack(len(data)) + data)


def receive(channel: socket.socket, there: Callable[[], bool] = lambda: True) -> bytes | None:
    """Read one frame; None if the other side is gone.

    `there` waits until something can be read; False if nobody is there who could write.
    """
    head = _read(channel, _LENGTH.size, there)
    return None if head is None else _read(channel, _LENGTH.unpack(head)[0], there)


def _read(channel: socket.socket, size: int, there: Callable[[], bool]) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        if not there():
            return None
        try:
            part = channel.recv(min(size - len(data), _CHUNK))
        except OSError:
            return None
        if not part:
            return None
        data += part
    return bytes(data)

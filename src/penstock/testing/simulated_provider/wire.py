# SPDX-License-Identifier: Apache-2.0
"""How much of HTTP/1.1 does a simulated provider on loopback need?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

HEAD_BYTES_MAX = 64 * 1024
BODY_BYTES_MAX = 64 * 1024 * 1024


class MalformedRequest(Exception):
    """What came is no request that we can read."""


@dataclass(frozen=True, slots=True)
class RawRequest:
    """One request, whole."""

    method: str
    target: str
    headers: Mapping[str, str]  # names in lower case
    body: bytes


class Incoming:
    """Bytes of a connection; gives whole requests."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def take(self) -> RawRequest | None:
        """The next request; None until all of it is there."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > HEAD_BYTES_MAX:
                raise MalformedRequest("the head is too long")
            return None
        line, *fields = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
        words = line.split(" ")
        if len(words) != 3:
            raise MalformedRequest("the first line is none")
        headers = {}
        for field in fields:
            name, _, value = field.partition(":")
            headers[name.strip().lower()] = value.strip()
        found = self._body(end + 4, headers)
        if found is None:
            return None
        body, after = found
        del self._buffer[:after]
        return RawRequest(words[0], words[1], headers, body)

    def _body(self, start: int, headers: Mapping[str, str]) -> tuple[bytes, int] | None:
        """The body and where it ends; None until all of it is there."""
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return self._chunks(start)
        text = headers.get("content-length", "0")
        if not text.isdecimal() or int(text) > BODY_BYTES_MAX:
            raise MalformedRequest("the length of the body is none")
        end = start + int(text)
        return None if len(self._buffer) < end else (bytes(self._buffer[start:end]), end)

    def _chunks(self, at: int) -> tuple[bytes, int] | None:
        body = bytearray()
        while True:
            line_end = self._buffer.find(b"\r\n", at)
            if line_end < 0:
                return None
            try:
                size = int(bytes(self._buffer[at:line_end]).partition(b";")[0], 16)
            except ValueError:
                raise MalformedRequest("the length of a chunk is none") from None
            data, at = line_end + 2, line_end + 2 + size + 2
            if len(body) + size > BODY_BYTES_MAX:
                raise MalformedRequest("the body is too long")
            if len(self._buffer) < at:
                return None
            if size == 0:
                return bytes(body), at
            body += self._buffer[data : data + size]


def head(status: int, headers: Iterable[tuple[str, str]]) -> bytes:
    """The first lines of a reply."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8")


def chunk(data: bytes) -> bytes:
    """A piece of a body of unknown length; an empty one ends it."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"

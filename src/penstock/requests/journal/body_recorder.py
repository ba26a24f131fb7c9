# SPDX-License-Identifier: Apache-2.0
"""Records reply bodies, compressed, while they are passed on, and replays them."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator

import msgspec

from penstock.model.journal import BODY_BYTES_MAX

VALUE_LENGTH_MAX = 1_000  # characters
COUNT_MAX = 64

#: What programs read of a reply besides its body: what the body is, where a result will be or comes
#: from, how long to wait, and what to tell the provider's support.
_NAMES = frozenset(
    {
        "apim-request-id",
        "azure-asyncoperation",
        "cf-ray",
        "content-disposition",
        "content-encoding",  # of a body that was not decoded on its way
        "content-language",
        "content-location",
        "content-range",
        "content-type",
        "date",
        "etag",
        "last-modified",
        "link",
        "location",
        "openai-model",
        "openai-processing-ms",
        "openai-version",
        "operation-location",
        "request-id",
        "retry-after",
        "retry-after-ms",
        "x-amzn-requestid",
        "x-goog-request-id",
        "x-ms-request-id",
        "x-request-id",
    }
)
_BEGINNINGS = ("x-ratelimit-", "anthropic-ratelimit-")


def safe_headers(raw: Iterable[tuple[bytes, bytes]]) -> tuple[tuple[str, str], ...]:
    """Those that may be kept, with names in lower case."""
    kept: list[tuple[str, str]] = []
    for name_bytes, value in raw:
        name = name_bytes.decode("latin-1").lower()
        if name in _NAMES or name.startswith(_BEGINNINGS):
            kept.append((name, value.decode("latin-1")[:VALUE_LENGTH_MAX]))
    return tuple(kept[:COUNT_MAX])


LEVEL = 1  # answers are short texts, and the loop waits for it
PIECE_BYTES = 64 * 1024  # decompressed at once
TAIL_BYTES = 256  # of a body, to see how it ends

#: How the streams of known APIs say that nothing more comes, whatever the connection does. It
#: begins a line, which nothing that a model writes can: line ends in a JSON string are escaped.
_LAST_EVENT = re.compile(
    rb"[\r\n]data: ?(?:\[DONE\]|"
    rb'\{[^\r\n]{0,100}?"type": ?"(?:message_stop|response\.(?:completed|incomplete|failed))")'
)

#: Media types of one JSON document; lines of JSON are of others.
_DOCUMENT = re.compile(r"\s*application/(?:[\w.-]+\+)?json\s*(?:;|$)", re.IGNORECASE)
_BEFORE = b"\n"  # what a body begins with begins a line
_skip = msgspec.json.Decoder(msgspec.Raw).decode


class Recording:
    """Owns the compressed pieces of one body; none if it is too large."""

    __slots__ = ("_compress", "_has_last", "_kept", "_size", "_tail")

    def __init__(self) -> None:
        self._compress = zlib.compressobj(LEVEL)
        self._kept: list[bytes] | None = []
        self._size = 0
        self._tail = _BEFORE
        self._has_last = False  # the last event of a stream has begun

    def add(self, piece: bytes) -> None:
        seen = self._tail + piece
        self._has_last = self._has_last or _LAST_EVENT.search(seen) is not None
        self._tail = seen[-TAIL_BYTES:]
        if self._kept is not None:
            self._keep(self._compress.compress(piece))

    def finish(self) -> bytes | None:
        """The whole body, compressed; None: it is too large to be kept."""
        self._keep(self._compress.flush())
        return None if self._kept is None else b"".join(self._kept)

    @property
    def has_bytes(self) -> bool:
        """True if anything has come at all."""
        return self._tail != _BEFORE

    @property
    def has_said_all(self) -> bool:
        """True if a stream of events has sent its last one, to the end of its line."""
        return self._has_last and self._tail.endswith((b"\n", b"\r"))

    def _keep(self, compressed: bytes) -> None:
        self._size += len(compressed)
        if self._size > BODY_BYTES_MAX:
            self._kept = None
        elif self._kept is not None and compressed:
            self._kept.append(compressed)


def played(body: bytes) -> Iterator[bytes]:
    """A recorded body again, in pieces of bounded size."""
    inflate = zlib.decompressobj()
    rest = body
    while not inflate.eof:
        piece = inflate.decompress(rest, PIECE_BYTES)
        rest = inflate.unconsumed_tail
        if not piece and not rest:
            return
        if piece:
            yield piece


def breaks_off(body: bytes, content_type: str) -> bool:
    """Return whether a recorded body is a truncated JSON document.

    Where a connection's end is the body's end, a reply that was cut looks whole. What is no JSON
    at all, or more than one document, is somebody else's to judge.
    """
    if _DOCUMENT.match(content_type) is None:
        return False
    try:
        _skip(b"".join(played(body)))
    except msgspec.DecodeError as error:
        return "truncated" in str(error)
    except RecursionError:  # nested so deep that nobody can tell
        return False
    return False

# SPDX-License-Identifier: Apache-2.0
"""How is a body decoded without letting a small one become a huge one?

The transport decodes itself, in bounded pieces, and counts what comes out: libraries decode in
pieces too but join them without a limit.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Protocol

from penstock.errors import ReplyRefused, RequestError

PIECE_BYTES = 256 * 1024  # decoded at once
ACCEPTED = "gzip, deflate"
_LAYERS_MAX = 2  # encodings over each other
_GZIP_MAGIC = b"\x1f\x8b"


class CannotDecode(RequestError):
    """A body is not what its Content-Encoding says: broken on the way, or by the provider."""


class Decoder(Protocol):
    """One encoding of one body."""

    def decode(self, chunk: bytes) -> Iterator[bytes]:
        """What comes out, in pieces of bounded size."""
        ...

    def finish(self) -> None:
        """There is no more; CannotDecode if there should be."""
        ...


class _Inflated:
    """gzip, zlib or raw deflate."""

    __slots__ = ("_began", "_inflate", "_is_gzip")

    def __init__(self, *, is_gzip: bool) -> None:
        self._is_gzip = is_gzip
        self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 16 if is_gzip else zlib.MAX_WBITS)
        self._began = False

    def decode(self, chunk: bytes) -> Iterator[bytes]:
        while chunk:
            if self._inflate.eof:
                if not (self._is_gzip and chunk.startswith(_GZIP_MAGIC)):
                    return  # whatever follows belongs to nothing
                self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 16)  # another member
            try:
                piece = self._inflate.decompress(chunk, PIECE_BYTES)
            except zlib.error as error:
                if self._began or self._is_gzip:
                    raise CannotDecode(f"A reply's body cannot be decompressed: {error}.") from None
                self._began = True  # some servers send deflate without its header
                self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
                continue
            self._began = True
            chunk = self._inflate.unconsumed_tail or self._inflate.unused_data
            while piece:
                yield piece
                # All of the input may be taken while some of the output is still held back.
                full = len(piece) == PIECE_BYTES and not chunk
                piece = self._inflate.decompress(b"", PIECE_BYTES) if full else b""

    def finish(self) -> None:
        if self._began and not self._inflate.eof:
            raise CannotDecode("A reply's compressed body ends in the middle.")


class _Layered:
    """One encoding over another."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, outer: Decoder, inner: Decoder) -> None:
        self._outer = outer
        self._inner = inner

    def decode(self, chunk: bytes) -> Iterator[bytes]:
        for piece in self._outer.decode(chunk):
            yield from self._inner.decode(piece)

    def finish(self) -> None:
        self._outer.finish()
        self._inner.finish()


def decoder_for(encoding: str) -> Decoder | None:
    """What decodes a body with this Content-Encoding; None: nothing does, it stays as it is.

    Raises:
        ReplyRefused: libraries would decode it without a limit, and we had not asked for it.
    """
    names = [name.strip() for name in encoding.lower().split(",")]
    names = [name for name in names if name not in ("", "identity")]
    if any(name in ("br", "zstd") for name in names) or len(names) > _LAYERS_MAX:
        raise ReplyRefused(
            f"A reply came as {encoding[:40]!r} although {ACCEPTED!r} was asked for; its provider "
            "must honour Accept-Encoding."
        )
    decoders: list[Decoder] = []
    for name in reversed(names):
        if name in ("gzip", "x-gzip", "deflate"):
            decoders.append(_Inflated(is_gzip=name != "deflate"))
        else:
            return None
    if len(decoders) == 2:
        return _Layered(*decoders)
    return decoders[0] if decoders else None

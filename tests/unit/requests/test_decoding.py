# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ReplyRefused
from penstock.requests.exchange import PIECE_BYTES, CannotDecode, decoder_for

TEXT = bytes(range(256)) * 5_000


def decoded(encoding: str, data: bytes, step: int = 1_000) -> bytes:
    decoder = decoder_for(encoding)
    assert decoder is not None
    pieces = [
        piece
        for start in range(0, len(data), step)
        for piece in decoder.decode(data[start : start + step])
    ]
    assert all(len(piece) <= PIECE_BYTES for piece in pieces)
    decoder.finish()
    return b"".join(pieces)


def raw_deflate(data: bytes) -> bytes:
    deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return deflate.compress(data) + deflate.flush()


@given(st.binary(max_size=2_000), st.integers(1, 3_000))
def test_what_was_encoded_comes_back(data: bytes, step: int) -> None:
    assert decoded("gzip", gzip.compress(data), step) == data
    assert decoded("deflate", zlib.compress(data), step) == data
    assert decoded("deflate, gzip", gzip.compress(zlib.compress(data)), step) == data


@pytest.mark.parametrize("step", [100, 1_000_000])
def test_large_bodies_come_back_in_bounded_pieces(step: int) -> None:
    assert decoded("gzip", gzip.compress(TEXT), step) == TEXT
    assert decoded("GZIP", gzip.compress(b"\x00" * 5_000_000), step) == b"\x00" * 5_000_000
    assert decoded("deflate", raw_deflate(TEXT), step) == TEXT
    assert decoded("gzip", gzip.compress(TEXT) + gzip.compress(b"more"), step) == TEXT + b"more"


def test_rubbish_after_a_body_is_left_out() -> None:
    assert decoded("gzip", gzip.compress(b"abc") + b"\x00\x00\x00") == b"abc"
    assert decoded("deflate", zlib.compress(b"abc") + b"xyz") == b"abc"


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_body_that_is_cut_off_is_no_body(encoding: str) -> None:
    data = gzip.compress(TEXT) if encoding == "gzip" else zlib.compress(TEXT)

    with pytest.raises(CannotDecode):
        decoded(encoding, data[:-20])


@pytest.mark.parametrize(
    "data",
    [b"not gzip at all", gzip.compress(TEXT)[:50] + b"x" * 50],
    ids=["from the start", "in the middle"],
)
def test_a_body_that_is_broken_is_no_body(data: bytes) -> None:
    with pytest.raises(CannotDecode):
        decoded("gzip", data)


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, br", "gzip, gzip, gzip"])
def test_an_encoding_that_nobody_asked_for_is_refused(encoding: str) -> None:
    with pytest.raises(ReplyRefused):
        decoder_for(encoding)


@pytest.mark.parametrize("encoding", ["", "identity", "utf-8", "aws-chunked"])
def test_what_is_no_compression_stays_as_it_is(encoding: str) -> None:
    assert decoder_for(encoding) is None

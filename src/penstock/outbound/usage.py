# SPDX-License-Identifier: Apache-2.0
"""How many tokens will a request need, and how many did it?

Both are read without holding bodies: of a request a few fields, of a reply its beginning and its
end, where `usage` stands in JSON and in the last events of a stream. A quote inside a JSON string
is escaped, so what a model writes cannot look like a usage; the arguments of a tool can, so of one
JSON document only its own usage counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from penstock.errors import UsageError

BYTES_PER_TOKEN = 4  # of English text and of JSON around it
PROMPT_TOKENS_MAX = 100_000  # an estimate; images in a body are not read as text
TOKENS_MAX = 10**9  # more than this is no count
HEAD_BYTES = 4_096
TAIL_BYTES = 16_384

_USAGE = re.compile(rb'"usage"\s*:\s*(?=\{)')
_LAST_OF_DOCUMENT = re.compile(rb"[^{}\[\]]*\}\s*")  # what may follow the usage of a document


class TokensUsed(NamedTuple):
    """What was read, and what was written."""

    input: int
    output: int


class Asked(msgspec.Struct, frozen=True, gc=False):
    """What a request's body says about itself; values of other types are as good as none."""

    model: object = None
    max_tokens: object = None
    max_completion_tokens: object = None
    max_output_tokens: object = None
    n: object = None  # how many answers it wants, each of so many tokens

    @property
    def output_tokens(self) -> int | None:
        """The most that it may answer; None: it does not say."""
        for value in (self.max_completion_tokens, self.max_output_tokens, self.max_tokens):
            if (count := _count(value)) is not None:
                return min(count * max(_count(self.n) or 1, 1), TOKENS_MAX)
        return None


class _Usage(msgspec.Struct, frozen=True, gc=False):
    total_tokens: object = None
    prompt_tokens: object = None
    completion_tokens: object = None
    input_tokens: object = None
    output_tokens: object = None
    cache_creation_input_tokens: object = None
    cache_read_input_tokens: object = None


class _Document(msgspec.Struct, frozen=True, gc=False):
    usage: _Usage | None = None


#: Of a reply's usage, for money: whatever was read. What is read from a cache costs less; it is
#: counted in full, as some providers do themselves.
_INPUT = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
_FOR_LIMITS = frozenset(_Usage.__struct_fields__) - {"cache_read_input_tokens"}  # of rates

_NOTHING_ASKED = Asked()
_asked = msgspec.json.Decoder(Asked)
_usage = msgspec.json.Decoder(_Usage)
_document = msgspec.json.Decoder(_Document)


def check_tokens(what: str, tokens: object) -> None:
    """Refuse what is no count; budgets would never recover from it."""
    if _count(tokens) is None:
        raise UsageError(
            f"{what} is a whole number of tokens from 0 to {TOKENS_MAX:,}, got {tokens!r:.200}."
        )


def read_request(body: bytes | None) -> Asked:
    """The few fields that matter of a JSON body; nothing of any other."""
    if not body or body.lstrip()[:1] != b"{":
        return _NOTHING_ASKED
    try:
        return _asked.decode(body)
    except msgspec.DecodeError:
        return _NOTHING_ASKED


class TokenEstimate:
    """Guesses what a request will need; learns what answers cost where requests do not say."""

    __slots__ = ("_mean_output",)

    def __init__(self) -> None:
        self._mean_output = 0.0

    def of(self, body: bytes | None, asked: Asked) -> int:
        """Tokens of the prompt, and the most that may be answered."""
        return sum(self.parts(body, asked))

    def parts(self, body: bytes | None, asked: Asked) -> TokensUsed:
        """The same, one by one."""
        prompt = min(len(body or b"") // BYTES_PER_TOKEN, PROMPT_TOKENS_MAX)
        output = asked.output_tokens
        return TokensUsed(prompt, int(self._mean_output) if output is None else output)

    def learn(self, body_bytes: int, used: int) -> None:
        """A reply told its usage."""
        output = max(0, used - min(body_bytes // BYTES_PER_TOKEN, PROMPT_TOKENS_MAX))
        self._mean_output += 0.1 * (output - self._mean_output)


class UsageReader:
    """Keeps the beginning and the end of a reply, and finds the usage in them."""

    __slots__ = ("_head", "_tail")

    def __init__(self) -> None:
        self._head = b""
        self._tail = b""

    def feed(self, piece: bytes) -> None:
        if len(self._head) < HEAD_BYTES:
            self._head += piece[: HEAD_BYTES - len(self._head)]
        self._tail = piece[-TAIL_BYTES:] if len(piece) >= TAIL_BYTES else self._tail + piece
        if len(self._tail) > 2 * TAIL_BYTES:
            self._tail = self._tail[-TAIL_BYTES:]

    def tokens(self) -> int | None:
        """What the reply counts; None: nothing that can be read."""
        most = self._most()
        if "total_tokens" in most:
            return most["total_tokens"]
        counted = [count for name, count in most.items() if name in _FOR_LIMITS]
        return sum(counted) if counted else None

    def used(self) -> TokensUsed | None:
        """The same, one by one, for money; None: nothing that can be read."""
        most = self._most()
        if not most:
            return None
        output = most.get("completion_tokens", most.get("output_tokens", 0))
        read = most.get("prompt_tokens")
        if read is None:
            read = sum(most.get(name, 0) for name in _INPUT)
        if not read and not output:  # only their sum is told: the dearer half is not known
            read = most.get("total_tokens", 0)
        return TokensUsed(read, output)

    def _most(self) -> dict[str, int]:
        most: dict[str, int] = {}
        for usage in self._usages():
            for field in usage.__struct_fields__:
                count = _count(getattr(usage, field))
                if count is not None:
                    most[field] = max(count, most.get(field, 0))
        return most

    def _usages(self) -> list[_Usage]:
        """All of a stream; of a document its own, if it can be told from what is inside."""
        head, tail = self._head, self._tail
        if head.lstrip()[:1] == b"{":
            own = _whole(tail) if tail.startswith(head) else _last(tail)
            if own is not None:
                return [own]
        return [*_usages(head), *_usages(tail)]


def _whole(document: bytes) -> _Usage | None:
    try:
        return _document.decode(document).usage
    except msgspec.DecodeError:
        return None  # lines of JSON, or cut off


def _last(tail: bytes) -> _Usage | None:
    """The usage after which a document only ends."""
    start = tail.rfind(b'"usage"')
    found = _USAGE.match(tail, max(start, 0))
    end = None if found is None else _object_end(tail, found.end())
    if end is None or _LAST_OF_DOCUMENT.fullmatch(tail, end) is None:
        return None
    return next(_usages(tail[start:]), None)


def _usages(part: bytes) -> Iterator[_Usage]:
    for found in _USAGE.finditer(part):
        end = _object_end(part, found.end())
        if end is None:
            continue
        try:
            yield _usage.decode(part[found.end() : end])
        except msgspec.DecodeError:
            continue


def _object_end(part: bytes, start: int) -> int | None:
    """Where a JSON object ends whose strings hold no braces; None: it is cut off."""
    depth = 0
    for index in range(start, len(part)):
        byte = part[index]
        if byte == 0x7B:
            depth += 1
        elif byte == 0x7D:
            depth -= 1
            if not depth:
                return index + 1
    return None


def _count(value: object) -> int | None:
    if type(value) is int and 0 <= value <= TOKENS_MAX:
        return value
    return None

# SPDX-License-Identifier: Apache-2.0
"""Token usage: estimates of what a request will need, and what its reply reports.

Both are read without keeping bodies: of a request a few fields, of a reply its beginning and its
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
FILES_TOKENS_MAX = 100_000  # of images and files in one body, whose bytes are no text
TOKENS_MAX = 10**9  # more than this is no count
REPORTED_TOKENS_MAX = 10**8  # of a reply; more is not credible
HEAD_BYTES = 4_096
TAIL_BYTES = 16_384
USAGE_BYTES_MAX = 4_096  # of one usage, with all its details

#: How clients say that a string of JSON is a file.
_FILE_SIGNS = (b"base64", b"inlineData", b"inline_data")
FILE_BYTES_MIN = 4_096  # a shorter string without a space may be anything

#: What a decoder raises: it is no JSON, no text, or nested without end.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_USAGE = re.compile(rb'"usage"\s*:\s*(?=\{)')
_BRACE = re.compile(rb"[{}]")
_LAST_OF_DOCUMENT = re.compile(rb"[^{}\[\]]*\}\s*")  # what may follow the usage of a document


class TokensUsed(NamedTuple):
    """Input and output tokens."""

    input: int
    output: int


class ReportedUsage(NamedTuple):
    """Token usage as a reply reports it; None: not reported, or not credible."""

    input: int | None
    output: int | None
    total: int | None = None

    def settle(self, expected: TokensUsed) -> tuple[TokensUsed, bool]:
        """Return the tokens to be paid, and whether some of them are only estimated."""
        read, written, total = self
        if total and not read and not written:  # how much of it was the dearer half?
            written = min(expected.output, total)
            return TokensUsed(total - written, written), written > 0
        if total is not None and read is not None and written is None:
            written = max(total - read, 0)
        elif total is not None and written is not None and read is None:
            read = max(total - written, 0)
        is_estimated = read is None or written is None
        used = TokensUsed(
            expected.input if read is None else read,
            expected.output if written is None else written,
        )
        return used, is_estimated and any(expected)


NO_USAGE = ReportedUsage(None, None)


class RequestFields(msgspec.Struct, frozen=True, gc=False):
    """The fields of a request's body that matter; values of other types are ignored."""

    model: object = None
    max_tokens: object = None
    max_completion_tokens: object = None
    max_output_tokens: object = None
    n: object = None  # how many answers it wants, each of so many tokens

    @property
    def output_tokens(self) -> int | None:
        """The most tokens that it may answer with; None: it does not say."""
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

_NO_FIELDS = RequestFields()
_asked = msgspec.json.Decoder(RequestFields)
_usage = msgspec.json.Decoder(_Usage)
_document = msgspec.json.Decoder(_Document)


def check_tokens(what: str, tokens: object) -> None:
    """Refuse what is no count of tokens; budgets would never recover from it."""
    if _count(tokens) is None:
        raise UsageError(
            f"{what} is a whole number of tokens from 0 to {TOKENS_MAX:,}, got {tokens!r:.200}."
        )


def read_request(body: bytes | None) -> RequestFields:
    """Read the few fields that matter of a JSON body; nothing of any other."""
    if not body or body.lstrip()[:1] != b"{":
        return _NO_FIELDS
    try:
        return _asked.decode(body)
    except UNREADABLE:
        return _NO_FIELDS


def prompt_tokens(body: bytes | None) -> int:
    """Estimate the tokens of a request's body.

    Text counts by its length, however long. Images and files in it do not: what they cost has
    little to do with their bytes.
    """
    size = len(body or b"")
    if body is None or size <= FILES_TOKENS_MAX * BYTES_PER_TOKEN:
        return size // BYTES_PER_TOKEN
    if body.lstrip()[:1] not in (b"{", b"["):
        return FILES_TOKENS_MAX
    files = 0
    if any(sign in body for sign in _FILE_SIGNS):
        files = sum(len(part) for part in body.split(b'"') if _is_file(part))
    text = (size - files) // BYTES_PER_TOKEN
    return min(text + min(files // BYTES_PER_TOKEN, FILES_TOKENS_MAX), TOKENS_MAX)


def _is_file(part: bytes) -> bool:
    is_long = len(part) >= FILE_BYTES_MIN
    return is_long and b" " not in part and b"\\" not in part and part.isascii()


class TokenEstimate:
    """Estimates what a request will need; learns what answers cost where requests do not say."""

    __slots__ = ("_mean_output",)

    def __init__(self) -> None:
        self._mean_output = 0.0

    def of(self, body: bytes | None, asked: RequestFields) -> int:
        """Return the tokens of the prompt and of the longest answer."""
        return sum(self.parts(body, asked))

    def parts(self, body: bytes | None, asked: RequestFields) -> TokensUsed:
        """Return both, one by one."""
        output = asked.output_tokens
        return TokensUsed(prompt_tokens(body), int(self._mean_output) if output is None else output)

    def learn(self, prompt: int, used: int) -> None:
        """Learn from a reply's usage; the tokens of its request were estimated to be so many."""
        output = max(0, used - prompt)
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
        """Return the tokens that rate limits count; None: the reply reports none."""
        most = self._most()
        if (total := most.get("total_tokens")) is not None:
            return total
        counted = [count for name, count in most.items() if name in _FOR_LIMITS and count]
        is_whole = None not in most.values()
        return sum(counted) if is_whole and most else None

    def used(self) -> ReportedUsage:
        """Return the tokens that are paid for, one by one."""
        most = self._most()
        read = [most[name] for name in _INPUT if name in most]
        if "prompt_tokens" in most:
            read = [most["prompt_tokens"]]
        output = most.get("completion_tokens", most.get("output_tokens"))
        return ReportedUsage(_sum(read), output, most.get("total_tokens"))

    def _most(self) -> dict[str, int | None]:
        """Return the highest value of each field; None: its last one is not credible."""
        most: dict[str, int | None] = {}
        for usage in self._usages():
            for field in usage.__struct_fields__:
                value = getattr(usage, field)
                if value is None:
                    continue
                count = _count(value, REPORTED_TOKENS_MAX)
                most[field] = None if count is None else max(count, most.get(field) or 0)
        return most

    def _usages(self) -> list[_Usage]:
        """Return all usages of a stream; of a document its own, if it can be recognised."""
        head, tail = self._head, self._tail
        if head.lstrip()[:1] == b"{":
            own = _whole(tail) if tail.startswith(head) else _last(tail)
            if own is not None:
                return [own]
        return [*_usages(head), *_usages(tail)]


def _whole(document: bytes) -> _Usage | None:
    try:
        return _document.decode(document).usage
    except UNREADABLE:
        return None  # lines of JSON, or cut off


def _last(tail: bytes) -> _Usage | None:
    """Return the usage after which a document only ends."""
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
        except UNREADABLE:
            continue


def _object_end(part: bytes, start: int) -> int | None:
    """Return where a JSON object without braces in strings ends; None: truncated, or too long."""
    depth = 0
    for brace in _BRACE.finditer(part, start, start + USAGE_BYTES_MAX):
        depth += 1 if brace[0] == b"{" else -1
        if not depth:
            return brace.end()
    return None


def _sum(counts: list[int | None]) -> int | None:
    """None: there are none, or one of them cannot be read."""
    if not counts:
        return None
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _count(value: object, most: int = TOKENS_MAX) -> int | None:
    if type(value) is int and 0 <= value <= most:
        return value
    return None

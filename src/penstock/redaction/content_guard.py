# SPDX-License-Identifier: Apache-2.0
"""Redaction of content: prompts, replies and payloads that an error text or a log record quotes.

While an attempt runs, its content guard keeps the beginning of its last requests and replies, for
one reason: what the text of its error quotes of them is replaced by `[content]` before the text is
stored or logged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence

QUOTED = "[content]"
LOG_ATTRIBUTE = "penstock_without"  # of a log record: what takes the quotes out of its traceback
WORDS_MIN = 4  # in a row
BYTES_MIN = 20  # of so many words or more
LONG_WORD = 128  # characters of a word that is no name any more
LONG_PART = 48  # characters of a part of it
SOURCE_READ_MAX = 128 * 1024  # characters of one source that are looked at

#: What JSON and Python write in the place of one character.
_ESCAPE = re.compile(r"(?<!\\)\\++(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[nrtbf\"'/])")
#: Scripts without blanks: each character is a word.
_WORD = re.compile(r"[^\x00-\x7f]|[^\s\"'`{}\[\](),;:<>|\\\x80-\U0010ffff]+")
_JSON_STRING = re.compile(  # also one that was cut, be it in the middle of an escape
    r'"((?:[^"\\]|\\(?!u[0-9a-fA-F]{0,3}\Z).)*+)(?:"(\s*:)?|(?:\\(?:u[0-9a-fA-F]{0,3})?)?\Z)',
    re.DOTALL,
)
_PIECES = frozenset({"content", "text", "thinking", "arguments", "partial_json", "delta"})

Word = tuple[str, int, int]  # itself, where it begins, where it ends
Gram = tuple[str, ...]


def redact_content(text: str, sources: Iterable[str]) -> str:
    """The text with `[content]` in the place of what it quotes from the sources."""
    words = list(_words(text))
    grams: dict[Gram, list[int]] = {}
    for index in range(len(words) - WORDS_MIN + 1):
        gram = tuple(word for word, _, _ in words[index : index + WORDS_MIN])
        grams.setdefault(gram, []).append(index)
    long: dict[str, list[int]] = {}
    for index, (word, _, _) in enumerate(words):
        if len(word) >= LONG_PART:
            long.setdefault(word, []).append(index)
    if not grams and not long:
        return text
    quoted = [False] * len(words)
    for source in sources:
        for index in _found_in(source[:SOURCE_READ_MAX], grams, long):
            quoted[index] = True
    return _without(text, words, quoted) if any(quoted) else text


def extract_texts(document: str) -> list[str]:
    """Return the texts of a document: itself, or the strings of its JSON, streamed ones joined."""
    document = document[:SOURCE_READ_MAX]
    if '"' not in document:
        return [document]
    found = [] if document.lstrip()[:1] in ("{", "[") else [document]
    pieces, key = [], ""
    for match in _JSON_STRING.finditer(document):
        if match[2] is not None:
            key = match[1]
            continue
        string = _unescaped(match[1])
        if key in _PIECES:
            pieces.append(string)
        if len(string) >= BYTES_MIN or not string.isascii():
            found.append(string)
    if len(pieces) > 1:
        found.append("".join(pieces))
    return found


def _unescaped(inside: str) -> str:
    if "\\" not in inside:
        return inside
    try:
        return str(json.loads(f'"{inside}"', strict=False))
    except ValueError:
        return inside


def _plain(text: str) -> str:
    """The text with blanks for what JSON and Python have escaped; as long as before."""
    return _ESCAPE.sub(lambda match: " " * len(match[0]), text) if "\\" in text else text


def _words(text: str) -> Iterator[Word]:
    for match in _WORD.finditer(_plain(text)):
        word = match[0].rstrip(".!?")
        if word:
            yield word, match.start(), match.end()


def _found_in(
    source: str, grams: dict[Gram, list[int]], long: dict[str, list[int]]
) -> Iterator[int]:
    """Yield the indexes of words of the text that quote this source, each once."""
    given = [word for part in _WORD.findall(_plain(source)) if (word := part.rstrip(".!?"))]
    for gram in zip(*(given[shift:] for shift in range(WORDS_MIN)), strict=False):
        for index in grams.pop(gram, ()):
            yield from range(index, index + WORDS_MIN)
    for word in {*given} if long else ():
        if len(word) >= LONG_WORD and "//" not in word:
            for part in [part for part in long if _is_of(part, word)]:
                yield from long.pop(part)


def _is_of(part: str, word: str) -> bool:
    """By its ends: the text has cut the word, or we have not kept all of it."""
    return part[:LONG_PART] in word or part[-LONG_PART:] in word


def _without(text: str, words: Sequence[Word], quoted: Sequence[bool]) -> str:
    pieces, done, index = [], 0, 0
    while index < len(words):
        last = index
        while last < len(words) and quoted[last]:
            last += 1
        if last > index:
            start, end = words[index][1], words[last - 1][2]
            if len(text[start:end].encode(errors="replace")) >= BYTES_MIN:
                pieces += [text[done:start], QUOTED]
                done = end
        index = last + 1
    return "".join(pieces) + text[done:]


BODIES_MAX = 8  # requests and replies, the last ones
BODY_BYTES_MAX = 32 * 1024  # of each, its beginning


class ContentGuard:
    """Owns copies of what went to providers and came from them. Belongs to one loop."""

    __slots__ = ("_bodies",)

    def __init__(self) -> None:
        self._bodies: list[GuardedBody] = []

    def __repr__(self) -> str:
        return f"<ContentGuard: {len(self._bodies)} bodies>"

    def add_body(self, start: bytes | None = None) -> GuardedBody:
        """Keep one more request or reply: what is known of it, and what is added to it later."""
        body = GuardedBody()
        if start:
            body.add(start)
        self._bodies.append(body)
        del self._bodies[:-BODIES_MAX]
        return body

    def texts(self) -> Iterator[str]:
        """Every text of the kept bodies, unescaped."""
        for body in self._bodies:
            yield from body.texts()


class GuardedBody:
    """The beginning of one body."""

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = bytearray()

    def __repr__(self) -> str:
        return f"<GuardedBody of {len(self._data)} bytes>"

    def add(self, piece: bytes) -> None:
        if len(self._data) < BODY_BYTES_MAX:
            self._data += piece[: BODY_BYTES_MAX - len(self._data)]

    def texts(self) -> list[str]:
        return extract_texts(self._data.decode(errors="replace"))

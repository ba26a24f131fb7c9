# SPDX-License-Identifier: Apache-2.0
"""What does a text look like that every store can keep, and anybody may read?"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence

from penstock.redaction.secrets import redacted

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


def without_quotes(text: str, sources: Iterable[str]) -> str:
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


def texts_of(document: str) -> list[str]:
    """What a document says: itself, or the strings of its JSON; those of a stream together."""
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
    """Which words of the text are quotes from this source? Each is found once."""
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


ERROR_BYTES_MAX = 16 * 1024
READ_MAX = 64 * 1024  # characters that are looked at
MARGIN = 4 * 1024  # characters at the end of what is looked at that may be half a secret

_CUT = " …"


def kept_text(text: str) -> str:
    """The text without secrets, short, and without NUL and lone surrogates.

    Every text about a job that is not the user's own data goes through here on its way into a
    store: see `AttemptError`. Secrets go before the text is cut, so that none is cut in half.
    """
    if len(text) > READ_MAX:
        text = text[:READ_MAX]
        text = text[: max(READ_MAX - MARGIN, text.rfind(" "))] + _CUT
    text = redacted(text).replace("\x00", "\\x00")
    data = text.encode("utf-8", "backslashreplace")
    if len(data) > ERROR_BYTES_MAX:
        data = data[: ERROR_BYTES_MAX - len(_CUT.encode())]
        return data.decode("utf-8", "ignore") + _CUT
    return data.decode()

# SPDX-License-Identifier: Apache-2.0
"""Parts of sentences for people: counts with their nouns, and commands to type.

A command that a message suggests is complete: it names the app and the store that the present
process was given by flags, so that it works as printed in the same folder and environment.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

#: The flags that say what a command is about, if the user has typed them.
_SHARED_FLAGS = ("--app", "--store")

_given: tuple[str, ...] = ()


def repeat_flags(flags: Mapping[str, object]) -> None:
    """Let every suggested command name the app and the store that these flags name."""
    global _given
    named = [(name, flags[name]) for name in _SHARED_FLAGS if flags.get(name) is not None]
    _given = tuple(str(word) for pair in named for word in pair)


def command(*words: str) -> str:
    """A penstock command, complete and quoted for a shell."""
    return shlex.join(("penstock", *words, *_given))


def counted(count: int, noun: str, nouns: str | None = None) -> str:
    """A count with its noun: 1 group, 2 groups."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {nouns or noun + 's'}"

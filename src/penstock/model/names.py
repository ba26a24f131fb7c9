# SPDX-License-Identifier: Apache-2.0
"""Names that users give: which texts may name an app, a task, a group, a provider or a job."""

from __future__ import annotations

import unicodedata

from penstock.errors import UsageError
from penstock.model.job import NAME_LENGTH_MAX


def check_app_name(name: str) -> None:
    """Refuse a name that no app may have: its store is a file of this name."""
    check_name("name of an app", name)
    if "/" in name or name.startswith("."):
        raise UsageError(f"The app name {name!r} must be usable as a file name.")


def check_name(what: str, name: str) -> None:
    """Refuse a name that a store or a terminal could not bear."""
    if not isinstance(name, str):
        raise UsageError(f"A {what} is text, got {name!r}.")
    if not name or len(name) > NAME_LENGTH_MAX:
        raise UsageError(f"A {what} has 1 to {NAME_LENGTH_MAX} characters; got {len(name)}.")
    check_text(what, name)


def check_text(what: str, text: str) -> None:
    """Refuse control characters and lone surrogates."""
    if text.isascii() and text.isprintable():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"A {what} cannot hold a lone surrogate.") from None
    if any(unicodedata.category(character) == "Cc" for character in text):
        raise UsageError(f"A {what} cannot hold control characters: {text!r}.")

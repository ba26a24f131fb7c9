# SPDX-License-Identifier: Apache-2.0
"""A command that takes its app as its first argument, or by `--app`: the same place everywhere.

Where a command has arguments of its own (keys, tasks, names), the first one is the app only if it
is an existing file whose name ends in `.py`, and if what the command cannot do without is still
there behind it. Behind `--`, or beside `--app`, no argument is taken for the app.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

from typer.core import TyperCommand

from penstock.errors import UsageError

APP = "--app"
SUFFIX = ".py"
END_OF_OPTIONS = "--"


class AppCommand(TyperCommand):
    """Turns `queue stats hello.py` into `queue stats --app hello.py` before it is parsed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 (passed on)
        if not self._options().get(APP) or self._has_unknown_option(args):
            return super().parse_args(ctx, args)
        place = self._place_of_app(args, is_partial=ctx.resilient_parsing)
        if place is not None:
            args = [APP, args[place], *args[:place], *args[place + 1 :]]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ANN401 (passed on)
        options, *arguments = super().collect_usage_pieces(ctx)
        return [options, *(["[APP]"] if self._options().get(APP) else []), *arguments]

    def _options(self) -> dict[str, bool]:
        """The options, and whether each takes a value."""
        options = (one for one in self.params if one.param_type_name == "option")
        return {name: not getattr(one, "is_flag", False) for one in options for name in one.opts}

    def _has_unknown_option(self, args: list[str]) -> bool:
        """Whether the parser will refuse one: what follows it may be its value, and no app."""
        known = self._options()
        words = list(takewhile(lambda word: word != END_OF_OPTIONS, args))
        options = [word.partition("=")[0] for word in words if word.startswith("-") and word != "-"]
        return any(option not in known for option in options)

    def _place_of_app(self, args: list[str], *, is_partial: bool) -> int | None:
        """Where among the typed words the app stands."""
        places = list(self._places_of_arguments(args))
        own = [one for one in self.params if one.param_type_name == "argument"]
        if not places or args[places[0] - 1 : places[0]] == [END_OF_OPTIONS]:
            return None
        first = args[places[0]]
        named = next((word for word in args if word.partition("=")[0] == APP), None)
        if not own:
            _refuse(first, args, named)
            return places[0]
        required = 0 if is_partial else sum(one.required for one in own)
        is_app = first.endswith(SUFFIX) and Path(first).is_file()
        return places[0] if is_app and named is None and len(places) > required else None

    def _places_of_arguments(self, args: list[str]) -> Iterator[int]:
        """The places of words that are neither options nor values of options."""
        options, place = self._options(), 0
        while place < len(args):
            word = args[place]
            if word == END_OF_OPTIONS:
                yield from range(place + 1, len(args))
                return
            if word == "-" or not word.startswith("-"):
                yield place
            elif options.get(word):
                place += 1
            place += 1


def _refuse(word: str, args: list[str], named: str | None) -> None:
    """Refuse what cannot be the app of a command that takes no other argument."""
    if named is not None:
        other = named.partition("=")[2] or next(iter(args[args.index(named) + 1 :]), "")
        raise UsageError(f"The app is named twice: {word!r} and --app {other!r}.")
    if not word.endswith(SUFFIX) and ":" not in word:
        raise UsageError(
            f"{word!r:.80} is not an app; name a file such as pipeline.py, or module:attribute, or "
            "leave it out."
        )

# SPDX-License-Identifier: Apache-2.0
"""When is it worth a line that a provider is down, or answers again?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.observe.live import ProviderLine


class ProviderNews:
    """Owns what was told last of each provider: each change is told once."""

    def __init__(self) -> None:
        self._down: set[str] = set()

    def of(self, lines: Iterable[ProviderLine]) -> Iterator[str]:
        """What has changed since the last call, as sentences without their end."""
        for line in lines:
            live = line.live
            if line.down and line.name not in self._down:
                self._down.add(line.name)
                yield (
                    f"{line.name} is down ({live.failed_in_row:,} failures in a row); it is tried "
                    "now and again, and its jobs wait uncharged"
                )
            elif line.name in self._down and not live.failed_in_row:
                self._down.discard(line.name)
                yield f"{line.name} answers again"

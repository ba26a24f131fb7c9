# SPDX-License-Identifier: Apache-2.0
"""When is it worth a line that a provider is down or answers again, or that a worker is silent?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.model.job import WorkerId
from penstock.model.worker_silence import Silence
from penstock.observe.live import ProviderLine, RunPicture
from penstock.observe.phrases import counted


class RunNews:
    """Owns what was told last of each provider and worker: each change is told once."""

    def __init__(self) -> None:
        self._down: set[str] = set()
        self._silent: set[WorkerId] = set()

    def of(self, picture: RunPicture) -> Iterator[str]:
        """What has changed since the last call, as sentences without their end."""
        yield from self._of_workers(picture.silent)
        yield from self._of_providers(picture.providers)

    def _of_workers(self, silent: Iterable[Silence]) -> Iterator[str]:
        for one in silent:
            if one.worker not in self._silent:
                self._silent.add(one.worker)
                yield (
                    f"Worker {one.name} no longer answers; {counted(one.jobs, 'job')} that it "
                    f"holds can be taken back in {one.lease_seconds:,.0f} s, when its lease ends"
                )

    def _of_providers(self, lines: Iterable[ProviderLine]) -> Iterator[str]:
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

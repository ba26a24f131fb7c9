# SPDX-License-Identifier: Apache-2.0
"""Looks at the store that a URL names, and at what it needs of the machine, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from penstock.clock import SystemBootClock, SystemClock
from penstock.errors import StoreError
from penstock.model.views import Finding, QueueFacts, problem
from penstock.stores.open import of_postgres, store_file
from penstock.stores.sqlite.doctor import Checkup, SystemProbe, boot_finding, library_finding
from penstock.stores.sqlite.location_check import sqlite_version
from penstock.stores.url import is_server


def machine_findings() -> list[Finding]:
    """What a store needs of this machine."""
    return [library_finding(sqlite_version()), boot_finding(SystemBootClock())]


class StoreCheckup(Protocol):
    """Findings about a store, and then what its queue is like, if that could be seen."""

    @property
    def facts(self) -> QueueFacts | None: ...

    def findings(self) -> Iterable[Finding]: ...


def store_checkup(url: str, *, folder: Path, full: bool) -> StoreCheckup:
    """A look at a store that changes nothing."""
    if is_server(url):
        there = of_postgres("doctor", url)
        return ServerCheckup(url, there.postgres_findings, there.postgres_facts, full=full)
    path = store_file(url, folder)
    return Checkup(path, SystemProbe(), SystemClock(), SystemBootClock(), full=full)


class AskServer(Protocol):
    """How a server is looked at; wholly, if that is wanted."""

    def __call__(self, url: str, *, full: bool) -> list[Finding]: ...


class ServerCheckup:
    """A look at a store on a server; and at its queue, if that can be read."""

    def __init__(
        self,
        url: str,
        ask: AskServer,
        ask_queue: Callable[[str], QueueFacts | None],
        *,
        full: bool,
    ) -> None:
        self._url = url
        self._full = full
        self._ask = ask
        self._ask_queue = ask_queue

    @property
    def facts(self) -> QueueFacts | None:
        return self._ask_queue(self._url)

    def findings(self) -> Iterable[Finding]:
        try:
            return self._ask(self._url, full=self._full)
        except StoreError as error:
            return [problem("store", str(error))]

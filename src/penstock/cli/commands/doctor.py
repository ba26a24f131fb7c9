# SPDX-License-Identifier: Apache-2.0
"""`penstock doctor`: health checks of the machine, the settings, the app, the store and the queue.

Read-only: nothing is written, created or migrated, and the app is imported in another process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from penstock.app.dataset_reader import found_root, root_folder
from penstock.cli.app_inspect import AppFacts, outline_of, probe_app
from penstock.cli.lazy_command import Invocation
from penstock.cli.target import AppOption, JsonOption, StoreOption, Target
from penstock.config.find_app import DEFAULT_FILE
from penstock.config.load import DEFAULT, LoadedSettings
from penstock.errors import ConfigError, OutputFailed, UsageError
from penstock.model.job import SLICE
from penstock.model.views import Finding, QueueFacts, healthy, problem
from penstock.observe.doctor import (
    budget_finding,
    build_findings,
    provider_finding,
    python_finding,
    queue_findings,
    root_finding,
)
from penstock.process_identity import is_gone
from penstock.sentences import counted
from penstock.stores.doctor import machine_findings, store_checkup
from penstock.stores.url import default_store_url, default_stores
from penstock.terminal_text import one_line, print_document, say, warn_of_traceback

EXIT_UNHEALTHY = 1
STORES_GUESSED = 5  # files that are checked if neither settings nor app name the store


def doctor(
    context: typer.Context,
    full: Annotated[
        bool, typer.Option("--full", help="Look at every page and every job; takes longer.")
    ] = False,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Check the machine, the settings, the app and the store; say how to fix what is wrong."""
    invocation = context.obj if isinstance(context.obj, Invocation) else Invocation()
    diagnosis = Diagnosis(Target.named(app=app, store=store), full=full, debug=invocation.debug)
    findings = []
    for finding in diagnosis.findings():
        findings.append(finding)
        if not as_json:
            say(format_finding(finding))
    problems = sum(not finding.ok for finding in findings)
    if as_json:
        found = [msgspec.to_builtins(finding) for finding in findings]
        print_document({"healthy": not problems, "findings": found})
    else:
        say(
            f"{problems} of {len(findings)} checks found a problem." if problems else "All is well."
        )
    return EXIT_UNHEALTHY if problems else 0


def format_finding(finding: Finding) -> str:
    text = f"ok  {finding.check}: {finding.text}" if finding.ok else f"problem: {finding.text}"
    return one_line(text)


class Diagnosis:
    """Owns one round of checks over one target."""

    def __init__(
        self,
        target: Target,
        *,
        full: bool = False,
        debug: bool = False,
        import_app: Callable[[dict[str, str], Path, str], AppFacts] = probe_app,
    ) -> None:
        self._target = target
        self._import_app = import_app
        self._full = full
        self._debug = debug
        self._facts = AppFacts(problem="not asked")

    def findings(self) -> Iterator[Finding]:
        """Run the checks in order; a failed one does not stop those after it."""
        yield python_finding(sys.version_info[:2], sys.platform)
        yield from machine_findings()
        loaded, settings = self._settings()
        yield settings
        if loaded is not None:
            yield self._app(loaded)
            served = provider_finding(self._facts.providers, self._facts.files)
            if served is not None:
                yield served
            if self._facts.budgets:
                yield budget_finding(self._facts.budgets, self._facts.unpriced)
        yield from self._stores(loaded)

    def _settings(self) -> tuple[LoadedSettings | None, Finding]:
        try:
            loaded = self._target.configured()
        except ConfigError as error:
            return None, problem("settings", str(error))
        said = sorted({source for source in loaded.sources.values() if source != DEFAULT})
        return loaded, healthy("settings", f"from {', '.join(said)}" if said else "all defaults")

    def _app(self, loaded: LoadedSettings) -> Finding:
        named = loaded.settings.app or DEFAULT_FILE
        flags = {name: str(value) for name, value in self._target.flags.items()}
        self._facts = self._import_app(flags, self._target.folder, named)
        if self._facts.problem is None:
            has = counted(len(self._facts.tasks), "task")
            if self._facts.datasets:
                has += f" and {counted(len(self._facts.datasets), 'dataset')}"
            return healthy("app", f"{self._facts.name!r} of {named!r} has {has}")
        if self._debug and self._facts.details:
            warn_of_traceback(self._facts.details)
        return problem("app", self._facts.problem)

    def _stores(self, loaded: LoadedSettings | None) -> Iterator[Finding]:
        for url in self._urls(loaded):
            try:
                checkup = store_checkup(url, folder=self._target.folder, full=self._full)
            except UsageError as error:
                yield problem("store", str(error))
                continue
            yield from checkup.findings()
            facts = checkup.facts
            if facts is not None:
                tasks = None if self._facts.problem else self._known_tasks()
                yield from queue_findings(facts, tasks, is_gone, self._facts.name)
                if facts.plans or facts.locks or facts.datasets:
                    yield from build_findings(facts, is_gone)
                    if loaded is not None:
                        yield self._root(loaded, facts)

    def _known_tasks(self) -> tuple[str, ...]:
        return (*self._facts.tasks, *(f"{SLICE}{name}" for name in self._facts.datasets))

    def _root(self, loaded: LoadedSettings, facts: QueueFacts) -> Finding:
        path = root_folder(loaded.settings, self._target.folder)
        try:
            root = found_root(loaded.settings, self._target.folder)
        except (OutputFailed, UsageError) as error:
            return problem("output root", str(error))
        return root_finding(str(path), None if root is None else root.id, facts)

    def _urls(self, loaded: LoadedSettings | None) -> list[str]:
        """The store, or the candidates if neither settings nor app can be read."""
        named = self._target.flags.get("--store")
        if loaded is not None:
            store = loaded.settings.store
            named = self._facts.store_url or (store and store.reveal())
        if named is not None:
            return [str(named)]
        if loaded is not None:
            outline = outline_of(loaded.settings.app, self._target.folder)
            if outline.name is not None:
                return [default_store_url(outline.name)]
        return default_stores(self._target.folder)[:STORES_GUESSED]

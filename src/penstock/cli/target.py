# SPDX-License-Identifier: Apache-2.0
"""The app, the settings and the store that a command is about, and options that commands share."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from penstock.app.app import Penstock
from penstock.app.queue import warn_of_other_store
from penstock.config.find_app import DEFAULT_FILE, find_app, hidden_modules
from penstock.config.load import PENSTOCK_TOML, PYPROJECT_TOML, LoadedSettings, load_settings
from penstock.config.trust import refuse_untrusted
from penstock.errors import KeyOfSeveralApps, PenstockError, StoreMissing, UsageError
from penstock.model.run import RunPart
from penstock.model.worker import responsive_workers
from penstock.observe.explain import RunFacts, Unreadable, run_facts
from penstock.operate.actions import UnknownTaskName, unknown_task
from penstock.process_identity import is_gone
from penstock.redaction.secrets import redacted
from penstock.sentences import command, counted, repeat_flags
from penstock.stores.open import open_store
from penstock.stores.protocol import Store
from penstock.terminal_text import escaped, warn

SHOWN_MAX = 60  # characters of what was typed, in a message
COUNTED_MAX = 2**31 - 1  # jobs or attempts in an option; more is a slip of the pen
RUNS_COMPARED = 200
RUNS_NAMED = 3
TASKS_NAMED = 8

RunOption = Annotated[
    str | None,
    typer.Option("--run", metavar="ID", help="The run; the last one unless this is given."),
]


def run_of(store: Store, run_id: str | None) -> tuple[list[RunPart], RunFacts | Unreadable | None]:
    """The records and the facts of a run, or of the last one; no facts: there are no records."""
    parts = store.run_parts(run_id).result()
    workers = responsive_workers(store.workers().result(), is_gone) if parts else []
    alive = {one.id for one in workers if one.alive and one.run_id == parts[0].run_id}
    return parts, run_facts(parts, alive=alive)


def chosen_run(store: Store, run_id: str | None) -> tuple[list[RunPart], RunFacts]:
    """The records and the facts of a run; raises an error if there are none."""
    parts, facts = run_of(store, run_id)
    url = redacted(store.url)
    if facts is None and run_id is None:
        raise PenstockError(
            f"No run has left a record in the store {url} yet: a worker writes one as soon as it "
            f"begins. Run '{command('queue', 'run')}' first, or name another store with --store."
        )
    if facts is None:
        near = _known(store, run_id)
        raise UsageError(f"No run {run_id!r:.80} is known in the store {url}{near}.")
    if isinstance(facts, Unreadable):
        raise PenstockError(
            f"The record of run {facts.run_id!r} was written by another version of penstock and "
            "cannot be read by this one."
        )
    return parts, facts


def _known(store: Store, run_id: str | None) -> str:
    """The nearest of the runs that are known, or the last ones."""
    known = store.runs(RUNS_COMPARED).result()
    if not known:
        return "; no run has left a record there"
    near = difflib.get_close_matches(run_id or "", known, RUNS_NAMED, 0.6)
    word = "closest" if near else "the last ones are"
    names = ", ".join(repr(escaped(name)) for name in (near or known[:RUNS_NAMED]))
    return f"; {word}: {names}" if near else f"; {word} {names}"


AppOption = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="APP",
        help="The app: a file, or module:attribute; it may also be the first argument.",
    ),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store", metavar="URL", help="The store, such as sqlite:///path or postgresql://host/db."
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")
]


def only_utf8(typed: str | list[str] | None) -> str | list[str] | None:
    """Refuse a key or name that is not UTF-8: no store can hold one."""
    for text in [typed] if isinstance(typed, str) else typed or ():
        try:
            text.encode()
        except UnicodeEncodeError:
            shown = repr(text[:SHOWN_MAX])
            raise UsageError(
                f"{shown} is not UTF-8, so nothing can have that name; correct it."
            ) from None
    return typed


def warn_of_unknown_task(store: Store, task: str | None) -> None:
    """Say so if no job of this task is in the store: the name may be wrong."""
    unknown = unknown_task(store, task)
    if unknown is not None:
        warn(f"The store has no job of a task named {escaped(unknown.task)!r}{_tasks(unknown)}.")


def _tasks(unknown: UnknownTaskName) -> str:
    """The tasks that have jobs, the nearest name first."""
    near = [] if unknown.nearest is None else [unknown.nearest]
    names = [*near, *(name for name in unknown.known if name not in near)]
    if not names:
        return "; it has no jobs"
    shown = ", ".join(repr(escaped(name)) for name in names[:TASKS_NAMED])
    more = len(names) - TASKS_NAMED
    return f"; it has jobs of {shown}" + (f" and {counted(more, 'more task')}" if more > 0 else "")


@dataclass(frozen=True, slots=True)
class Target:
    """What the flags name, seen from the current folder."""

    flags: dict[str, object]
    folder: Path = field(default_factory=Path.cwd)

    @classmethod
    def named(cls, **options: object) -> Target:
        """From options as a command has them (`app`, `store`, …); None: not given."""
        flags = {f"--{name}": value for name, value in options.items() if value is not None}
        repeat_flags({name: redacted(str(value)) for name, value in flags.items()})
        return cls(flags)

    def configured(self) -> LoadedSettings:
        """What flags, environment and files say; the app is not imported."""
        loaded = load_settings(self.flags, os.environ, self.folder, {})
        if not loaded.sources.get("app", "").startswith(("--", "PENSTOCK_")):
            files = (PENSTOCK_TOML, PYPROJECT_TOML, loaded.settings.app or DEFAULT_FILE)
            refuse_untrusted(self.folder, files)
        return loaded

    def app(self) -> Penstock:
        """Import the app; what it prints meanwhile must not get into a document on stdout."""
        named = self.configured().settings.app
        self.warn_of_surroundings(named)
        with redirect_stdout(sys.stderr):
            return find_app(named, self.folder, Penstock)

    def warn_of_surroundings(self, named: str | None) -> None:
        """Say which files beside the app are not what their author takes them for."""
        is_file = named is None or named.endswith(".py")
        place = (self.folder / (named or DEFAULT_FILE)).resolve().parent if is_file else self.folder
        for name in hidden_modules(place):
            warn(
                f"{escaped(str(place / name))} is not imported: Python has a module called "
                f"{Path(name).stem!r}, which hides it. Rename the file, and what imports it."
            )
        if (place / PENSTOCK_TOML).exists() and place != self.folder.resolve():
            warn(
                f"{escaped(str(place / PENSTOCK_TOML))} is not read: settings come from the "
                f"current folder. Run the command in {escaped(str(place))}."
            )

    @contextmanager
    def opened_app(self) -> Iterator[Penstock]:
        """Import the app and open its store."""
        app = self.app()
        loaded = app.load(self.flags, folder=self.folder)
        store = self._open(app.store_url(loaded), loaded, app)
        app.use_store(store)
        try:
            yield app
        finally:
            app.close()

    @contextmanager
    def app_for_reading(self) -> Iterator[Penstock]:
        """Import the app and open its store to look at it; where there is none, it is empty."""
        app = self.app()
        loaded = app.load(self.flags, folder=self.folder)
        try:
            store = self._open_to_look(app.store_url(loaded), loaded)
            store.look_as(app.name).result()
        except StoreMissing:
            from penstock.app.build import empty_store

            store = empty_store()
        app.use_store(store)
        try:
            yield app
        finally:
            app.close()

    def store(self) -> tuple[str, LoadedSettings]:
        """Where the store is; the app is imported only if nothing else names it."""
        loaded = self.configured()
        if loaded.settings.store is not None:
            url = loaded.settings.store.reveal()
        else:
            app = self.app()
            loaded = app.load(self.flags, folder=self.folder)
            url = app.store_url(loaded)
            warn_of_other_store(app.registry, loaded, self.folder)
        return url, loaded

    @contextmanager
    def opened_store(self) -> Iterator[Store]:
        """Open the store to look at it; StoreMissing if there is none yet."""
        url, loaded = self.store()
        store = self._open_to_look(url, loaded)
        try:
            yield store
        finally:
            store.close()

    def mean(self, store: Store, *keys: str) -> None:
        """Let the store be about the app of a key, which `--app` names where several have it.

        Raises:
            KeyOfSeveralApps: nothing was named.
        """
        try:
            found = [store.job(key).result() for key in keys]
        except KeyOfSeveralApps as error:
            named = self.flags.get("--app")
            if named is None:
                raise
            store.look_as(str(named) if named in error.apps else self.app().name).result()
        else:
            apps = {job.app for job in found if job is not None}
            if len(apps) == 1:
                store.look_as(*apps).result()

    def _open(self, url: str, loaded: LoadedSettings, app: Penstock) -> Store:
        warn_of_other_store(app.registry, loaded, self.folder)
        return open_store(
            url,
            app=app.name,
            tasks=(*app.registry.tasks,),
            durability=loaded.settings.durability,
            folder=self.folder,
        )

    def _open_to_look(self, url: str, loaded: LoadedSettings) -> Store:
        """Open it about all apps; it need neither be written nor made."""
        return open_store(
            url,
            durability=loaded.settings.durability,
            folder=self.folder,
            reading_will_do=True,
            make=False,
        )

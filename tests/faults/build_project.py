# SPDX-License-Identifier: Apache-2.0
"""A folder with `build_app` in it, and the builds that run there."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from penstock.stores.open import open_store
from penstock.stores.protocol import Store
from tests.faults.launcher import VARIABLE
from tests.forked import Forked
from tests.processes import children_of, environment_of_tests, kill_run

TTL_SECONDS = 2.0  # for those who wait for its end
LONG_TTL_SECONDS = 20.0  # that a busy machine does not use up
CONFIG = """
app = "build_app.py"
durability = "normal"
[runtime]
lease_ttl_seconds = {ttl_seconds}
beat_seconds = 0.1
grace_seconds = 1.0
async_slots = 4
thread_slots = 4
"""
RANGE = ("--from", "2024-01-01", "--to", "2024-01-04")


class Ended(NamedTuple):
    """How a command has ended, and what it said."""

    code: int
    out: str
    errors: str


class BuildProject:
    """Owns one folder, and the builds in it."""

    def __init__(
        self, folder: Path, url: str | None = None, *, ttl_seconds: float = TTL_SECONDS
    ) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.url = url or f"sqlite:///{folder}/built.db"
        self.root = folder / "datasets"
        (folder / "penstock.toml").write_text(CONFIG.format(ttl_seconds=ttl_seconds))
        (folder / "bodies.log").touch()
        shutil.copy(Path(__file__).with_name("build_app.py"), folder)
        self.running: list[subprocess.Popen[Any]] = []

    def say(self, name: str, text: str) -> None:
        """Tell the app how to behave, at once and as a whole."""
        path = self.folder / name
        path.with_suffix(".new").write_text(text)
        path.with_suffix(".new").rename(path)

    def start(
        self, *arguments: str, failpoints: dict[str, object] | None = None
    ) -> subprocess.Popen[str]:
        """Start `penstock build`, in a session of its own."""
        return self._start(["build", *arguments, *RANGE], failpoints)

    def start_daemon(
        self, *arguments: str, failpoints: dict[str, object] | None = None
    ) -> subprocess.Popen[str]:
        """Start `penstock run`, in a session of its own."""
        return self._start(["run", *arguments], failpoints)

    def _start(
        self, arguments: list[str], failpoints: dict[str, object] | None
    ) -> subprocess.Popen[str]:
        command = ["penstock_command"]
        more = {"PENSTOCK_STORE": self.url}
        if failpoints is not None:
            command = ["tests.faults.launcher", "supervisor"]
            more[VARIABLE] = json.dumps(failpoints)
        number = len(self.running)
        with self._said("out", number).open("w") as out, self._said("err", number).open("w") as err:
            process = Forked(
                [sys.executable, "-m", *command, *arguments],
                cwd=self.folder,
                env=environment_of_tests(**more),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                text=True,
                start_new_session=True,
            )
        self.running.append(process)
        return process

    def _said(self, what: str, number: int) -> Path:
        return self.folder / f"{number}.{what}"

    def errors(self, process: subprocess.Popen[str]) -> str:
        """What a command has said beside its report, up to now."""
        return self._said("err", self.running.index(process)).read_text()

    def ended(self, process: subprocess.Popen[str]) -> Ended:
        """Wait for the end of a command."""
        code = process.wait(240)
        number = self.running.index(process)
        return Ended(code, self._said("out", number).read_text(), self.errors(process))

    def build(self, *arguments: str) -> Ended:
        """Run a command to its end."""
        return self.ended(self.start(*arguments))

    def bodies(self) -> list[tuple[str, str]]:
        """Slice and version of each body that has begun, in order."""
        lines = (self.folder / "bodies.log").read_text().splitlines()
        return [(name, version) for name, version, _ in map(str.split, lines)]

    def has_begun(self, process: subprocess.Popen[str]) -> bool:
        """Has a worker of this run read the app?"""
        pids = (self.folder / "imports.log").read_text().split()
        return any(str(pid) in pids for pid in children_of(process.pid))

    def open(self) -> Store:
        return open_store(self.url, durability="normal", folder=self.folder)

    def unsound(self) -> list[str]:
        """What is wrong in the store after everybody has gone."""
        store = self.open()
        try:
            found = list(store.check().result())
            found += [f"a lock is left: {lock}" for lock in store.locks().result()]
            found += [f"a plan is left: {plan.id}" for plan in store.open_plans().result()]
            return found
        finally:
            store.close()

    def close(self) -> None:
        for process in self.running:
            kill_run(process)

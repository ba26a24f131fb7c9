# SPDX-License-Identifier: Apache-2.0
"""How does a fault test run real supervisors with their workers?"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.faults.folder import ProjectFolder
from tests.faults.roles import STORE
from tests.forked import Forked
from tests.processes import environment_of_tests

CONFIG = f"""
app = "fault_app.py"
store = "sqlite:///{STORE}"
durability = "normal"
[runtime]
lease_ttl_seconds = 30.0
beat_seconds = 0.25
grace_seconds = 1.0
async_slots = 4
thread_slots = 2
"""


class Project(ProjectFolder):
    """A project with `fault_app`; what its runs say is collected in a file."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, CONFIG, f"sqlite:///{STORE}")
        (folder / "imports.log").touch()
        shutil.copy(Path(__file__).with_name("fault_app.py"), folder)

    def run(
        self, *arguments: str, before: Sequence[str] = (), **environment: str
    ) -> subprocess.Popen[bytes]:
        """Start `penstock queue run`, perhaps through another program."""
        with (self.folder / "errors.log").open("a") as errors:
            process = Forked(
                [*before, sys.executable, "-m", "penstock.cli.main", "queue", "run", *arguments],
                cwd=self.folder,
                env=environment_of_tests(**environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
        self.running.append(process)
        return process

    def drain(self, *arguments: str, **environment: str) -> tuple[int, str]:
        """Run until nothing is left; the exit code, and what was said."""
        code = self.run("--drain", *arguments, **environment).wait(240)
        return code, self.errors()

    def errors(self) -> str:
        return (self.folder / "errors.log").read_text()

    def imports(self) -> list[tuple[int, float]]:
        """Pid and time of each worker process that imported the app."""
        lines = [line.split() for line in (self.folder / "imports.log").read_text().splitlines()]
        return [(int(pid), float(at)) for pid, at in lines]

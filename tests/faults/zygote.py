# SPDX-License-Identifier: Apache-2.0
"""How does a test get real processes that cost milliseconds, and may be killed?

One process imports everything once, stays single-threaded, and forks on demand. Each child gets a
folder, a role, and armed failpoints; it is a process like any other, with its own death.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.app import wiring  # noqa: F401 (imported once, for all children)
from tests.faults import launcher
from tests.processes import environment_of_tests

PATIENCE_SECONDS = 60.0  # a child that has not ended by then never will


class Zygote:
    """Owns the forking process. Belongs to one thread."""

    def __init__(
        self, folder: Path, before: Sequence[str] = (), environment: dict[str, str] | None = None
    ) -> None:
        self._process = subprocess.Popen(
            [*before, sys.executable, "-m", "tests.faults.zygote"],
            cwd=folder,
            env=environment_of_tests(**(environment or {})),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def fork(
        self,
        folder: Path,
        role: str,
        *arguments: str,
        failpoints: dict[str, object] | None = None,
        environment: dict[str, str] | None = None,
    ) -> int:
        """Start a process in a role; its pid."""
        return int(
            self._ask(
                {
                    "folder": str(folder),
                    "role": role,
                    "arguments": arguments,
                    "failpoints": failpoints or {},
                    "environment": environment or {},
                }
            )
        )

    def poll(self, pid: int) -> int | None:
        """How a process ended (negative: by which signal); None while it runs."""
        answer: int | None = self._ask({"poll": pid})
        return answer

    def wait(self, pid: int, seconds: float = PATIENCE_SECONDS) -> int:
        deadline = time.monotonic() + seconds
        while (code := self.poll(pid)) is None:
            if time.monotonic() > deadline:
                os.kill(pid, 9)
                raise AssertionError(f"process {pid} did not end within {seconds:g} s")
            time.sleep(0.005)
        return code

    def run(self, folder: Path, role: str, *arguments: str, **options: Any) -> int:
        """Start a process and wait for its end."""
        return self.wait(self.fork(folder, role, *arguments, **options))

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait(PATIENCE_SECONDS)

    def _ask(self, question: dict[str, object]) -> Any:
        if self._process.stdin is None or self._process.stdout is None:
            raise AssertionError("the zygote has no pipes")
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def _become(order: dict[str, Any]) -> None:
    """Be the child: never returns."""
    code = 1
    try:
        os.chdir(order["folder"])
        os.environ.update(order["environment"])
        log = os.open("processes.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, null), (1, log), (2, log)):
            os.dup2(source, target)
        launcher.arm_points(order["failpoints"])
        from tests.faults import roles

        roles.ROLES[order["role"]](*order["arguments"])
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        if "poll" in order:
            pid, status = os.waitpid(order["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if answer == 0:
                _become(order)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

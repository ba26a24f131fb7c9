# SPDX-License-Identifier: Apache-2.0
"""How does a test arm failpoints in real processes?

This launcher is the only thing that arms them. It stands in front of the real entry points: it
reads what shall happen from its own variables, arms, and goes on as the process that was meant.
It is not in the wheel.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from penstock import failpoints
from penstock.process_identity import parent_of

VARIABLE = "PENSTOCK_TEST_FAILPOINTS"


def arm(role: str) -> None:
    """Arm what the variable says for this role: {role: {point: {"at": n, "once": file}}}."""
    arm_points(json.loads(os.environ.get(VARIABLE, "{}")).get(role))


def arm_points(wanted: dict[str, Any] | None) -> None:
    """Arm points of this process: {point: {"at": n, "once": file}}.

    Whoever meets the point for the n-th time dies there, with "whole": true its parent before it,
    or, with "pause": seconds, only waits.
    """
    if not wanted:
        return
    unknown = set(wanted) - failpoints.POINTS
    if unknown:
        raise SystemExit(f"There are no such failpoints: {sorted(unknown)}")
    hits = dict.fromkeys(wanted, 0)

    def action(point: str) -> None:
        rule = wanted.get(point)
        if rule is None:
            return
        hits[point] += 1
        if hits[point] < rule["at"]:
            return
        with contextlib.suppress(FileNotFoundError):
            if "once" in rule:
                Path(rule["once"]).unlink()  # whoever removes the file is the one that is meant
            if rule.get("whole"):
                os.kill(parent_of(os.getppid()), signal.SIGKILL)  # of our guard
            if "pause" not in rule:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(rule["pause"])

    failpoints.arm(action)


def main() -> None:
    role = sys.argv.pop(1)
    arm(role)
    if role == "worker":
        from penstock.processes import worker

        worker.main()
    elif role == "supervisor":
        import penstock_command
        from penstock.supervisor import worker_handle

        worker_handle.worker_command[:] = [sys.executable, "-m", "tests.faults.launcher", "worker"]
        penstock_command.run()
    elif role == "migrator":
        from tests.faults import migrator

        migrator.main()
    elif role == "producer":
        from tests.faults import producer

        producer.main()
    else:
        raise SystemExit(f"There is no role {role!r}.")


if __name__ == "__main__":
    main()

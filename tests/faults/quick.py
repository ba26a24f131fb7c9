# SPDX-License-Identifier: Apache-2.0
"""The real entry points with short patience, so that a test need not wait as long as a user.

Stands in front of the command and of its workers; changes nothing but how long they wait for what
does not stop.
"""

from __future__ import annotations

import sys

DETACH_SECONDS = 0.5
PATIENCE_SECONDS = 0.5
OVERDUE_SECONDS = 1.5


def main() -> None:
    from penstock.supervisor import worker_handle
    from penstock.worker import executor, recycling

    executor.DETACH_SECONDS = DETACH_SECONDS
    recycling.PATIENCE_SECONDS = PATIENCE_SECONDS
    worker_handle.OVERDUE_SECONDS = OVERDUE_SECONDS
    worker_handle.worker_command[:] = [sys.executable, "-m", "tests.faults.quick", "worker"]
    if sys.argv.pop(1) == "worker":
        from penstock.processes import worker

        worker.main()
    else:
        from penstock.cli import main as cli

        cli.run()


if __name__ == "__main__":
    main()

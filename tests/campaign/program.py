# SPDX-License-Identifier: Apache-2.0
"""A program that a task starts: sits for a moment, and is known to the ledger while it lives."""

from __future__ import annotations

import json
import os
import socket
import sys
import time


def main() -> None:
    facts = json.loads(sys.argv[1])
    with open(os.path.join(os.environ["CAMPAIGN_FOLDER"], "ports")) as file:
        port = json.load(file)[1]
    with socket.create_connection(("127.0.0.1", port), 60) as line, line.makefile("rb") as answers:
        visit = {"visit": f"{facts['of']}-program", **facts, "task": "program", "seat": None}
        visit |= {"pid": os.getpid(), "run": os.environ["CAMPAIGN_RUN"]}
        line.sendall(json.dumps(visit).encode() + b"\n")
        answers.readline()
        time.sleep(0.1)
        line.sendall(b'{"end": "done"}\n')
        answers.readline()


if __name__ == "__main__":
    main()

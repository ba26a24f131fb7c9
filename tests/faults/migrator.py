# SPDX-License-Identifier: Apache-2.0
"""Processes of a newer Penstock: each opens a store with one more migration, all at once.

One start of the interpreter serves many: they are forked before any store is open, and let go
together.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from penstock.stores.sqlite.store import SqliteStore
from tests.faults import launcher
from tests.faults.old_stores import and_one_more


def main() -> None:
    """argv: script of the next migration, and a JSON array of [database, {point: rule}]."""
    script, cases = Path(sys.argv[1]).read_text(), json.loads(sys.argv[2])
    gate, opener = os.pipe()
    children = []
    for database, rules in cases:
        child = os.fork()
        if child == 0:
            os.close(opener)
            os.environ[launcher.VARIABLE] = json.dumps({"migrator": rules})
            launcher.arm("migrator")
            os.read(gate, 1)  # until everybody is there
            steps = and_one_more(script)
            SqliteStore.open(Path(database), durability="normal", migrations=steps).close()
            os._exit(0)
        children.append(child)
    os.close(opener)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.stdout.write(json.dumps(codes))

# SPDX-License-Identifier: Apache-2.0
"""Which faults are there, and which of them must have a test by now?

The one list: docs/faults.md is made from it and from the tests whose names begin with
`test_fNN_`. A row that comes with a later part claims nothing.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs/faults.md"
_TEST = re.compile(r"^test_(f\d\d)_")

WEB = "the web view"

#: Rows whose tests are there. Each of them must have one; the list grows with the tests.
DUE = (
    *(f"F{n:02}" for n in (*range(1, 9), *range(10, 23), *range(24, 37), *range(53, 59))),
    *("F37", "F38", "F39", "F40", "F41", "F42", "F43", "F59", "F60", "F61", "F62", "F72"),
    *("F09", "F23", "F63", "F64"),
    *("F44", "F45", "F46", "F47", "F48", "F50", "F51", "F52"),
    *(f"F{n:02}" for n in range(75, 90)),
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One row of the catalogue."""

    id: str
    what: str
    comes_with: str | None = None  # the part that brings it; None: the hardened queue, now
    soak: str = ""  # the command that proves it at length


CATALOGUE = (
    Fault("F01", "kill -9 of a producer around its enqueue", soak="make soak-kill"),
    Fault("F02", "kill -9 between lease and dispatch", soak="make soak-kill"),
    Fault("F03", "kill -9 while a task runs", soak="make soak-kill"),
    Fault("F04", "kill -9 after a task, before its acknowledgement", soak="make soak-kill"),
    Fault("F05", "kill -9 in or after an acknowledgement", soak="make soak-kill"),
    Fault("F06", "kill -9 of a worker, supervisor alive", soak="make soak-kill"),
    Fault("F07", "kill -9 of the supervisor, worker alive", soak="make soak-kill"),
    Fault("F08", "kill -9 in the middle of a large sweep", soak="make soak-kill"),
    Fault("F09", "two daemons on one store", soak="make soak-daemons"),
    Fault("F10", "a task that kills its worker again and again"),
    Fault("F11", "power loss at any write or sync", soak="make soak-power"),
    Fault("F12", "a lease expires while its task still runs"),
    Fault("F13", "the same acknowledgement twice"),
    Fault("F14", "an acknowledgement after the job was leased again"),
    Fault("F15", "acknowledgement and sweep at the same instant"),
    Fault("F16", "a renewal after expiry"),
    Fault("F17", "a passing store error on an acknowledgement"),
    Fault("F18", "a blocked loop, a held GIL, a slow process"),
    Fault("F19", "the wall clock jumps"),
    Fault("F20", "the machine sleeps and wakes"),
    Fault("F21", "clocks of a fleet differ"),
    Fault("F22", "two workers look the same"),
    Fault("F23", "a scheduler that was cut off"),
    Fault("F24", "the disk is full"),
    Fault("F25", "file, folder or mount is read-only"),
    Fault("F26", "the database is damaged", soak="make soak-sqlite"),
    Fault("F27", "another process locks the database"),
    Fault("F28", "many writers at once", soak="make soak-sqlite"),
    Fault("F29", "a reader keeps the log from shrinking", soak="make soak-sqlite"),
    Fault("F30", "an I/O error on sync", soak="make soak-sqlite"),
    Fault("F31", "a fork with an open store"),
    Fault("F32", "network file systems, links to the database"),
    Fault("F33", "an SQLite with the WAL-reset bug"),
    Fault("F34", "backup while running, restore under old workers"),
    Fault("F35", "the server restarts again and again", soak="make soak-pg"),
    Fault("F36", "the connection is cut during a commit", soak="make soak-pg"),
    Fault("F37", "fail-over to a replica that is behind"),
    Fault("F38", "a worker is cut off from the database"),
    Fault("F39", "a peer vanishes without a word"),
    Fault("F40", "a pooler in transaction mode"),
    Fault("F41", "a foreign transaction stops the vacuum"),
    Fault("F42", "no connections are left"),
    Fault("F43", "serialization failures, deadlocks, a read-only standby"),
    Fault("F44", "a storm of 429"),
    Fault("F45", "a Retry-After that makes no sense"),
    Fault("F46", "5xx, resets, TLS and DNS failures"),
    Fault("F47", "hung, slow or endless answers"),
    Fault("F48", "a cancellation at every await of a request"),
    Fault("F49", "a worker dies with fleet-wide permits", "the fleet"),
    Fault("F50", "the herd after a cooldown"),
    Fault("F51", "a limit collapses, runs away or swings"),
    Fault("F52", "a provider that lies"),
    Fault("F53", "a task that never yields"),
    Fault("F54", "a task that swallows its cancellation"),
    Fault("F55", "a task that raises what it should not"),
    Fault("F56", "a task that forks, leaks or changes its process"),
    Fault("F57", "results and payloads that are no strict JSON"),
    Fault("F58", "JSONL files of every bad kind"),
    Fault("F59", "circles, missing and huge dependencies", soak="make soak-size"),
    Fault("F60", "time zones, leap days, empty calendars", soak="make soak-calendar"),
    Fault("F61", "very many groups, strange names"),
    Fault("F62", "signals, once and twice, at every moment"),
    Fault("F63", "preflights that fail, hang or flap"),
    Fault("F64", "a schedule that overruns or raises", soak="make soak-daemon"),
    Fault("F65", "an event sink that raises, blocks or is full", "the journal and the live view"),
    Fault("F66", "names and texts that are HTML", WEB),
    Fault("F67", "forged requests and rebound names", WEB),
    Fault("F68", "an open address without authentication", WEB),
    Fault("F69", "paths that lead outside", WEB),
    Fault("F70", "huge limits, many and slow clients", WEB),
    Fault("F71", "secrets in errors, events and pages", "the journal and the live view"),
    Fault("F72", "versions meet: old stores, killed migrations, old workers"),
    Fault("F73", "Ray loses actors, nodes or its head", "the fleet"),
    Fault("F74", "a day of load with faults", "the release"),
    Fault("F75", "programs that a task started, when it or its worker dies"),
    Fault("F76", "output that nobody reads"),
    Fault("F77", "spending: sends of unknown fate, kills, many processes"),
    Fault("F78", "code of users that blocks after its body"),
    Fault("F79", "a run that stands still (Ctrl-Z) and goes on"),
    Fault("F80", "redirects to elsewhere, with keys and bodies"),
    Fault("F81", "held-back work beside other work"),
    Fault("F82", "a dead provider beside a healthy one"),
    Fault("F83", "a dead key, an empty account"),
    Fault("F84", "a provider that asks for a long pause"),
    Fault("F85", "errors of a task's own code that look like the network's"),
    Fault("F86", "a bug after a paid call"),
    Fault("F87", "two apps on one store"),
    Fault("F88", "files that others may write"),
    Fault("F89", "files named like modules of Python, few descriptors"),
)


def fault_tests(root: Path = REPOSITORY) -> dict[str, list[str]]:
    """The tests that exist, as `path::name`, by the row that their name begins with."""
    found: dict[str, list[str]] = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        text = path.read_text()
        if "def test_f" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (
                match := _TEST.match(node.name)
            ):
                test = f"{path.relative_to(root)}::{node.name}"
                found.setdefault(match[1].upper(), []).append(test)
    return found

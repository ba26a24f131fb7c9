# SPDX-License-Identifier: Apache-2.0
"""Which migrations are missing?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files

_NAME = re.compile(r"^(\d{4})_[a-z0-9_]+\.sql$")


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered step forward; its file never changes once released."""

    number: int
    name: str
    script: str


def read_migrations(package: str) -> list[Migration]:
    """All steps of a backend, in order, numbered from 1 without gaps."""
    found = []
    for entry in files(package).joinpath("migrations").iterdir():
        if match := _NAME.match(entry.name):
            script = entry.read_text(encoding="utf-8")
            found.append(Migration(int(match.group(1)), entry.name, script))
    found.sort(key=lambda step: step.number)
    if [step.number for step in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"the migrations of {package} are not numbered 1, 2, 3 …")
    return found

# SPDX-License-Identifier: Apache-2.0
"""Suggested commands name the app and the store that were given; counts agree with their nouns."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.cli.target import Target
from penstock.sentences import command, counted

SOURCES = Path(__file__).parents[2] / "src" / "penstock"


def test_a_suggested_command_repeats_the_flags_that_were_given() -> None:
    assert command("explain") == "penstock explain"

    Target.named(app="my app.py", store="sqlite:///a.db", slots=4)
    assert command("explain") == "penstock explain --app 'my app.py' --store sqlite:///a.db"

    Target.named(app=None)
    assert command("explain") == "penstock explain"


def test_a_suggested_command_shows_no_password() -> None:
    Target.named(store="postgresql://me:hunter2secret@host/db")

    assert "hunter2secret" not in command("explain")


def test_counts_agree_with_their_nouns() -> None:
    assert counted(1, "job") == "1 job"
    assert counted(1_200, "job") == "1,200 jobs"
    assert counted(2, "try", "tries") == "2 tries"


def test_no_text_of_ours_leaves_the_plural_to_its_reader() -> None:
    found = [
        f"{path.name}: {line.strip()}"
        for path in SOURCES.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"[a-z]\(s\)", line) and not re.search(r"\w\(s\)[):\]]", line)
    ]
    assert [one for one in found if '"' in one] == []

# SPDX-License-Identifier: Apache-2.0
"""The page about the architecture names the rooms and modules that there are."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE = REPOSITORY / "src/penstock"
PAGE = (REPOSITORY / "docs/architecture.md").read_text()
TODAY = PAGE.partition("## Old to new")[0]


def text_of(file: str) -> str:
    return (SOURCE / file).read_text()


def test_the_table_of_rooms_is_the_tree() -> None:
    shown = {}
    for line in TODAY.splitlines():
        room = re.match(r"\| `([a-z_/]+)/` \|", line)
        if room:
            shown[room[1]] = set(re.findall(r"`([a-z_]+)`", line.rpartition(" | ")[2]))
    there: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        if path.stem != "__init__":
            room_name = path.parent.relative_to(SOURCE.parent).as_posix()
            there.setdefault(room_name.removeprefix("penstock/"), set()).add(path.stem)

    assert shown == there


def test_every_file_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)+\.(?:py|sql))`", TODAY))

    assert len(named) > 30
    assert [name for name in named if not (SOURCE / name).exists()] == []


def test_every_function_that_the_page_names_is_in_the_file_beside_it() -> None:
    places = re.findall(r"`([A-Za-z_.]+)`(?: and `([A-Za-z_.]+)`)? in `([a-z_/]+\.py)`", TODAY)
    named = [(name, file) for *names, file in places for name in names if name]
    missing = [
        f"{name} in {file}"
        for name, file in named
        for part in name.split(".")
        if not re.search(rf"\b(?:def|class) {part}\b|^{part}\b", text_of(file), re.MULTILINE)
    ]

    assert len(named) > 20
    assert missing == []


def test_old_modules_lead_to_modules_that_are_there() -> None:
    table = PAGE.partition("## Old to new")[2]
    rows = re.findall(r"^\| `([a-z_/]+)` \|", table, re.MULTILINE)

    assert len(rows) > 100
    assert [name for name in rows if not (SOURCE / f"{name}.py").exists()] == []


def test_the_classes_in_the_picture_of_who_decides_exist() -> None:
    page = (REPOSITORY / "docs/how-it-works.md").read_text()
    picture = page.partition("## Who decides")[2].partition("##")[0].split("```")[1]
    named = set(re.findall(r"\b(?:[A-Z][a-z]+){2,}\b|\b(?:Gate|Adaptive|Aimd)\b", picture))
    admission = [*SOURCE.glob("admission/**/*.py"), SOURCE / "model/request.py"]
    there = set(re.findall(r"^class (\w+)", "\n".join(map(Path.read_text, admission)), re.M))

    assert len(named) >= 12
    assert named - there == set()

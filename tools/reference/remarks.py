# SPDX-License-Identifier: Apache-2.0
"""What does a class say beside its members?

A remark is the comment at the end of a member's line, or the `#:` lines above it.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

_AT_THE_END = re.compile(r"\s{2}# (?P<remark>.+)$")
_ABOVE = re.compile(r"^\s*#: (?P<remark>.+)$")


class Member(NamedTuple):
    """One member of a class, as its source has it."""

    name: str
    annotation: str  # as written; empty if there is none
    remark: str  # empty if nothing is said


def members(owner: type) -> list[Member]:
    """The members that a class itself assigns or annotates, in their order."""
    source = textwrap.dedent(inspect.getsource(owner))
    lines = source.splitlines()
    found = []
    for node in _body(source):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name, annotation = node.target.id, ast.unparse(node.annotation)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, annotation = node.targets[0].id, ""
        else:
            continue
        found.append(Member(name, annotation, _remark(lines, node)))
    return found


def remarks(owner: type) -> dict[str, str]:
    """What is said beside each member."""
    return {member.name: member.remark for member in members(owner)}


def table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A table of Markdown; a bar inside a cell is escaped."""
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _body(source: str) -> list[ast.stmt]:
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    return definition.body


def _remark(lines: list[str], node: ast.stmt) -> str:
    if found := _AT_THE_END.search(lines[(node.end_lineno or node.lineno) - 1]):
        return found["remark"]
    above: list[str] = []
    for line in reversed(lines[: node.lineno - 1]):
        found = _ABOVE.match(line)
        if found is None:
            break
        above.insert(0, found["remark"])
    return " ".join(above)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")

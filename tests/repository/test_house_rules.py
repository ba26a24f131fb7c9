# SPDX-License-Identifier: Apache-2.0
"""The reviewer's two minutes, as tests: rules that a grep can check."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from penstock import failpoints

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE = REPOSITORY / "src/penstock"
FILES = sorted(SOURCE.rglob("*.py"))
FORBIDDEN_IMPORTS = {"pickle", "marshal", "shelve", "yaml", "jsonpickle", "dill", "cloudpickle"}
SQL = re.compile(r"\b(SELECT|INSERT INTO|UPDATE [a-z]+ SET|DELETE FROM)\b", re.IGNORECASE)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def test_no_sql_stands_in_python_files() -> None:
    found = []
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and SQL.search(text) and "\n" not in text and text.islower():
                found.append(f"{path.name}: {text}")

    assert found == []


def test_deciding_and_noun_packages_neither_wait_nor_log() -> None:
    pattern = re.compile(r"^\s*(async def|await )|^import logging", re.MULTILINE)

    found = [
        path.name
        for package in ("admission", "model", "planning", "retry")
        for path in (SOURCE / package).rglob("*.py")
        if pattern.search(path.read_text())
    ]

    assert found == []


def test_no_test_imports_an_sdk_before_it_runs() -> None:
    early = re.compile(r"^(import|from) (anthropic|openai)\b", re.MULTILINE)

    found = [
        path for path in (REPOSITORY / "tests").rglob("*.py") if early.search(path.read_text())
    ]

    assert found == []  # it would take every process of a test run seconds


def test_no_file_has_a_name_that_says_nothing() -> None:
    names = {path.stem for path in FILES}

    assert not names & {"utils", "helpers", "common", "misc", "base"}


def test_nothing_from_a_store_can_become_code() -> None:
    found = []
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                names = [node.func.id] if node.func.id in {"eval", "exec"} else []
            found += [
                f"{path.name}: {name}"
                for name in names
                if name.partition(".")[0] in FORBIDDEN_IMPORTS | {"eval", "exec"}
            ]

    assert found == []


def test_every_failpoint_is_passed_and_every_passed_one_is_known() -> None:
    text = "".join(path.read_text() for path in FILES)

    passed = re.findall(r'(?:failpoints\.hit|\.passed\.append)\("([a-z._]+)"\)', text)

    assert set(passed) | {"exec.during"} == failpoints.POINTS


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_file_begins_with_the_question_it_answers(path: Path) -> None:
    docstring = ast.get_docstring(tree_of(path))

    assert docstring
    assert docstring.splitlines()[0].endswith((".", "?", ":"))

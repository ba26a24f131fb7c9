# SPDX-License-Identifier: Apache-2.0
"""The reviewer's two minutes, as tests: rules that a grep can check."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from penstock import errors, failpoints
from tools import house

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE = REPOSITORY / "src/penstock"
FILES = sorted(SOURCE.rglob("*.py"))
FORBIDDEN_IMPORTS = {"pickle", "marshal", "shelve", "yaml", "jsonpickle", "dill", "cloudpickle"}
CONSTRUCTOR_PARAMETERS_MAX = 8
FUNCTION_LINES_MAX = 70
FUNCTION_LINES_P90 = 25
NOUNS_IN_ING = {
    "accounting",
    "recycling",
    "sampling",
    "slot_lending",
    "spending",
    "timing",
    "wiring",
}
SHARED_ROOTS = {  # what many classes share; one level more may stand on it
    "CalendarBase": "calendars with the same text are equal",
    "SpanBudget": "a budget of a scope has one for each span",
    "SqlReader": "a server's answers differ from a file's, whoever asks",
    "Statements": "runs statements by name",
    "Task": "schedules and preflights are tasks that nobody enqueues",
    "_Section": "how settings are read",
}
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
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


def test_every_file_begins_with_a_statement_of_what_it_does() -> None:
    found = []
    for path in FILES:
        first = (ast.get_docstring(tree_of(path)) or "").partition("\n")[0]
        if not first.endswith((".", ":")):
            found.append(f"{path.relative_to(SOURCE)}: {first!r}")

    assert found == []


def test_docstrings_state_and_do_not_ask() -> None:
    found = []
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, Documented):
                first = (ast.get_docstring(node) or "").partition("\n")[0]
                if first.endswith("?"):
                    found.append(f"{path.relative_to(SOURCE)}: {first!r}")

    assert found == []


def test_constructors_take_at_most_eight_parameters() -> None:
    found = [
        f"{path.relative_to(SOURCE)}: {name} takes {count}"
        for path in FILES
        for name, count in house.constructors_of(tree_of(path))
        if count > CONSTRUCTOR_PARAMETERS_MAX
    ]

    assert found == []


def test_functions_are_short() -> None:
    lengths: dict[str, int] = {
        f"{path.relative_to(SOURCE)}: {function.name}": house.body_lines(function)
        for path in FILES
        for function in house.functions_of(tree_of(path))
    }

    assert [name for name, lines in lengths.items() if lines > FUNCTION_LINES_MAX] == []
    assert sorted(lengths.values())[int(len(lengths) * 0.9)] <= FUNCTION_LINES_P90


def test_inheritance_among_our_classes_is_one_level_deep() -> None:
    bases: dict[str, set[str]] = {}
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                bases.setdefault(node.name, set()).update(names_of_bases(node))
    ours = {name: parents & bases.keys() for name, parents in bases.items() if not is_error(name)}

    found = [
        f"{name} < {parent} < {', '.join(sorted(ours[parent]))}"
        for name, parents in ours.items()
        for parent in parents
        if ours.get(parent, set()) - SHARED_ROOTS.keys()
    ]

    assert found == []


def is_error(name: str) -> bool:
    """Errors are a tree: it is drawn in errors.py."""
    return isinstance(getattr(errors, name, None), type)


def names_of_bases(node: ast.ClassDef) -> set[str]:
    """The last names of what a class inherits from: `a.B[C]` is B."""
    plain = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    return {ast.unparse(base).rpartition(".")[2] for base in plain}


def test_modules_are_named_by_nouns() -> None:
    gerunds = {path.stem for path in FILES if path.stem.endswith("ing")}

    assert gerunds <= NOUNS_IN_ING

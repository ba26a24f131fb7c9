# SPDX-License-Identifier: Apache-2.0
"""Every command and snippet of README and docs is run as a reader would run it.

Those of the README wholly so; on other pages, plain calls of `penstock` and `python` are clones.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forked import Forked, ForkedWithArrow, ForkedWithOpenAI, run_forked

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAMS = {
    "penstock": [sys.executable, "-m", "penstock_command"],
    "python": [sys.executable],
}
PATIENCE_SECONDS = 240.0  # with one command, on a busy machine
SHELL = re.compile(r"[|&;<>$`*~]")  # whoever uses these needs one
THEN = re.compile(r"(penstock [^|&;<>$`*~]+?)\s*(\|\||\||;)\s*(.+)")  # a call, and what follows it
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = sorted(
    path
    for path in [
        REPOSITORY / "README.md",
        REPOSITORY / "AGENTS.md",
        *(REPOSITORY / "docs").rglob("*.md"),
    ]
    if path.exists()
)

#: Its snippets need a server: test_postgresql_page.py runs them.
WITH_SERVER = REPOSITORY / "docs/operations/postgresql.md"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A reader's folder; what a page starts in the background, and names in a file, is ended."""
    yield tmp_path
    for named in tmp_path.glob("*.pid"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(named.read_text()), signal.SIGKILL)


def blocks(page: Path) -> list[tuple[str, str]]:
    return FENCE.findall(page.read_text())


def run(
    command: list[str] | str, folder: Path, *, cloned: type[Forked] | None = None, said: str = ""
) -> subprocess.CompletedProcess[str]:
    if cloned and isinstance(command, str) and (found := THEN.fullmatch(command)):
        first, how, rest = found.groups()
        done = run(first, folder, cloned=cloned)
        if how == "|":
            return run(rest, folder, said=done.stdout)
        return run(f"(exit {done.returncode}) {how} {rest}", folder)
    if cloned and isinstance(command, str) and not SHELL.search(command):
        program, *words = shlex.split(command)
        if program in PROGRAMS:
            command = [*PROGRAMS[program], *words]
    if cloned and not isinstance(command, str):
        return run_forked(
            command,
            popen=cloned,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        shell=isinstance(command, str),
        input=said,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )


def cloned_on(page: Path) -> type[Forked]:
    text = page.read_text()
    if "@app.dataset(" in text or "app.table(" in text:
        return ForkedWithArrow
    return ForkedWithOpenAI if "from openai import" in text else Forked


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page != WITH_SERVER],
    ids=lambda page: str(page.relative_to(REPOSITORY)),
)
def test_the_snippets_of_a_page_work_in_their_order(page: Path, folder: Path) -> None:
    cloned = None if page.name == "README.md" else cloned_on(page)
    for language, text in blocks(page):
        if language == "python":
            name = re.match(r"# (\w+\.py)\n", text)
            assert name, f"a Python snippet of {page.name} names no file in its first line"
            (folder / name[1]).write_text(text)
            if name[1].startswith("test_"):
                done = run(
                    [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", name[1]],
                    folder,
                    cloned=cloned,
                )
            else:
                done = run([sys.executable, "-c", f"import {name[1][:-3]}"], folder, cloned=cloned)
            assert done.returncode == 0, done.stdout + done.stderr
        elif language == "sh":
            for command in text.strip().splitlines():
                if command.startswith("make "):
                    check_target(command)
                    continue
                done = run(command, folder, cloned=cloned)
                assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        elif language == "toml":
            tomllib.loads(text)
            (folder / "penstock.toml").write_text(text)
            done = run("penstock queue stats --json", folder, cloned=cloned)
            assert done.returncode == 0, done.stderr
        else:
            assert language in {"text", ""}, (
                f"an unknown kind of snippet in {page.name}: {language}"
            )


def check_target(command: str) -> None:
    """The two commands of the frame are run by CI itself; here their targets must exist."""
    target = command.split()[1]
    assert re.search(rf"^{target}:", (REPOSITORY / "Makefile").read_text(), re.MULTILINE), command


@pytest.mark.parametrize(
    "page", [*PAGES, REPOSITORY / "llms.txt"], ids=lambda page: str(page.relative_to(REPOSITORY))
)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if "://" in target:
            continue
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_the_links_of_a_page_lead_to_headings(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)]+)\)", page.read_text()):
        if "://" in target:
            continue
        text = ((page.parent / target) if target else page).read_text()
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        anchors = {
            re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings
        }
        assert anchor in anchors, f"{page.name} links to {target}#{anchor}"


def test_the_first_pipeline_of_the_readme_has_at_most_fifteen_lines() -> None:
    first = next(
        text for language, text in blocks(REPOSITORY / "README.md") if language == "python"
    )

    assert len([line for line in first.splitlines() if line.strip()]) <= 15


def test_the_live_view_of_the_readme_is_the_one_of_its_page() -> None:
    """That page is compared with what the code composes."""
    page = (REPOSITORY / "docs/guide/live-view.md").read_text().splitlines()
    view = next(text for language, text in blocks(REPOSITORY / "README.md") if language == "text")

    assert [line for line in view.splitlines() if line not in page] == []

# SPDX-License-Identifier: Apache-2.0
"""Does what a user writes pass a strict type checker, and does what is wrong not?"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import stdev
from textwrap import indent

import pytest

from penstock.testing import harness
from tests.acceptance.test_embedding import cells
from tests.samples import planning_page, testing_a_pipeline

pytestmark = pytest.mark.acceptance

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = sorted((ROOT / "tests/samples").glob("[a-z]*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SNIPPET = re.compile(r"^```python\n(# (\w+)\.py\n.*?)^```$", re.MULTILINE | re.DOTALL)

#: Each line must be refused, with this in the message.
MISTAKES = {
    "fetch.job(doi=5)": 'Argument "doi"',
    "fetch.job()": 'Missing positional argument "doi"',
    'fetch.job(isbn="x")': 'Unexpected keyword argument "isbn"',
    'app.enqueue("x")': 'Argument 1 to "enqueue"',
    'app.enqueue(fetch.job(doi="x"), delay=[5])': 'Argument "delay"',
    "app.task(metadata=5)": 'Argument "metadata"',
    'SchedulingMetadata.local("parse", weight="2")': 'Argument "weight"',
    'SchedulingMetadata.model("openai", "gpt-5", "chat")': 'Missing positional argument "weight"',
    "watch.every(10)(with_region)": "Argument 1",
    "watch.every(10, over=repos)(with_region)": "Argument 1",
    "watch.every(10, over=(repos, regions))(with_region)": "Argument 1",
    "watch.preflight(over=repos)(with_region)": "Argument 1",
    "watch.preflight(over=regions)(with_region)": "Argument 1",
    "watch.every(10, over=5)": "No overload variant",
    "watch.every(10, executor='process')": 'Unexpected keyword argument "executor"',
    "watch.preflight(over=regions, recheck='yes')": "No overload variant",
    "watch.baseline(node=5)": 'Argument "node"',
    "watch.baseline(classify=lambda error: 5)": "Argument",
    "watch.partitions('x', of=5)": "No overload variant",
    "watch.partitions('x')": "No overload variant",
    "poll_issues(5, 5)": "Argument 1",
}
#: Over regions it is right as a tick, and wrong everywhere else.
WITH_REGION = "def with_region(ctx: TickContext, region: str) -> None: ..."


def folders_of_readers() -> Iterator[tuple[str, dict[str, str]]]:
    """What a reader copies into one folder: the modules of an example, the snippets of a page."""
    for folder in sorted((ROOT / "examples").iterdir()):
        yield folder.name, {file.stem: file.read_text() for file in folder.glob("*.py")}
    for page in PAGES:
        found = {name: text for text, name in SNIPPET.findall(page.read_text())}
        yield re.sub(r"\W", "_", str(page.relative_to(ROOT).with_suffix(""))), found


def in_one_folder(folder: Path) -> list[str]:
    """The files of readers beside each other, whose modules have names of their own."""
    paths = []
    for prefix, modules in folders_of_readers():
        names = "|".join(modules)
        for name, text in modules.items():
            path = folder / f"{prefix}_{name}.py"
            path.write_text(
                re.sub(rf"^( *(?:from|import)) ({names})\b", rf"\1 {prefix}_\2", text, flags=re.M)
            )
            paths.append(str(path))
    return paths


def mypy(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    options = ["--strict", "--no-error-summary", "--hide-error-context"]
    return subprocess.run(
        [sys.executable, "-m", "mypy", *options, *arguments],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_samples_are_strictly_typed_and_mistakes_are_found(tmp_path: Path) -> None:
    mistakes = tmp_path / "mistakes.py"
    lines = [
        "from penstock import SchedulingMetadata, TickContext",
        "from tests.samples.first_pipeline import app, fetch",
        "from tests.samples.watch_repositories import app as watch, poll_issues, regions, repos",
        WITH_REGION,
        "watch.every(10, over=regions)(with_region)",
        *MISTAKES,
    ]
    mistakes.write_text("\n".join(lines) + "\n")

    notebook = tmp_path / "notebook.py"
    code = "\n".join(cells(ROOT / "examples/notebook/measure.ipynb"))
    notebook.write_text("async def notebook() -> None:\n" + indent(code, "    "))

    copied = in_one_folder(tmp_path)
    checked = mypy(*map(str, SAMPLES), *copied, str(notebook), str(mistakes), folder=tmp_path)

    found = dict(enumerate(lines, start=1))
    told = checked.stdout.splitlines()
    assert len(SAMPLES) >= 4
    assert len(copied) > 50
    assert [line for line in told if "mistakes.py" not in line] == [], checked.stdout
    for number, line in found.items():
        if line not in MISTAKES:
            assert f"mistakes.py:{number}: " not in checked.stdout, checked.stdout
        else:
            about = [text for text in told if f"mistakes.py:{number}: error" in text]
            assert about, f"{line!r} was not refused"
            assert MISTAKES[line] in about[0]


def test_the_sample_tests_pass() -> None:
    testing_a_pipeline.test_a_known_doi_has_a_title()
    testing_a_pipeline.test_a_bad_argument_is_refused_when_it_is_enqueued()


def test_the_datasets_of_the_specification_are_built() -> None:
    """A report of January is at midnight before the 31st: it sees the session of the 30th."""
    january = (2, 3, 4, 5, 8, 9, 10, 11, 12, 16, 17, 18, 19, 22, 23, 24, 25, 26, 29, 30)
    with harness(planning_page.app) as test:
        built = test.build(planning_page.report, start="2024-01-01", end="2024-07-01")

        assert (built.ok, built.slices) == (True, 6 * 20 + 6 + 6)
        values = test.read(planning_page.report)["value"].to_pylist()
        assert len(values) == 6
        assert values[0] == pytest.approx(stdev(january))

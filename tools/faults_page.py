# SPDX-License-Identifier: Apache-2.0
"""Run every fault test and write docs/faults.md: which fault, which tests, when, how it went.

`make faults`. The page is made from tests/faults/catalogue.py and from the names of the tests; a
test of the suite compares it with the tests that exist.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

from tests.faults.catalogue import CATALOGUE, PAGE, REPOSITORY, Fault, fault_tests

HEAD = """# Faults

What must not break us, and the tests that show that it does not. Made by `make faults`; do not
edit by hand. Rows that come with a later part are listed so that the list is whole; nothing is
claimed about them.
"""


@dataclass(slots=True)
class Result:
    """How the cases of one test went."""

    passed: int = 0
    failed: int = 0
    skipped: list[str] = field(default_factory=list)  # the reasons

    @property
    def word(self) -> str:
        if self.failed or not (self.passed or self.skipped):
            return "failed"
        return "skipped" if self.skipped else "passed"

    def text(self) -> str:
        """A word, and where it is not simply that all passed: how many, and why."""
        if self.failed:
            return f"**failed** ({self.failed} of {self.failed + self.passed})"
        if not self.passed and not self.skipped:
            return "**failed** (it did not run)"
        if not self.skipped:
            return "passed"
        reasons = "; ".join(dict.fromkeys(self.skipped))
        return f"skipped: {reasons}" if not self.passed else f"passed, partly skipped: {reasons}"


def run(tests: Sequence[str], workers: int) -> dict[str, Result]:
    """Run the tests; the result of each by its id."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-n", str(workers), "--dist", "worksteal"]
        options = [f"--junitxml={report}", "-o", "junit_family=xunit1"]
        code = subprocess.run([*command, *options, *tests], cwd=REPOSITORY, check=False).returncode
        if not report.exists():
            raise SystemExit(f"pytest ended with {code} before it ran a test.")
        return read_results(ElementTree.parse(report).getroot(), tests)


def read_results(report: ElementTree.Element, tests: Sequence[str]) -> dict[str, Result]:
    results = {test: Result() for test in tests}
    for case in report.iter("testcase"):
        name = str(case.get("name")).partition("[")[0]
        result = results[f"{case.get('file')}::{name}"]
        skipped = case.find("skipped")
        if skipped is not None:
            result.skipped.append(str(skipped.get("message")))
        elif case.find("failure") is not None or case.find("error") is not None:
            result.failed += 1
        else:
            result.passed += 1
    return results


def page(
    faults: Sequence[Fault],
    tests: Mapping[str, Sequence[str]],
    results: Mapping[str, Result],
    date: str,
    kept: Mapping[str, tuple[str, str]] = {},
) -> str:
    """The whole page as text; `kept` are date and result of tests that passed and are not run."""
    automated = [fault for fault in faults if fault.id in tests]
    words = [
        "passed" if test in kept else results[test].word
        for fault in automated
        for test in tests[fault.id]
    ]
    lines = [
        HEAD,
        f"Rows {len(faults)} · automated {len(automated)} · tests {len(words)} · "
        f"passed {words.count('passed')} · skipped {words.count('skipped')} · "
        f"failed {words.count('failed')}",
        "",
        "| id | fault | test | at length | last run | result |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for fault in faults:
        soak = f"`{fault.soak}`" if fault.soak else ""
        for number, test in enumerate(tests.get(fault.id, ())):
            what = "" if number else fault.what
            on, result = kept.get(test) or (date, _cell(results[test].text()))
            lines.append(f"| {fault.id} | {what} | `{test}` | {soak} | {on} | {result} |")
            soak = ""
        if fault.id not in tests:
            comes = f"comes with {fault.comes_with}" if fault.comes_with else "not yet automated"
            lines.append(f"| {fault.id} | {fault.what} | | {soak} | | {comes} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def passed_on(text: str) -> dict[str, tuple[str, str]]:
    """The tests that passed when a page was written, with the date of that."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if "| `tests/" in line]
    return {row[2].strip("`"): (row[-2], row[-1]) for row in rows if row[-1] == "passed"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--new", action="store_true", help="run only tests that have not passed on the page"
    )
    arguments = parser.parse_args()
    tests = fault_tests()
    kept = passed_on(PAGE.read_text()) if arguments.new else {}
    wanted = [test for found in tests.values() for test in found if test not in kept]
    results = run(wanted, arguments.workers) if wanted else {}
    date = datetime.now(UTC).date().isoformat()
    PAGE.write_text(page(CATALOGUE, tests, results, date, kept))
    bad = [test for test, result in results.items() if result.word == "failed"]
    print(f"{PAGE.relative_to(REPOSITORY)} is written: {len(results)} tests, {len(bad)} failed.")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

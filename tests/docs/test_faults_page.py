# SPDX-License-Identifier: Apache-2.0
"""docs/faults.md names the tests that exist, and every fault that is due has one."""

from __future__ import annotations

import re
from functools import cache
from xml.etree import ElementTree

from tests.faults import catalogue
from tests.faults.catalogue import CATALOGUE, DUE, PAGE, Fault
from tools.faults_page import Result, page, passed_on, read_results

ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.read_text().splitlines()
    if re.match(r"\| F\d\d \|", line)
]

fault_tests = cache(catalogue.fault_tests)  # it reads every test


def test_the_catalogue_is_f01_to_f89() -> None:
    assert [fault.id for fault in CATALOGUE] == [f"F{n:02}" for n in range(1, 90)]


def test_every_fault_that_is_due_has_a_test() -> None:
    tests = fault_tests()

    assert set(DUE) <= {fault.id for fault in CATALOGUE if fault.comes_with is None}
    assert [fault for fault in DUE if fault not in tests] == []


def test_every_fault_test_belongs_to_a_row() -> None:
    assert set(fault_tests()) <= {fault.id for fault in CATALOGUE}


def test_the_page_names_exactly_the_tests_that_exist() -> None:
    existing = {(fault, test) for fault, tests in fault_tests().items() for test in tests}
    named = {(row[0], test) for row in ROWS for test in re.findall(r"`(tests/[^`]+)`", row[2])}

    assert named == existing, "run `make faults`"


def test_the_page_lists_every_row_and_counts_them() -> None:
    tests = fault_tests()
    counts = dict(re.findall(r"(\w+) (\d+)(?: ·|$)", _counts_line()))

    assert {row[0] for row in ROWS} == {fault.id for fault in CATALOGUE}
    assert counts["Rows"] == "89"
    assert counts["automated"] == str(len(tests))
    results = [row[5] for row in ROWS if row[2].startswith("`tests/")]
    assert counts["tests"] == str(len(results))
    assert counts["passed"] == str(sum(text == "passed" for text in results))
    assert counts["skipped"] == str(sum("skipped" in text for text in results))
    assert counts["failed"] == str(sum("failed" in text for text in results)) == "0"


def _counts_line() -> str:
    (line,) = [line for line in PAGE.read_text().splitlines() if line.startswith("Rows ")]
    return line


def test_the_page_tells_passed_failed_skipped_and_what_did_not_run() -> None:
    report = ElementTree.fromstring(
        """<testsuites><testsuite>
        <testcase file="t.py" name="test_f01_a"/>
        <testcase file="t.py" name="test_f02_b[1]"/>
        <testcase file="t.py" name="test_f02_b[2]"><failure message="no"/></testcase>
        <testcase file="t.py" name="test_f03_c"><skipped message="needs | strace"/></testcase>
        </testsuite></testsuites>"""
    )
    tests = {f"F0{n}": [f"t.py::test_f0{n}_{name}"] for n, name in enumerate("abcd", start=1)}

    results = read_results(report, [test for found in tests.values() for test in found])
    text = page(
        [*(Fault(f"F0{n}", "what") for n in range(1, 5)), Fault("F05", "later", "the rest")],
        tests,
        results,
        "2000-01-01",
    )

    rows = [line.rpartition(" | ")[2] for line in text.splitlines() if line.startswith("| F")]
    assert rows == [
        "passed |",
        "**failed** (1 of 2) |",
        "skipped: needs \\| strace |",
        "**failed** (it did not run) |",
        "comes with the rest |",
    ]
    assert "Rows 5 · automated 4 · tests 4 · passed 1 · skipped 1 · failed 2" in text


def test_a_test_of_which_some_cases_are_skipped_is_not_called_passed() -> None:
    result = Result(passed=1, skipped=["needs root", "needs root"])

    assert result.text() == "passed, partly skipped: needs root"
    assert result.word == "skipped"


def test_what_has_passed_before_keeps_its_date() -> None:
    faults, tests = [Fault("F01", "what")], {"F01": ["tests/t.py::test_f01_a", "tests/t.py::b"]}
    before = page(faults, tests, {one: Result(passed=1) for one in tests["F01"]}, "2000-01-01")
    kept = passed_on(before)
    del kept["tests/t.py::b"]

    after = page(faults, tests, {"tests/t.py::b": Result(failed=1)}, "2000-01-02", kept)

    assert "`tests/t.py::test_f01_a` |  | 2000-01-01 | passed |" in after
    assert "`tests/t.py::b` |  | 2000-01-02 | **failed** (1 of 1) |" in after
    assert set(passed_on(after)) == {"tests/t.py::test_f01_a"}

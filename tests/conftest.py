# SPDX-License-Identifier: Apache-2.0
"""What holds for every test: what is said before their import, and what a run tells at its end."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import threading
from collections.abc import Generator, Iterator
from zlib import crc32

import pytest
from _pytest.terminal import TerminalReporter
from hypothesis import HealthCheck, settings

from tests.postgres.guard import scratch

pytest_plugins = [
    "tests.postgres.fixtures",
    "tests.postgres.empty_store",
    "tests.nginx.fixtures",
    "tests.suite_canaries",
]
pytest.register_assert_rewrite("tests.contract")

# A busy machine is no bug: no example has a deadline, and slow ones are not complained about.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

_FAULT_TEST = re.compile(r"::test_(f\d\d)_")


def pytest_configure() -> None:
    """Choose where folders of tests are, and hear signals, however we were started.

    A disk takes milliseconds for each `fsync`, and the tests ask for thousands. A shell starts what
    runs in the background deaf to some signals, and what is deaf begets the deaf.
    """
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(scratch()))
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests are imported and stay: let nobody look for garbage among them, ever."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mix files that wait with files that compute, where several processes share the tests.

    The order is the same in each of these processes, and in every run.
    """
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: crc32(bytes(item.path)))


@pytest.fixture(autouse=True)
def _no_flags_are_repeated() -> Iterator[None]:
    """What one test has typed is not in the commands that the next one reads."""
    yield
    if "penstock.sentences" in sys.modules:
        sys.modules["penstock.sentences"].repeat_flags({})


@pytest.fixture(autouse=True)
def _signals_are_given_back() -> Iterator[None]:
    """What one test does to signals must not change what the next one sees and starts."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    if threading.current_thread() is not threading.main_thread():
        return
    for number, handler in before.items():
        if (after := signal.getsignal(number)) is not handler:
            signal.signal(number, handler)
            pytest.fail(f"The test leaves another handler of {number.name} behind: {after!r}.")
    if (blocked := signal.pthread_sigmask(signal.SIG_SETMASK, masked)) != masked:
        pytest.fail(f"The test leaves other signals blocked: {blocked!r}.")


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Count the fault tests, and name those that were skipped: a skip proves nothing."""
    rows: set[str] = set()
    counts = dict.fromkeys(("passed", "skipped", "failed", "error"), 0)
    skips = []
    for outcome in counts:
        for report in terminalreporter.getreports(outcome):
            if match := _FAULT_TEST.search(report.nodeid):
                counts[outcome] += 1
                rows.add(match[1].upper())
                if outcome == "skipped":
                    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
                    skips.append(f"{report.nodeid}: {reason.removeprefix('Skipped: ')}")
    if not rows:
        return
    told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    terminalreporter.section("fault tests")
    terminalreporter.write_line(f"{len(rows)} rows of the catalogue: {told}")
    for skip in skips:
        terminalreporter.write_line(f"skipped {skip}")

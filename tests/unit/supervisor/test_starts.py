# SPDX-License-Identifier: Apache-2.0
"""What becomes of a run whose worker processes cannot be started?"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.live.display import PlainDisplay
from penstock.stores.protocol import Store
from penstock.supervisor import worker_handle
from penstock.supervisor.protocol import Hello, RunSpec
from penstock.supervisor.supervisor import Supervisor

SPEC = RunSpec(
    app="shop.py",
    flags={},
    folder="/",
    processes=1,
    drain=True,
    debug=False,
    log_level="info",
    log_format="text",
)


def no_store(hello: Hello) -> Store:
    raise AssertionError(f"{hello.store_url} is opened")


def open_files() -> Iterator[Path]:
    for number in os.listdir("/proc/self/fd"):
        file = Path("/proc/self/fd", number)
        if file.is_symlink():  # not the one by which they were listed
            yield file


def slot_tables() -> Iterator[str]:
    for file in open_files():
        if "penstock-slots" in str(file.readlink()):
            yield file.name


def test_a_python_that_is_gone_is_tried_three_times_and_told_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_handle, "worker_command", [str(tmp_path / "python")])

    before = {*slot_tables()}
    supervisor = Supervisor(SPEC, no_store, PlainDisplay())
    code = supervisor.run()

    assert code == 1
    assert supervisor.failure is not None
    assert supervisor.failure.message == (
        f"No worker could be started: No such file or directory: {str(tmp_path / 'python')!r}."
    )
    assert [record.getMessage() for record in caplog.records] == [
        f"A worker process cannot be started: No such file or directory: "
        f"{str(tmp_path / 'python')!r}."
    ] * 3
    assert {*slot_tables()} <= before  # those that other tests have left are theirs


def test_a_worker_is_started_once_its_python_is_there_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It leaves at once: that it was started is told by its exit code."""
    python = tmp_path / "python"
    monkeypatch.setattr(worker_handle, "worker_command", [str(python)])

    def arrive(*_: object) -> bool:
        python.write_text("#!/bin/sh\nexit 7\n")
        python.chmod(0o700)
        return True

    caplog.handler.addFilter(arrive)
    supervisor = Supervisor(SPEC, no_store, PlainDisplay())
    try:
        code = supervisor.run()
    finally:
        caplog.handler.removeFilter(arrive)

    assert code == 1
    assert supervisor.failure is not None
    assert supervisor.failure.message == "No worker could be started: exit code 7."

# SPDX-License-Identifier: Apache-2.0
"""How the benchmark measures: in other processes, in turn, by medians."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from benchmarks import measuring
from benchmarks.measuring import Answer


def test_what_is_compared_takes_turns() -> None:
    order: list[str] = []

    def note(name: str) -> Answer:
        order.append(name)
        return {"n": len(order)}

    answers = measuring.interleaved(2, {"a": lambda: note("a"), "b": lambda: note("b")})
    assert order == ["a", "b", "a", "b"]
    assert measuring.pick(answers["b"], "n") == [2.0, 4.0]


def test_a_ratio_is_the_median_of_neighbours() -> None:
    # The machine got ten times slower for the last round: for both alike.
    assert measuring.paired_ratio([3, 6, 0.6], [1, 2, 0.1]) == 3


def test_a_quantile_is_a_value_that_was_measured() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert measuring.quantile(values, 0.5) == 3.0
    assert measuring.quantile(values, 0.99) == 5.0


def test_the_stopwatch_tells_wall_and_cpu_time() -> None:
    with measuring.stopwatch() as spent:
        sum(range(100_000))
    assert spent.wall > 0
    assert spent.cpu >= 0


def test_the_cpu_clock_and_the_memory_of_a_process_can_be_read() -> None:
    assert measuring.cpu_of(os.getpid()) > 0
    memory = measuring.memory_of(os.getpid())
    assert 0 < memory["now"] <= memory["peak"] * 1.01


def answer_with_circumstances(text: str) -> Answer:
    settings = [name for name in os.environ if name.startswith("PENSTOCK_")]
    return {
        "text": text,
        "pid": os.getpid(),
        "folder": os.getcwd(),
        "settings": settings,
        "other": os.environ.get("FROM_OTHER"),
    }


def fail(text: str) -> Answer:
    raise ValueError(text)


def wait_then_answer() -> Answer:
    measuring.ready_and_wait()
    return {"ok": 1}


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the probes of this file findable for a new process."""
    for probe in (answer_with_circumstances, fail, wait_then_answer):
        monkeypatch.setattr(probe, "__module__", "tests.unit.benchmarks.test_measuring")


@pytest.mark.usefixtures("probes")
def test_a_probe_runs_in_a_process_and_a_folder_of_its_own_without_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_DURABILITY", "normal")
    answer = measuring.fresh(answer_with_circumstances, tmp_path, text="×")
    assert answer["text"] == "×"
    assert answer["pid"] != os.getpid()
    assert Path(answer["folder"]) == tmp_path.resolve()
    assert answer["settings"] == []


@pytest.mark.usefixtures("probes")
def test_a_probe_runs_in_the_environment_of_the_python_it_is_given(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nFROM_OTHER=1 exec {sys.executable} "$@"\n')
    python.chmod(0o700)
    answer = measuring.fresh(answer_with_circumstances, tmp_path, python=python, text="x")
    assert answer["other"] == "1"


@pytest.mark.usefixtures("probes")
def test_a_probe_that_fails_is_reported_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(measuring.ProbeFailed, match="ValueError: too slow"):
        measuring.fresh(fail, tmp_path, text="too slow")


@pytest.mark.usefixtures("probes")
def test_a_probe_can_wait_for_the_start_signal(tmp_path: Path) -> None:
    with measuring.running(wait_then_answer, tmp_path) as process:
        process.wait_until_ready()
        process.check_alive()
        process.go()
        assert process.finish() == {"ok": 1}

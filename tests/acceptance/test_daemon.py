# SPDX-License-Identifier: Apache-2.0
"""Does `penstock run` tell systemd and probes how it is, and keep what it knows over a restart?"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from penstock.model.job import JobState
from tests.faults.daemon_project import UNIT, DaemonProject
from tests.processes import children_of
from tests.waiting import wait_until


@pytest.fixture
def project(tmp_path: Path) -> Iterator[DaemonProject]:
    made = DaemonProject(tmp_path / "project")
    yield made
    made.close()


def answer(port: int, path: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        got = connection.getresponse()
        return got.status, got.read().decode()
    except OSError:
        return 0, ""
    finally:
        connection.close()


def listen(manager: socket.socket, said: list[str]) -> None:
    """As a service manager does: whoever is not read, is not heard."""
    while data := manager.recv(4096):
        said.append(data.decode())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_systemd_and_probes_are_told_of_each_phase(project: DaemonProject, tmp_path: Path) -> None:
    project.say("check-a", "hang")
    project.say("tick-b", "hang")
    port = free_port()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        said: list[str] = []
        listener = threading.Thread(target=listen, args=(manager, said), daemon=True)
        listener.start()
        process = project.start(
            "--health",
            str(port),
            NOTIFY_SOCKET=str(tmp_path / "notify"),
            WATCHDOG_USEC="200000",
            PENSTOCK_RUNTIME__PREFLIGHT_TIMEOUT="240",
        )
        project.await_bodies("check")
        assert answer(port, "/live")[0] == 200
        assert answer(port, "/ready") == (503, "Preflights run.\n")
        project.say("check-a", "fail")
        assert process.wait(240) == 3

        project.unsay("check-a")
        process = project.start(
            "--health",
            str(port),
            NOTIFY_SOCKET=str(tmp_path / "notify"),
            WATCHDOG_USEC="200000",
            PENSTOCK_RUNTIME__GRACE_SECONDS="240",
        )
        wait_until(lambda: answer(port, "/ready") == (200, "ready\n"))
        wait_until(lambda: any(words[0] == "b" for words in project.bodies("tick")))
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: answer(port, "/ready") == (503, "The run is stopping.\n"))
        assert answer(port, "/live")[0] == 200
        project.unsay("tick-b")
        assert process.wait(240) == 0
        manager.shutdown(socket.SHUT_RDWR)
        listener.join()
    words = [text.partition("\n")[0] for text in said]
    assert "WATCHDOG=1" in words
    told = [word for word in words if word != "WATCHDOG=1"]
    assert told == [
        "STATUS=Preflights run.",  # the run that was refused is never ready
        "STATUS=Preflights run.",
        "READY=1",
        "STOPPING=1",
    ]


def test_a_port_that_is_taken_is_said_before_anything_runs(project: DaemonProject) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, out, err = project.ended("--health", str(port))
    assert (code, out) == (2, "")
    assert f"The port {port} of --health cannot be used" in err
    assert project.bodies("import") == []


def test_others_start_after_the_lead_and_its_successor_checks_nothing(
    project: DaemonProject,
) -> None:
    project.say("check-token", "once")  # the lead waits a while for it
    process = project.start("--processes", "2")
    project.await_bodies("tick")
    wait_until(lambda: len(project.bodies("import")) >= 2)
    (first, _), (_, second_at) = project.bodies("import")[:2]
    checks = project.bodies("check")
    assert {pid for _, pid, _ in checks} == {first}
    assert float(second_at) > max(float(at) for *_, at in checks)

    os.kill(int(first), signal.SIGKILL)
    wait_until(lambda: len(project.bodies("import")) >= 3)
    successor = project.bodies("import")[2][0]
    wait_until(lambda: any(pid == successor for *_, pid, _ in project.bodies("tick")))
    assert len(children_of(process.pid)) >= 2
    assert project.stop(process) == 0
    assert {pid for _, pid, _ in project.bodies("check")} == {first}
    assert project.broken() == []


def test_a_schedule_that_has_used_up_its_attempts_ends_the_run_gracefully(
    project: DaemonProject,
) -> None:
    project.say("attempts", "1")
    process = project.start()
    project.await_bodies("ticked", 3)
    project.say("tick-a", "fail")
    assert process.wait(240) == 1
    err = project.errors()
    assert "schedule:poll:a" in err.splitlines()[-1]
    assert "max_attempts" in err.splitlines()[-1]
    assert "Traceback" not in err.splitlines()[-1]
    store = project.open()
    try:
        ended, other = store.job(UNIT + "a").result(), store.job(UNIT + "b").result()
        assert ended is not None
        assert other is not None
        assert (ended.state, other.state) == (JobState.ERROR, JobState.QUEUED)
    finally:
        store.close()

    project.unsay("tick-a")  # the next start arms it again; its cursor is kept
    process = project.start()
    wait_until(lambda: project.bodies("ticked")[-1][0] == "a")
    assert project.stop(process) == 0
    numbers = [int(words[2]) for words in project.bodies("ticked") if words[0] == "a"]
    assert numbers == list(range(1, len(numbers) + 1))


def test_what_changes_between_two_starts_keeps_its_cursor(project: DaemonProject) -> None:
    def run(count: int) -> None:
        process = project.start()
        project.await_bodies("ticked", count)
        assert project.stop(process) == 0

    project.say("hosts", "a b")
    run(6)
    project.say("hosts", "a")  # b is retired
    project.say("interval", "0.15")  # a has another rhythm
    ticks = [words for words in project.bodies("tick") if words[0] == "b"]
    run(2)
    assert [words for words in project.bodies("tick") if words[0] == "b"] == ticks
    project.say("hosts", "a b c")
    run(6)
    assert {words[0] for words in project.bodies("tick")} == {"a", "b", "c"}
    assert project.broken() == []
    dues = [int(words[1]) for words in project.bodies("tick") if words[0] == "a"]
    assert (dues[-1] - dues[-2]) % 150_000 == 0

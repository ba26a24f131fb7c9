# SPDX-License-Identifier: Apache-2.0
"""Is a process said to be gone only if it certainly is?"""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from penstock.process_identity import UNKNOWN, is_gone, own_identity

pytestmark = pytest.mark.skipif(own_identity() == UNKNOWN, reason="this system tells no marks")

CHILD = (
    "import sys; from penstock.process_identity import own_identity; "
    "print(own_identity(), flush=True); "
)


def test_a_process_that_runs_is_not_gone_and_one_that_was_killed_is() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD + "sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        mark = child.stdout.readline().strip()
        alive = is_gone(mark)
        child.send_signal(signal.SIGKILL)
        child.stdout.read()  # its end
        reaped = child.wait() and is_gone(mark)

    assert (alive, reaped) == (False, True)
    assert not is_gone(own_identity())


def test_a_number_that_is_used_again_is_another_process() -> None:
    place, pid, began = own_identity().rsplit(" ", 2)

    assert is_gone(f"{place} {pid} {int(began) - 1}")


@pytest.mark.parametrize(
    "mark",
    [UNKNOWN, "x", "a b c d", "elsewhere pid:[1] 1 1", "elsewhere pid:[1] 999999999 1"],
)
def test_nothing_is_known_of_processes_elsewhere(mark: str) -> None:
    assert not is_gone(mark)


@pytest.mark.parametrize("pid", ["0", "-1", "x", "1" * 30])
def test_a_number_that_is_none_is_nobodys(pid: str) -> None:
    place, _, began = own_identity().rsplit(" ", 2)

    assert not is_gone(f"{place} {pid} {began}")


def test_a_number_of_another_namespace_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    place, pid, began = own_identity().rsplit(" ", 2)
    of_a_process_that_ended = f"{place} {pid} {int(began) - 1}"
    monkeypatch.setattr("os.getpid", lambda: int(pid) + 1)  # /proc has us under another number

    assert own_identity() == UNKNOWN
    assert not is_gone(of_a_process_that_ended)

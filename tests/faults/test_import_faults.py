# SPDX-License-Identifier: Apache-2.0
"""F58: whatever a jobs file holds, bad lines are told with their place and good ones are kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.cli.commands.queue import import_jobs
from penstock.model.job import JobId, JobState
from penstock.stores.protocol import JobFilter
from penstock.stores.sqlite.store import SqliteStore
from tests.faults.big_line import APP, CONFIG, IMPORT, import_big_line
from tests.forked import Forked, run_forked
from tests.unit.cli.conftest import Command, Ended, command, project
from tests.waiting import wait_until

__all__ = ["command", "project"]  # fixtures
pytestmark = pytest.mark.faults

GOOD = b'{"id": %d, "task": "visit", "host": "h"}'


@pytest.fixture(autouse=True)
def _quick(project: Path) -> None:
    (project / "penstock.toml").write_text('store = "sqlite:///shop.db"\ndurability = "normal"\n')


def keys(folder: Path) -> set[str]:
    """Every job there is, each once; the store must be sound."""
    if not (folder / "shop.db").exists():
        return set()
    store = SqliteStore.open(folder / "shop.db")
    try:
        assert store.check().result() == []
        found: list[str] = []
        last = JobId(0)
        while page := store.jobs(JobFilter(), last, 1000).result():
            assert {job.state for job in page} == {JobState.QUEUED}
            found += [job.key for job in page]
            last = page[-1].id
        assert len(found) == len(set(found))
        return set(found)
    finally:
        store.close()


def imported(command: Command, data: bytes, *options: str) -> Ended:
    Path("jobs.jsonl").write_bytes(data)
    return command("queue", "import", "jobs.jsonl", *options)


@pytest.mark.parametrize(
    ("line", "place", "said"),
    [
        (b'{"id": 9, \x00"host": 1}', ", column 11", "not JSON: "),
        (b"\x00" * 50, ", column 1", "not JSON: "),
        (b'{"id": 9, "task": "visit", "host": "a\\u0000"}', "", "$.host: text with a NUL"),
        (b'   {"id": 9,,}', ", column 13", "not JSON: "),
        ('{"id": 9, "é": "'.encode() + b'\xff"}', ", column 17", "not UTF-8"),
        (b"\xff\xfe{\x00}\x00", ", column 1", "not UTF-8"),
        (b'\xef\xbb\xbf{"id": 9}', ", column 1", "not JSON: "),
        (b'{"id": 9} {"id": 10}', ", column 11", "not JSON: extra data"),
        (b'{"id": 9}\r{"id": 10}', ", column 11", "not JSON: extra data"),
        (b"[" * 100_000, "", "$: nested deeper than 64 levels"),
        (b'{"a":' * 100_000, "", "$: nested deeper than 64 levels"),
        (b'{"id": 9, "task": "visit", "host": [' + b"[" * 70 + b"]" * 71 + b"}", "", "64 levels"),
        (b'{"id": 9, "x": ' + b"1" * 5000 + b"}", "", "digits"),
        (b"5", "", "must be a JSON object, got 5"),
        (b'"text"', "", 'must be a JSON object, got "text"'),
        (b"null", "", "must be a JSON object, got null"),
        (b"[1, 2]", "", "must be a JSON object, got [1,2]"),
        (b'{"id": 9, "task": "visit", "host": NaN}', "", "$.host: NaN is not JSON"),
        (b'{"id": 9, "a": {"b": 1, "b": 2}}', "", "$.a: the key 'b' occurs twice"),
        (b'{"id": "a\\u0007", "task": "visit", "host": "h"}', "", "control characters"),
        (b'{"id": "", "task": "visit", "host": "h"}', "", "A key has 1 to 512"),
        (b"x" * (3 * 2**20), "", "3,145,730 bytes; a line has at most 2,162,688"),
    ],
)
def test_f58_a_bad_line_is_told_with_line_and_column_and_its_neighbours_are_kept(
    command: Command, project: Path, line: bytes, place: str, said: str
) -> None:
    lines = [GOOD % n for n in range(1, 17)] + [line] + [GOOD % n for n in range(18, 21)]

    ended = imported(command, b"\r\n".join(lines) + b"\r\n")

    assert ended.code == 1
    assert ended.out == "19 new, 0 known, 1 bad\n"
    assert ended.sentence.startswith(f"line 17{place}: "), ended.err
    assert said in ended.sentence
    assert len(ended.sentence) < 500
    assert keys(project) == {str(n) for n in range(1, 21) if n != 17}


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_f58_on_error_counts_are_exact(command: Command, project: Path, policy: str) -> None:
    bad = {3: b"{", 5: b"7", 8: GOOD[:-1] % 8 + b', "after": ["nobody"]}'}
    lines = [bad.get(n, GOOD % n) for n in range(1, 11)]

    ended = imported(command, b"\n".join(lines), "--json", "--on-error", policy)

    stopped = policy == "stop"
    kept = {"1", "2"} if stopped else {str(n) for n in range(1, 11) if n not in bad}
    assert ended.code == 1
    counts = {name: ended.document[name] for name in ("new", "known", "bad")}
    assert counts == {"new": len(kept), "known": 0, "bad": 1 if stopped else 3}
    told = [(error["line"], error["column"]) for error in ended.document["errors"]]
    assert sorted(told)[:1] == [(3, 2)]
    assert {number for number, _ in told} == ({3} if stopped else set(bad))
    assert keys(project) == kept


def test_f58_a_truncated_last_line_is_told_as_such(command: Command, project: Path) -> None:
    ended = imported(command, GOOD % 1 + b"\n" + (GOOD % 2)[:20])

    assert (ended.code, ended.out) == (1, "1 new, 0 known, 1 bad\n")
    assert "line 2, column 19: not JSON: " in ended.sentence
    assert ended.sentence.endswith("; the file ends inside this line.")
    assert keys(project) == {"1"}


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf", b"\n\r\n \t\n", b"\xef\xbb\xbf\r\n"])
def test_f58_a_file_without_jobs_is_no_error(command: Command, project: Path, data: bytes) -> None:
    ended = imported(command, data)

    assert (ended.code, ended.out, ended.err) == (0, "0 new, 0 known, 0 bad\n", "")
    assert keys(project) == set()


def test_f58_bom_crlf_and_duplicate_ids_are_no_errors(command: Command, project: Path) -> None:
    lines = [GOOD % n for n in (1, 2, 1, 2, 3, 3)]

    ended = imported(command, b"\xef\xbb\xbf" + b"\r\n".join(lines))

    assert (ended.code, ended.out) == (0, "3 new, 3 known, 0 bad\n")
    assert keys(project) == {"1", "2", "3"}


def test_f58_the_first_of_a_key_wins_also_where_its_batch_was_refused(
    command: Command, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_jobs, "BATCH_LINES", 4)
    lines = [GOOD % n for n in range(1, 21)]
    lines[1] = b'{"key": "dup", "task": "visit", "payload": {"host": "first"}}'
    lines[2] = GOOD[:-1] % 3 + b', "after": ["nobody"]}'
    lines[6] = b'{"key": "dup", "task": "visit", "payload": {"host": "later"}}'

    ended = imported(command, b"\n".join(lines))

    assert (ended.code, ended.out) == (1, "18 new, 1 known (1 with other arguments), 1 bad\n")
    assert command("queue", "show", "dup", "--json").document["payload"] == {"host": "first"}


def test_f58_a_huge_line_is_passed_over_in_bounded_memory(project: Path) -> None:
    ended, kept = import_big_line(project, 200)

    assert (ended.returncode, ended.stdout) == (1, "2 new, 0 known, 1 bad\n"), ended.stderr
    assert ended.stderr == "line 2: 209,715,222 bytes; a line has at most 2,162,688.\n"
    assert kept == 2


def test_f58_a_closed_standard_input_is_said_so(project: Path) -> None:
    (project / "shop.py").write_text(APP)
    (project / "penstock.toml").write_text(CONFIG)
    closed = subprocess.run(
        ["bash", "-c", '"$@" <&-', "bash", *IMPORT], cwd=project, capture_output=True, timeout=60
    )

    assert (closed.returncode, closed.stdout) == (2, b"")
    assert closed.stderr == b"Standard input is closed; name a file, or pipe the lines in.\n"


def test_f58_a_file_that_cannot_be_read_to_its_end_keeps_what_came_before(
    command: Command, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = import_jobs.read_lines

    def failing(stream: object) -> Iterator[object]:
        for line in real(stream):  # type: ignore[arg-type]
            yield line
            if line.number == 1500:
                raise OSError(5, "Input/output error")

    monkeypatch.setattr(import_jobs, "read_lines", failing)

    ended = imported(command, b"\n".join(GOOD % n for n in range(2000)))

    assert (ended.code, ended.out) == (1, "")
    assert ended.sentence == (
        "The file 'jobs.jsonl' cannot be read after line 1500: Input/output error; 1,000 new, 0 "
        "known, 0 bad. Fix it, then run the same command again."
    )
    assert len(keys(project)) == 1000  # whole batches


def test_f58_ctrl_c_halfway_counts_right_and_the_same_command_resumes(project: Path) -> None:
    (project / "shop.py").write_text(APP)
    (project / "penstock.toml").write_text(CONFIG)
    lines = [b'{"id": %d, "host": "h"}\n' % n for n in range(20_000)]
    process = Forked(
        IMPORT,
        cwd=project,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    process.stdin.write(b"".join(lines[:4_500]))
    process.stdin.flush()
    wait_until(lambda: len(keys(project)) >= 3_000)

    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)

    assert (process.returncode, out) == (130, b"")
    assert b"Traceback" not in err
    kept = len(keys(project))
    assert f": {kept:,} new, 0 known, 0 bad. The same command goes on there." in err.decode()
    assert kept % 1000 == 0  # whole batches, and nothing of the one that was not full
    again = run_forked(IMPORT, cwd=project, input=b"".join(lines), capture_output=True, timeout=240)
    assert again.stdout.decode() == f"{20_000 - kept:,} new, {kept:,} known, 0 bad\n"
    assert keys(project) == {str(n) for n in range(20_000)}


def test_f58_sigkill_halfway_leaves_whole_batches_and_the_same_command_resumes(
    command: Command, project: Path
) -> None:
    lines = [GOOD % n for n in range(5_000)]
    Path("jobs.jsonl").write_bytes(b"\n".join(lines))
    reading, writing = os.pipe()
    child = subprocess.Popen([*IMPORT[:-3], "-"], cwd=project, stdin=reading)
    os.close(reading)
    os.write(writing, b"\n".join(lines[:1_500]) + b"\n")
    wait_until(lambda: len(keys(project)) >= 1_000)
    child.kill()
    child.wait()
    os.close(writing)

    assert len(keys(project)) == 1_000
    ended = command("queue", "import", "jobs.jsonl")

    assert ended.out == "4,000 new, 1,000 known, 0 bad\n"
    assert keys(project) == {str(n) for n in range(5_000)}


_noise = st.binary(max_size=30).filter(lambda data: b"\n" not in data)
_documents = st.dictionaries(
    st.sampled_from(["id", "key", "task", "host", "payload", "priority", "after", "delay", "x"]),
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3) | st.just("visit"),
    max_size=5,
).map(lambda document: json.dumps(document).encode())


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(_noise | _documents | st.integers(0, 5).map(lambda n: GOOD % n), max_size=30))
def test_f58_any_file_at_all_is_counted_to_the_last_line(
    command: Command, project: Path, lines: list[bytes]
) -> None:
    for leftover in project.glob("shop.db*"):
        leftover.unlink()

    ended = imported(command, b"\n".join(lines), "--json")

    document = ended.document
    blank = sum(not line.strip(b" \t\r\n") for line in lines)
    first = lines[0].removeprefix(b"\xef\xbb\xbf") if lines else b""
    blank += bool(lines and lines[0].strip(b" \t\r\n")) and not first.strip(b" \t\r\n")
    assert document["new"] + document["known"] + document["bad"] == len(lines) - blank
    assert ended.code == (1 if document["bad"] else 0)
    assert len(keys(project)) == document["new"]
    again = command("queue", "import", "jobs.jsonl", "--json").document
    assert (again["new"], again["bad"]) == (0, document["bad"])
    assert again["known"] == document["new"] + document["known"]

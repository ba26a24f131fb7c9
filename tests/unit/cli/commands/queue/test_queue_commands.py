# SPDX-License-Identifier: Apache-2.0
"""What do the queue's commands do with good and with bad input?"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from pathlib import Path

import apsw
import msgspec
import pytest

from penstock.cli.commands.queue import import_jobs
from penstock.cli.commands.queue.stats import document_of, lines_of
from penstock.model.job import JobState, WorkerId
from penstock.model.worker import UnresponsiveWorker
from penstock.stores.sqlite.store import SqliteStore
from tests.live_sample import NOW, stats
from tests.unit.cli.conftest import Command


def write_lines(path: Path, documents: Iterable[object]) -> None:
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))


# enqueue


def test_enqueue_says_whether_the_job_was_new(command: Command, project: Path) -> None:
    first = command("queue", "enqueue", "visit", "k", '{"host": "h"}')
    again = command("queue", "enqueue", "visit", "k", '{"host": "other"}', "--json")

    assert (first.code, first.out) == (0, "Job 'k' is new.\n")
    assert again.code == 0
    assert again.document == {"key": "k", "task": "visit", "created": False, "differs": True}
    assert command("queue", "show", "k", "--json").document["payload"] == {"host": "h"}


def test_enqueue_takes_order_time_and_group(command: Command, project: Path) -> None:
    command("queue", "enqueue", "broken", "first")
    options = ["--after", "first", "--priority", "-2", "--delay", "10m", "--group", "g"]

    ended = command("queue", "enqueue", "visit", "k", '{"host": "h"}', *options)

    assert ended.code == 0
    job = command("queue", "show", "k", "--json").document
    assert job["state"] == "waiting"
    assert job["waits_for"] == 1
    assert job["priority"] == -2
    assert job["group"] == "g"
    assert job["limit_keys"] == ["host:h"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["vist", "k", "{}"], "No task named 'vist' is registered in app 'shop'"),
        (["visit", "k", "{"], "The payload is refused: not JSON at column 2"),
        (["visit", "k", '"text"'], "The payload must be a JSON object"),
        (["visit", "k", "{}"], "Task 'visit' is missing the argument 'host'."),
        (["visit", "k", '{"host": 1}'], "Task 'visit', argument 'host'"),
        (["visit", "", '{"host": "h"}'], "A key has 1 to 512 characters; got 0."),
        (["visit", "a\nb", '{"host": "h"}'], "control characters"),
        (["visit", "k", '{"host": "h"}', "--after", "nobody"], "'nobody'"),
        (["visit", "k", '{"host": "h"}', "--delay", "soon"], "--delay must be a number"),
        (["visit", "k", '{"host": "h"}', "--app", "no.py"], "no.py' does not exist"),
        (["visit", "k", '{"host": "h"}', "--store", "mysql://x"], "'mysql://x' is not known"),
    ],
)
def test_enqueue_refuses_in_one_sentence(
    command: Command, project: Path, arguments: list[str], said: str
) -> None:
    ended = command("queue", "enqueue", *arguments)

    assert ended.code == 2
    assert said in ended.sentence
    assert ended.out == ""


# import


def test_import_keeps_the_good_lines_and_tells_the_bad_ones(
    command: Command, project: Path
) -> None:
    lines = [
        '{"key": "a", "task": "visit", "host": "h"}',
        "",
        '{"key": "b", "task": "visit", "host": 5}',
        '{"key": "c"',
        '{"key": "d", "task": "visit", "host": "h"}',
    ]
    (project / "jobs.jsonl").write_text("\n".join(lines))

    ended = command("queue", "import", "jobs.jsonl")

    assert ended.code == 1
    assert ended.out == "2 new, 0 known, 2 bad\n"
    told = ended.err.splitlines()
    assert len(told) == 2
    assert told[0].startswith("line 3: Task 'visit', argument 'host'")
    assert told[1].startswith("line 4, column 12: not JSON: ")


def test_import_again_resumes_without_duplicates(command: Command, project: Path) -> None:
    write_lines(project / "jobs.jsonl", ({"id": n, "host": "h"} for n in range(2_500)))
    arguments = ["queue", "import", "jobs.jsonl", "--task", "visit", "--json"]

    part = command(*arguments, "--limit", "1200")
    rest = command(*arguments)

    assert part.document == {"new": 1200, "known": 0, "differing": 0, "bad": 0, "errors": []}
    assert rest.document == {
        "new": 1300,
        "known": 1200,
        "differing": 0,
        "bad": 0,
        "errors": [],
    }
    assert command("queue", "stats", "--json").document["states"]["queued"] == 2_500


def test_keys_that_stand_for_something_else_are_counted(command: Command, project: Path) -> None:
    known: list[dict[str, object]] = [{"id": n, "host": "h"} for n in range(3)]
    write_lines(project / "jobs.jsonl", known)
    command("queue", "import", "jobs.jsonl", "--task", "visit")
    known[1]["host"] = "other"
    write_lines(project / "jobs.jsonl", known)

    ended = command("queue", "import", "jobs.jsonl", "--task", "visit")
    alone = command("queue", "enqueue", "visit", "1", '{"host": "other"}')
    same = command("queue", "enqueue", "visit", "1", '{"host": "h"}', "--json")

    assert ended.out == "0 new, 3 known (1 with other arguments), 0 bad\n"
    assert alone.out == (
        "Job '1' was known already, for another task or with other arguments, and stays as it was: "
        "a new job needs a key of its own.\n"
    )
    assert (same.document["created"], same.document["differs"]) == (False, False)


def test_only_the_line_to_blame_is_lost_of_a_refused_batch(command: Command, project: Path) -> None:
    documents: list[dict[str, object]] = [{"id": n, "host": "h"} for n in range(1_500)]
    documents[40]["after"] = ["nobody"]
    documents[41]["after"] = ["7"]  # a line before it, in the same batch
    documents[1_200]["after"] = ["39"]  # a line of the batch that was refused
    write_lines(project / "jobs.jsonl", documents)

    ended = command("queue", "import", "jobs.jsonl", "--task", "visit")

    assert ended.code == 1
    assert ended.out == "1,499 new, 0 known, 1 bad\n"
    assert ended.sentence.startswith("line 41: ")
    assert "'nobody'" in ended.sentence


def test_the_same_key_twice_is_new_and_known(command: Command, project: Path) -> None:
    write_lines(project / "j", [{"key": "k", "host": "h"}, {"key": "k", "host": "i"}])

    assert command("queue", "import", "j", "--task", "visit").out == (
        "1 new, 1 known (1 with other arguments), 0 bad\n"
    )


@pytest.mark.parametrize("bad", [{"id": 5}, {"id": 5, "host": "h", "after": ["nobody"]}])
def test_import_can_stop_at_the_first_bad_line(
    command: Command, project: Path, bad: dict[str, object]
) -> None:
    documents = [{"id": n, "host": "h"} for n in range(10)]
    documents[5] = bad
    write_lines(project / "j", documents)

    ended = command("queue", "import", "j", "--task", "visit", "--on-error", "stop")

    assert ended.code == 1
    assert ended.out == "5 new, 0 known, 1 bad\n"
    assert "The import stopped at line 6" in ended.err


def test_many_bad_lines_are_counted_and_twenty_are_told(command: Command, project: Path) -> None:
    ended = command("queue", "import", "-", "--json", stdin=b"nonsense\n" * 50)

    assert ended.code == 1
    assert ended.document["bad"] == 50
    assert len(ended.document["errors"]) == 20
    assert ended.document["errors"][0]["line"] == 1
    assert ended.err.count("line ") == 20
    assert "30 more bad lines were counted." in ended.err


def test_import_reads_standard_input(command: Command, project: Path) -> None:
    data = b'\xef\xbb\xbf{"key": "a", "task": "visit", "host": "h"}\r\n'

    ended = command("queue", "import", "-", stdin=data)

    assert (ended.code, ended.out, ended.err) == (0, "1 new, 0 known, 0 bad\n", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.jsonl"], "The file 'missing.jsonl' cannot be read: No such file"),
        (["."], "The file '.' cannot be read: Is a directory"),
        (["pipeline.py", "--task", "vist"], "No task named 'vist'"),
    ],
)
def test_import_refuses_in_one_sentence(
    command: Command, project: Path, arguments: list[str], said: str
) -> None:
    ended = command("queue", "import", *arguments)

    assert ended.code == 2
    assert said in ended.sentence


def test_an_interrupted_import_says_how_far_it_came(
    command: Command, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter(range(3))

    def interrupted(*arguments: object) -> object:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments)  # type: ignore[arg-type]

    real = import_jobs.to_job
    monkeypatch.setattr(import_jobs, "to_job", interrupted)
    write_lines(project / "j", ({"id": n, "host": "h"} for n in range(3)))

    ended = command("queue", "import", "j", "--task", "visit")

    assert ended.code == 130
    assert "Stopped after line 3" in ended.err


# list


def test_list_goes_on_behind_a_payload_that_cannot_be_read(command: Command, project: Path) -> None:
    for key in ("a", "b", "c"):
        command("queue", "enqueue", "visit", key, '{"host": "h"}')
    with apsw.Connection(str(project / ".penstock" / "shop.db")) as connection:
        connection.execute("update jobs set payload = 'not{json' where key = 'b'")

    listed = {job["key"]: job for job in command("queue", "list", "--json").document["jobs"]}
    shown = command("queue", "show", "b")

    assert list(listed) == ["a", "b", "c"]
    assert listed["a"]["payload"] == {"host": "h"}
    assert "unreadable" not in listed["a"]
    assert listed["b"]["payload"] is None
    assert listed["b"]["unreadable"].startswith("the payload is not JSON: ")
    assert "calls" not in listed["a"]  # `show` counts them
    assert shown.code == 0
    assert "the payload is not JSON" in shown.out


# stats and show


def test_stats_are_the_documented_document(command: Command, project: Path) -> None:
    command("queue", "enqueue", "visit", "k", '{"host": "h"}', "--group", "g\u202e")

    ended = command("queue", "stats", "--json")

    assert ended.err == ""
    document = ended.document
    assert list(document) == [
        "states",
        "tasks",
        "schedules",
        "groups",
        "groups_total",
        "oldest_ready_seconds",
        "next_due_at",
        "suspects",
        "workers",
        "workers_silent",
        "paused",
        "paused_schedules",
        "calls",
    ]
    assert set(document["states"]) == set(JobState)
    assert document["states"]["queued"] == 1
    assert document["tasks"] == {"visit": document["states"]}
    assert list(document["groups"]) == ["g\u202e"]
    assert document["oldest_ready_seconds"] >= 0


def test_stats_for_people_name_the_store_and_escape_names(command: Command, project: Path) -> None:
    command(
        "queue", "enqueue", "visit", "k", '{"host": "h"}', "--group", "g\u202e", "--delay", "60"
    )

    out = command("queue", "stats").out

    assert f"Store sqlite:///{project}/.penstock/shop.db" in out
    assert re.search(r"^task visit +0 +1 +0 ", out, re.MULTILINE)
    assert "group g\\u202e" in out
    assert "The next delayed job is due at 2" in out


def test_stats_say_that_a_delayed_job_has_fallen_due(command: Command, project: Path) -> None:
    command("queue", "enqueue", "visit", "k", '{"host": "h"}', "--delay", "0.001")
    time.sleep(0.01)

    out = command("queue", "stats").out

    assert re.search(r"A delayed job has been due since 2\S+Z and waits for a worker", out)


def test_stats_do_not_count_a_worker_that_no_longer_answers_as_alive() -> None:
    dead = UnresponsiveWorker(WorkerId("w-9"), "run-0", "here", 9, 17.2, is_gone=True, jobs=3)
    found = msgspec.structs.replace(stats(in_progress=3), workers=2)

    lines = lines_of(found, "sqlite:///x.db", [dead], NOW)

    assert lines[-2:] == [
        "Workers alive: 1.",
        "1 worker no longer answers, killed most likely: what is held there is taken back when the "
        "lease ends, in 17 s at the latest.",
    ]
    assert document_of(found, [dead])["workers"] == document_of(found, [dead])["workers_silent"]


def test_a_named_store_is_looked_at_without_an_app(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_STORE", "sqlite:///other.db")

    missing = command("queue", "stats", "--json")
    SqliteStore.open(tmp_path / "other.db").close()
    ended = command("queue", "stats", "--json")

    assert missing.code == 2
    assert "There is no store sqlite:///other.db yet." in missing.sentence
    assert ended.code == 0
    assert ended.document["oldest_ready_seconds"] is None


def test_without_store_and_app_it_says_what_to_name(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    ended = command("queue", "stats")

    assert ended.code == 2
    assert "No app is named, and " in ended.sentence


def test_show_tells_everything_about_a_job(command: Command, project: Path) -> None:
    command("queue", "enqueue", "visit", "k", '{"host": "h"}')

    document = command("queue", "show", "k", "--json").document
    people = command("queue", "show", "k").out

    assert document["state"] == "queued"
    assert document["result"] is None
    assert document["history"] == []
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", document["created_at"])
    assert re.search(r'^payload +\{"host":"h"\}$', people, re.MULTILINE)


def test_show_refuses_an_unknown_key(command: Command, project: Path) -> None:
    command("queue", "enqueue", "visit", "k", '{"host": "h"}', "--store", "sqlite:///x.db")

    for typed in (("queue", "show"), ("calls",)):
        ended = command(*typed, "kk", "--store", "sqlite:///x.db")

        assert ended.code == 2
        assert "No job has the key 'kk' in the store sqlite:///" in ended.err
        assert "x.db; closest: 'k'. Correct the key" in ended.err


def test_a_file_that_is_no_database_is_told(command: Command, project: Path) -> None:
    (project / "bad.db").write_text(
        "this is text, not a database, and long enough to be sure\n" * 90
    )

    ended = command("queue", "stats", "--store", "sqlite:///bad.db")

    assert ended.code == 1
    assert "bad.db' is not a sound database" in ended.sentence


def test_a_talkative_app_does_not_spoil_the_document(command: Command, project: Path) -> None:
    (project / "loud.py").write_text(
        "from penstock import Penstock\nprint('hi')\napp=Penstock('l')\napp.store.stats()"
    )

    ended = command("queue", "stats", "--app", "loud.py", "--json")

    assert ended.document["states"]["done"] == 0
    assert ended.err.startswith("hi\n")


# run: what is refused before any process starts


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a.py", "--app", "b.py"], "The app is named twice: 'a.py' and --app 'b.py'."),
        (["--slots", "0"], "runtime.slots must be > 0, got 0 (from --slots)."),
        (["--threads", "0"], "runtime.thread_slots must be > 0, got 0 (from --threads)."),
        (
            ["--process-slots", "0"],
            "runtime.process_slots must be > 0, got 0 (from --process-slots).",
        ),
        (["--limit", "resolver"], "--limit must be DIMENSION=NAME:N"),
        (["--limit", "resolver=x:-1"], "limits.resolver.x must be >= 0"),
        (["--max-per-host", "-1"], "must be >= 0, got -1 (from --max-per-host)."),
        (["--limit", "host=x"], "--limit must be DIMENSION=NAME:N, such as resolver=unpaywall:2"),
        (["--limit", "host:x=2"], "--limit must be DIMENSION=NAME:N, such as resolver=unpaywall"),
        (["--limit", "=x:2"], "--limit must be DIMENSION=NAME:N, such as resolver=unpaywall:2"),
        (["--limit", "host=:2"], "--limit must be DIMENSION=NAME:N, such as resolver=unpaywall:2"),
        (["--limit", "host=x:1.5"], "limits.host.x must be a whole number, got '1.5'"),
        (["--limit", "host=x:9999999"], "limits.host.x must be <= 1000000"),
    ],
)
def test_run_refuses_settings_before_it_starts_a_worker(
    command: Command, project: Path, arguments: list[str], said: str
) -> None:
    ended = command("queue", "run", *arguments)

    assert ended.code == 2
    assert said in ended.sentence


def test_run_refuses_a_limit_of_a_dimension_that_no_task_has(
    command: Command, project: Path
) -> None:
    ended = command("queue", "run", "--limit", "hots=x:1")

    assert ended.code == 2
    assert ended.sentence == (
        "limits.hots is a dimension that no task has (from --limit); the nearest known one is "
        "'host'."
    )

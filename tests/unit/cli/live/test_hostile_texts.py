# SPDX-License-Identifier: Apache-2.0
"""Can the text of a job give orders to a terminal, forge a log line, or hide what it says?

A corpus of what terminals obey goes through every face: commands for people and for machines, log
lines in both forms, the live and the plain display, errors and tracebacks.
"""

from __future__ import annotations

import io
import json
import logging
import re
import unicodedata
from pathlib import Path

import pytest

from penstock import terminal_text
from penstock.cli.live.display import LiveDisplay, PlainDisplay
from penstock.cli.live.terminal import Terminal
from penstock.model.job import AttemptError, ErrorCategory, JobState, NewJob, WorkerId
from penstock.model.lease import ConfiguredCaps, JobEnd, LeaseRequest, WorkerInfo
from penstock.stores.sqlite.store import SqliteStore
from penstock.testing import ManualClock
from tests.unit.cli.conftest import Command

CORPUS = [
    "\x1b[2J\x1b[H",  # clears the screen
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",  # sets the title
    "\x1b]8;;https://evil.example\x1b\\link\x1b]8;;\x1b\\",
    "\x1b]52;c;ZXZpbA==\x07",  # writes the clipboard
    "\x1bP+q544e\x1b\\",  # asks the terminal, which types its answer
    "\x1b[6n",
    "\x9b2J\x9d0;title\x9c",  # the same in C1 controls
    "good\rbad",
    "bad\x08\x08\x08good",
    "line\n2026-01-05T12:04:10.123Z ERROR worker: forged",
    "line\r\nforged",
    "line\x0b\x0c\x85\u2028\u2029forged",
    "\u202egnp.exe\u202c",  # right to left
    "\u2066\u2067\u2068\u2069\u200e\u200f\u061c",
    "zero\u200bwidth\u200d\ufeff\u2060\u00ad",
    "tag\U000e0041\U000e007f",
    "\x7f\x00\x01",
    "[bold red]markup[/] :warning:",
    "%s %d {0} ${HOME} `id`",
]


def obeyed(shown: str) -> list[str]:
    """Characters that a terminal would act upon, or that nobody would see."""
    return [
        c for c in shown if c != "\n" and unicodedata.category(c) in {"Cc", "Cf", "Zl", "Zp", "Cs"}
    ]


@pytest.mark.parametrize("hostile", CORPUS, ids=ascii)
def test_lines_for_people_hold_no_orders(hostile: str, capsys: pytest.CaptureFixture[str]) -> None:
    for shown in (terminal_text.escaped(hostile), terminal_text.one_line(hostile)):
        assert obeyed(shown) == []
        assert "\n" not in shown
    assert terminal_text.escaped_lines(f"a\n{hostile}").count("\n") == 1 + hostile.count("\n")

    terminal_text.warn_of_traceback(f"Traceback:\n{hostile}")
    terminal_text.print_document({"text": hostile, hostile: 1})

    out, err = capsys.readouterr()
    assert obeyed(err) == []
    assert obeyed(out) == []
    assert json.loads(out) == {"text": hostile, hostile: 1}


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("hostile", CORPUS, ids=ascii)
def test_a_log_line_is_one_line_whoever_logs_it(
    hostile: str, log_format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from penstock.logs import set_up_logging

    root = logging.getLogger()
    former, level = list(root.handlers), root.level
    set_up_logging("info", log_format)
    try:
        logging.getLogger("penstock.worker").error("Job %r of task %s", hostile, hostile)
        logging.getLogger(f"lib{hostile}").warning(hostile.replace("%", "%%"))
    finally:
        root.handlers[:] = former
        root.setLevel(level)
        logging.root.manager.loggerDict.pop(f"lib{hostile}", None)

    err = capsys.readouterr().err
    assert obeyed(err) == []
    lines = err.splitlines()
    assert len(lines) == 2
    if log_format == "json":
        assert [json.loads(line)["level"] for line in lines] == ["error", "warning"]
    else:
        assert all(re.match(r"\S+Z (ERROR|WARNING) ", line) for line in lines)


@pytest.mark.parametrize("hostile", CORPUS, ids=ascii)
def test_what_workers_write_passes_the_displays_as_text(
    hostile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = io.StringIO()
    clock = ManualClock()

    LiveDisplay(Terminal(-1, None), screen, colour=True, clock=clock).line(hostile)
    PlainDisplay(clock=clock).line(hostile)

    for shown in (screen.getvalue(), capsys.readouterr().err):
        assert obeyed(shown) == []
        assert shown.replace("\n", "") == terminal_text.escaped(hostile)


@pytest.fixture
def store_url(project: Path) -> str:
    """A store with one failed job for each text of the corpus, in whatever place it fits."""
    store = SqliteStore.open(project / "hostile.db", durability="normal")
    kept = [piece.replace("\x00", "") for piece in CORPUS]
    store.enqueue(
        [
            NewJob(
                key=f"{number}{piece}",
                task=f"t{number}{piece}",
                payload=json.dumps({"x": piece}, ensure_ascii=False),
                group=f"g{number}{piece}",
                limit_keys=(f"host:{piece}",),
                partition=piece,
            )
            for number, piece in enumerate(kept)
        ]
    ).result()
    worker = WorkerId("w")
    tasks = tuple(f"t{number}{piece}" for number, piece in enumerate(kept))
    store.register(WorkerInfo(id=worker, run_id="r", tasks=tasks), 60).result()
    ended = 0
    while ended < len(CORPUS):
        request = LeaseRequest(worker=worker, tasks=tasks, limit=100, caps=ConfiguredCaps())
        jobs = store.lease(request).result().jobs
        ends = [
            JobEnd(
                job,
                JobState.ERROR,
                1,
                2,
                error=AttemptError(ErrorCategory.OWN, piece, piece, piece),
            )
            for job in jobs
            for piece in [kept[int(re.match(r"t(\d+)", job.task)[1])]]  # type: ignore[index]
        ]
        store.ack(worker, ends).result()
        ended += len(ends)
    store.close()
    return "sqlite:///hostile.db"


def test_no_command_lets_the_text_of_a_job_through(
    command: Command, project: Path, store_url: str
) -> None:
    """Keys and names are checked when a job is enqueued; here they came by another way."""
    everything = "".join(CORPUS).replace("\x00", "")
    commands = [
        ["queue", "stats"],
        ["queue", "stats", "--json"],
        ["queue", "list"],
        ["queue", "list", "--json"],
        ["queue", "limit"],
        *(
            ["queue", "show", f"{number}{piece}".replace("\x00", ""), *(["--json"] * (number % 2))]
            for number, piece in enumerate(CORPUS)
        ),
        ["queue", "show", everything],
        ["queue", "cancel", everything],
        ["queue", "list", "--task", everything],
        ["queue", "limit", f"host:{everything[:200]}"],
        ["queue", "enqueue", everything, "k"],
        ["queue", "enqueue", "visit", everything],
        ["queue", "run", "--app", everything],
        ["queue", "run", "--limit", everything],
    ]
    shown = 0
    for arguments in commands:
        ended = command(*arguments, "--store", store_url)

        assert obeyed(ended.out) == [], arguments
        assert obeyed(ended.err) == [], arguments
        assert "our bug" not in ended.err, ended.err
        shown += len(ended.out + ended.err)
        if "--json" in arguments:
            json.loads(ended.out)
    assert shown > 10_000


HUGE = "9" * 20
BYTES = "\udcff"  # how Python shows a byte that is not UTF-8


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["list", "--limit", HUGE], "--limit"),
        (["import", "jobs.jsonl", "--limit", HUGE], "--limit"),
        (["retry-failed", "--max-attempts", HUGE], "--max-attempts"),
        (["limit", "host:a", "0" * 10 + HUGE], "from 0 to 1,000,000"),
        (["limit", "host:a", "0" * 5000], "from 0 to 1,000,000"),
        (["limit", "host:a", "9" * 5000], "from 0 to 1,000,000"),
        (["show", BYTES], "not UTF-8"),
        (["cancel", "k", BYTES], "not UTF-8"),
        (["cancel", "--task", BYTES, "--yes"], "not UTF-8"),
        (["list", "--task", BYTES], "not UTF-8"),
        (["list", f"--task={BYTES}"], "not UTF-8"),
        (["limit", f"host:{BYTES}", "1"], "not UTF-8"),
        (["limit", f"host:{BYTES}"], "not UTF-8"),
        (["retry-failed", "--task", BYTES], "not UTF-8"),
        (["enqueue", "visit", BYTES, '{"host": "h"}'], "surrogate"),
        (["enqueue", "visit", "j", f'{{"host": "{BYTES}"}}'], "surrogate"),
    ],
    ids=lambda value: ascii(value)[:60],
)
def test_what_no_command_can_use_is_wrong_usage_and_not_our_bug(
    command: Command, project: Path, arguments: list[str], said: str
) -> None:
    assert command("queue", "enqueue", "broken", "k").code == 0
    (project / "jobs.jsonl").write_text("{}\n")

    ended = command("queue", *arguments)

    assert ended.code == 2, ended
    assert ended.out == ""
    assert said in ended.sentence
    assert obeyed(ended.err) == []
    assert len(ended.sentence) < 300
    assert command("queue", "stats", "--json").document["tasks"]["broken"]["queued"] == 1


def test_a_file_name_of_any_bytes_is_a_file_name(command: Command, project: Path) -> None:
    name = f"jobs{BYTES}.jsonl"
    try:
        (project / name).write_text('{"key": "k", "task": "broken"}\n')
    except OSError:
        pytest.skip("needs a file system that takes names of any bytes")

    assert command("queue", "import", name).out == "1 new, 0 known, 0 bad\n"

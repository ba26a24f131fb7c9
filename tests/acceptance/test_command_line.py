# SPDX-License-Identifier: Apache-2.0
"""Does `penstock` keep its promises in processes of its own?

Few and whole stories: every process costs half a second. What one command does with bad input is
tested in tests/unit/cli.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import Forked, run_forked

pytestmark = pytest.mark.acceptance

PENSTOCK = [sys.executable, "-m", "penstock.cli.main"]
SECONDS = 60.0


def penstock(folder: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if "PENSTOCK" not in name}
    return run_forked(
        [*PENSTOCK, *arguments],
        cwd=folder,
        env=environ,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def write_app(folder: Path, body: str) -> None:
    (folder / "pipeline.py").write_text(
        "import asyncio, os, sys\nfrom penstock import Context, Penstock, Skip\n"
        f"app = Penstock('acceptance')\n{body}"
    )


def test_a_newcomers_first_commands_work_as_printed(tmp_path: Path) -> None:
    """From `init` to ten jobs done, and the project's own test passes."""
    said = penstock(tmp_path, "init", "hello")
    assert said.returncode == 0
    commands = [line.split() for line in said.stdout.splitlines() if line.startswith("  ")]
    assert commands[0] == ["cd", "hello"]

    folder = tmp_path / "hello"
    ended = [penstock(folder, *command[1:]) for command in commands[1:]]

    assert [process.returncode for process in ended] == [0, 0, 0]
    assert ended[0].stdout == "10 new, 0 known, 0 bad\n"
    assert ended[1].stdout.startswith("10 done, 0 skipped, 0 error in ")
    document = json.loads(ended[2].stdout)
    assert document["states"]["done"] == 10
    assert document["oldest_ready_seconds"] is None
    assert "Traceback" not in "".join(process.stderr for process in ended)

    tests = "import test_pipeline as t; t.test_a_title_is_measured(); " + (
        "t.test_an_empty_title_is_skipped()"
    )
    run_forked([sys.executable, "-c", tests], cwd=folder, check=True, timeout=SECONDS)


def test_a_drain_with_an_error_ends_with_1_and_the_job_tells_why(tmp_path: Path) -> None:
    write_app(
        tmp_path,
        "@app.task(max_attempts=1)\n"
        "def mend(ctx: Context, what: str) -> None:\n"
        "    raise ValueError('cannot mend ' + what)\n"
        "@app.task(max_attempts=1, executor='process')\n"
        "def break_down(ctx: Context) -> None:\n"
        "    mend.function(ctx, 'all')\n"
        "@app.task()\n"
        "async def leave(ctx: Context) -> None:\n"
        "    raise Skip('on purpose')\n",
    )
    lines = '{"key": "m", "task": "mend", "what": "it\\u001b[31m"}\n{"key": "l", "task": "leave"}\n'
    lines += '{"key": "b", "task": "break_down"}\n'
    assert penstock(tmp_path, "queue", "import", "-", stdin=lines).returncode == 0

    ended = penstock(tmp_path, "queue", "run", "--drain", "--log-format", "json")

    assert ended.returncode == 1
    assert "\x1b" not in ended.stdout
    logged = [json.loads(line) for line in ended.stderr.splitlines()]
    assert {line["layer"] for line in logged} >= {"run", "worker"}
    assert any("cannot mend" in line["message"] for line in logged)
    job = json.loads(penstock(tmp_path, "queue", "show", "m", "--json").stdout)
    assert job["state"] == "error"
    assert job["error"]["message"] == "cannot mend it\x1b[31m"
    assert [attempt["outcome"] for attempt in job["history"]] == ["error"]
    people = penstock(tmp_path, "queue", "show", "m").stdout
    assert "cannot mend it\\x1b[31m" in people
    assert "traceback" not in json.dumps(job) + people
    traced = penstock(tmp_path, "queue", "show", "b", "--traceback").stdout.splitlines()
    assert [line.rpartition(" ")[2] for line in traced[-3:]] == ["ValueError", "break_down", "mend"]
    assert penstock(tmp_path, "queue", "show", "l", "--traceback").stdout.splitlines()[-1] == (
        "no traceback: no attempt has failed in the job's own code"
    )


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import nosuchmodule\n", "'nosuchmodule'"),
        ("def\n", "has a syntax error in line 4"),
        ("app.tasks['x'] = 1 / 0\n", "ZeroDivisionError"),
    ],
)
def test_an_app_that_cannot_be_imported_ends_with_2_and_one_sentence(
    tmp_path: Path, source: str, said: str
) -> None:
    write_app(tmp_path, source)

    ended = penstock(tmp_path, "queue", "run", "--drain")

    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1, ended.stderr
    assert said in ended.stderr
    assert ended.stdout == ""


def test_an_interrupt_ends_with_130_and_gives_the_job_back(tmp_path: Path) -> None:
    write_app(
        tmp_path,
        "@app.task()\n"
        "async def wait(ctx: Context) -> None:\n"
        "    print('it runs', flush=True)\n"
        "    await asyncio.sleep(3600)\n",
    )
    (tmp_path / "penstock.toml").write_text("[runtime]\ngrace_seconds = 0\n")
    penstock(tmp_path, "queue", "enqueue", "wait", "k")

    with Forked(
        [*PENSTOCK, "queue", "run", "--drain"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "it runs\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=SECONDS)

    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "1 left" in out
    job = json.loads(penstock(tmp_path, "queue", "show", "k", "--json").stdout)
    assert (job["state"], job["failed_attempts"]) == ("queued", 0)


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    command = "|".join((" ".join([*PENSTOCK, "--help"]), "true; echo ${PIPESTATUS[0]}"))

    ended = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert ended.stdout == "0\n"
    assert ended.stderr == ""


def test_several_processes_share_the_work(tmp_path: Path) -> None:
    write_app(
        tmp_path,
        "@app.task()\n"
        "async def who(ctx: Context, n: int) -> int:\n"
        "    await asyncio.sleep(0.01)\n"
        "    return os.getpid()\n",
    )
    lines = "".join(json.dumps({"id": n, "n": n}) + "\n" for n in range(300))
    assert penstock(tmp_path, "queue", "import", "-", "--task", "who", stdin=lines).returncode == 0

    options = ["--drain", "--processes", "2", "--slots", "4", "--limit", "host=x:2"]
    ended = penstock(tmp_path, "queue", "run", "pipeline.py", *options)

    assert ended.returncode == 0, ended.stderr
    stats = json.loads(penstock(tmp_path, "queue", "stats", "--json").stdout)
    assert stats["states"]["done"] == 300
    assert stats["workers"] == 0


def test_a_port_that_nobody_listens_on_is_told_of_and_its_drain_can_be_ended(
    tmp_path: Path,
) -> None:
    """The minute and the half are none here: the app hands in its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    write_app(
        tmp_path,
        "from penstock.worker import attempt_log, drain\n"
        "attempt_log.REFUSED_SECONDS = 0.5\n"
        "drain.SAY_AFTER_SECONDS = drain.LOOK_AT_SECONDS = 0.0\n"
        "app.baseline(node=(0.1, 0.5))\n"
        "@app.task()\nasync def call(ctx: Context) -> None:\n"
        f"    await asyncio.open_connection('127.0.0.1', {port})\n",
    )
    flags = ("--app", "pipeline.py", "--store", "sqlite:///other.db")
    (tmp_path / "penstock.toml").write_text("[tasks]\ngive_up_after = '6s'\n")
    penstock(tmp_path, "queue", "enqueue", "call", "k", *flags)

    ended = penstock(tmp_path, "queue", "run", "--drain", *flags)

    refused = [line for line in ended.stderr.splitlines() if "Connection refused by" in line]
    assert len(refused) == 1
    assert f"Connection refused by 127.0.0.1:{port} for " in refused[0]
    assert "1 job waits for them ('k': ConnectionRefusedError: " in ended.stderr
    cancel = f"penstock queue cancel --task call --yes {' '.join(flags)}"
    assert cancel in ended.stderr
    assert f"penstock queue retry-failed {' '.join(flags)}, once" in ended.stdout
    assert ended.returncode == 1
    assert penstock(tmp_path, *cancel.split()[1:]).stdout == "0 jobs cancelled.\n"

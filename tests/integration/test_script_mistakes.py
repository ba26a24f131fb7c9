# SPDX-License-Identifier: Apache-2.0
"""What do a mistake in the configuration and a badly named file of a project lead to?"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.forked import run_forked
from tests.processes import environment_of_tests

SCRIPT = """
from penstock import Context, Penstock

app = Penstock("script")

@app.task()
async def work(ctx: Context) -> None: ...

app.enqueue(work.job(), key="k")
"""

READS = """
if __name__ == "__main__":
    work.result("k")
"""

NAMESAKES = """
from penstock import Context, Penstock

app = Penstock("namesakes")

@app.task()
def in_thread(ctx: Context) -> int:
    return 1

@app.task(executor="process")
def in_process(ctx: Context) -> int:
    import secrets

    return secrets.randbits(8)

app.enqueue(in_thread.job(), key="a")
app.enqueue(in_process.job(), key="b")
"""


def drained(folder: Path, *before: str) -> subprocess.CompletedProcess[str]:
    """`penstock queue run --drain` as an own process, started by another command."""
    run = [sys.executable, "-P", "-m", "penstock.cli.main", "queue", "run", "--drain"]
    return subprocess.run(
        [*before, *run],
        cwd=folder,
        env=environment_of_tests(),
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[runtime\n", "penstock.toml, line 1, column 9, is not valid TOML: "),
        (
            "[runtime]\nworkers = 3\n",
            "runtime.workers is not a setting, got 3 (from ",
        ),
        ("[runtime]\nlease_ttl_seconds = 5\n", "set runtime.beat_seconds below 2.5."),
    ],
)
def test_the_last_line_of_a_script_is_the_whole_sentence(
    tmp_path: Path, text: str, sentence: str
) -> None:
    (tmp_path / "pipeline.py").write_text(SCRIPT)
    (tmp_path / "penstock.toml").write_text(text)

    ended = run_forked(
        [sys.executable, "pipeline.py"],
        cwd=tmp_path,
        env=environment_of_tests(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("penstock.errors.ConfigError: ")
    assert sentence in last
    assert "During handling" not in ended.stderr


def test_f89_files_named_like_modules_of_python_break_no_worker(tmp_path: Path) -> None:
    """`secrets.py`, `queue.py`, `types.py` and `random.py` beside the app; thread and process."""
    (tmp_path / "pipeline.py").write_text(NAMESAKES)
    for name in ("secrets", "queue", "types", "random"):
        (tmp_path / f"{name}.py").write_text("own = True\n")

    ended = drained(tmp_path)

    assert (ended.returncode, "Traceback" in ended.stderr) == (0, False), ended.stderr
    for name in ("secrets", "queue", "types", "random"):
        hidden = f"{name}.py is not imported: Python has a module called {name!r}"
        assert ended.stderr.count(hidden) == 1


@pytest.mark.parametrize("files", [8, 64])
def test_f89_a_run_that_may_open_too_few_files_says_what_to_raise(
    tmp_path: Path, files: int
) -> None:
    (tmp_path / "pipeline.py").write_text(SCRIPT)

    ended = drained(tmp_path, "prlimit", f"--nofile={files}:{files}")

    assert ended.returncode == 1
    (said,) = ended.stderr.splitlines()
    assert said.startswith(f"This shell allows a process {files} open files, and a worker needs")


def test_a_run_raises_a_low_soft_limit_on_open_files_by_itself(tmp_path: Path) -> None:
    (tmp_path / "pipeline.py").write_text(SCRIPT)

    ended = drained(tmp_path, "prlimit", "--nofile=64:4096")

    assert (ended.returncode, "Traceback" in ended.stderr) == (0, False), ended.stderr


def test_a_command_that_a_script_suggests_works_as_printed(tmp_path: Path) -> None:
    """The app is in a file of another name, below the current folder."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "enrich.py").write_text(SCRIPT + READS)
    python = [sys.executable, "jobs/enrich.py"]
    options: dict[str, Any] = {
        "cwd": tmp_path,
        "env": environment_of_tests(),
        "capture_output": True,
        "text": True,
    }

    asked = run_forked(python, **options)
    (typed,) = re.findall(r"penstock (why k --app \S+)$", asked.stderr.strip())
    told = run_forked([sys.executable, "-m", "penstock_command", *shlex.split(typed)], **options)

    assert typed == "why k --app jobs/enrich.py"
    assert (told.returncode, "No live worker could take 'k'." in told.stdout) == (0, True), told

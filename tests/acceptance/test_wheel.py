# SPDX-License-Identifier: Apache-2.0
"""Does the wheel work where nothing but its core dependencies is installed?"""

from __future__ import annotations

import json
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.bare_install import build_wheel, environment_of_strangers, install
from tests.processes import REPOSITORY
from tests.pseudo_terminal import on_terminal

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

SECONDS = 240.0
NOT_THERE = ("openai", "psycopg", "aiohttp", "requests", "httpx", "pytest", "tests")
CLIENTS = """
from penstock import Context, Penstock

app = Penstock("clients")
service = app.provider("service", base_url="http://127.0.0.1:1")


@app.task(uses=service, max_attempts=1)
async def ask(ctx: Context, library: str) -> None:
    service.http_client(library)


@app.task(uses=service, max_attempts=1)
def ask_in_thread(ctx: Context, library: str) -> None:
    service.http_client_sync(library)
"""
JOBS = [("ask", "httpx"), ("ask", "aiohttp"), ("ask_in_thread", "requests")]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def test_it_holds_the_queries_and_no_failpoint_launcher(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    assert "penstock/stores/sqlite/queries.sql" in names
    assert "penstock/stores/sqlite/migrations/0001_initial.sql" in names
    assert "penstock/py.typed" in names
    assert not [name for name in names if "launcher" in name or name.startswith("tests")]


def test_a_bare_install_shows_the_demo_and_names_what_is_missing(
    wheel: Path, tmp_path: Path
) -> None:
    programs = install(wheel, tmp_path)
    work = tmp_path / "work"
    work.mkdir()
    environment = environment_of_strangers() | {"TMPDIR": str(work)}
    environment["PATH"] = f"{programs}:{environment['PATH']}"

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=work,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    found = run(
        "python",
        "-c",
        "import importlib.util as u, json, penstock; print(json.dumps([penstock.__file__, "
        f"[name for name in {NOT_THERE!r} if u.find_spec(name)]]))",
    )
    where, extras = json.loads(found.stdout)
    assert where.startswith(str(programs.parent))
    assert extras == []

    with on_terminal([str(programs / "penstock"), "demo", "--fast"], env=environment) as demo:
        demo.read_until(None)
        assert demo.process.wait(SECONDS) == 0, demo.seen.decode()
    assert b" answers reused, 0 bought again." in demo.seen
    assert demo.seen.endswith(b"# a project of your own\r\n")
    assert list(work.iterdir()) == []

    stats = run("penstock", "queue", "stats", "--store", "postgresql://127.0.0.1:1/none")
    assert stats.returncode == 2, stats.stderr
    assert stats.stderr.count("\n") == 1
    assert "'pip install psycopg[binary]'" in stats.stderr

    example = run("python", str(REPOSITORY / "examples/paid_calls/paid_calls.py"))
    assert example.returncode == 2
    assert example.stderr == (
        "This example calls the OpenAI SDK, which is not installed; run `pip install openai`.\n"
    )

    (work / "pipeline.py").write_text(CLIENTS)
    lines = (
        json.dumps({"key": library, "task": task, "library": library}) for task, library in JOBS
    )
    (work / "jobs.jsonl").write_text("\n".join(lines))
    assert run("penstock", "queue", "import", "jobs.jsonl").returncode == 0
    ended = run("penstock", "queue", "run", "--drain")
    assert ended.returncode == 1
    for _, library in JOBS:
        sentence = (
            f"A client of '{library}' was asked for, and it is not installed; "
            f"run `pip install {library}`"
        )
        assert sentence in ended.stderr
    assert "Traceback" not in ended.stderr

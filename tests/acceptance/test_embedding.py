# SPDX-License-Identifier: Apache-2.0
"""The examples of runs inside other programs: a web service, a notebook and a script."""

from __future__ import annotations

import ast
import asyncio
import csv
import inspect
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

from penstock.model.job import JobState
from penstock.stores.open import open_store
from tests.forked import run_forked
from tests.processes import environment_of_tests
from tests.waiting import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PATIENCE_SECONDS = 120.0


class Works(BaseHTTPRequestHandler):
    """The service that the example asks; it holds its replies back until it may answer."""

    asked: ClassVar[list[str]] = []
    may_answer: ClassVar[threading.Event] = threading.Event()

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.may_answer.wait(PATIENCE_SECONDS)
        body = json.dumps({"message": {"title": f"About {self.path}"}}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        return


@pytest.fixture
def works() -> Iterator[str]:
    Works.asked.clear()
    Works.may_answer.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Works)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    Works.may_answer.set()
    server.shutdown()
    thread.join()
    server.server_close()


class Service:
    """The web service in a process of its own, with all that it has said."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(iter(self.process.stdout.readline, ""))

    def said(self, pattern: str) -> str:
        """What it has said that looks so; empty: nothing so far."""
        found = re.search(pattern, "".join(self.lines))
        return "" if found is None else found[0]

    def ended(self) -> int:
        code = self.process.wait(PATIENCE_SECONDS)
        self._reader.join()
        return code


@contextmanager
def served(folder: Path, works: str) -> Iterator[tuple[Service, httpx.Client]]:
    """The example under a real uvicorn, with one slot, when it serves."""
    (folder / "penstock.toml").write_text(
        f'providers.crossref.base_url = "{works}"\n'
        f"[runtime]\nasync_slots = 1\ngrace_seconds = {PATIENCE_SECONDS}\n"
    )
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLES / "web/service.py")],
        cwd=folder,
        env=environment_of_tests(PORT="0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    service = Service(process)
    try:
        wait_until(
            lambda: bool(service.said(r"running on http://\S+ ") or process.poll() is not None)
        )
        address = service.said(r"(?<=running on )http://\S+")
        assert address, "".join(service.lines)
        with httpx.Client(base_url=address, timeout=PATIENCE_SECONDS, trust_env=False) as client:
            yield service, client
    finally:
        process.kill()
        service.ended()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.faults
def test_a_web_service_stops_at_the_first_sigterm_and_goes_on_when_it_starts_again(
    tmp_path: Path, works: str
) -> None:
    def state(client: httpx.Client, doi: str) -> str:
        return str(client.get(f"/works/work:{doi}").json()["state"])

    with served(tmp_path, works) as (service, client):
        assert client.get("/health").json() == {"run": "works"}
        assert client.get("/works/work:10.1/nothing").status_code == 404
        for doi in ("10.1/a", "10.1/b"):
            accepted = client.post("/works", json={"doi": doi})
            assert (accepted.status_code, accepted.json()["created"]) == (202, True)
        assert client.post("/works", json={"doi": "10.1/a"}).status_code == 200
        wait_until(lambda: bool(Works.asked))

        service.process.send_signal(signal.SIGTERM)
        wait_until(lambda: bool(service.said("The run is being stopped")))
        Works.may_answer.set()
        assert service.ended() == 0, "".join(service.lines)
    assert Works.asked == ["/works/10.1/a"]
    with closing(open_store("sqlite:///.penstock/web.db", folder=tmp_path)) as store:
        jobs = [store.job(f"work:{doi}").result() for doi in ("10.1/a", "10.1/b")]
        assert [job and job.state for job in jobs] == [JobState.DONE, JobState.QUEUED]
        assert store.workers().result() == []
        assert store.check().result() == []

    with served(tmp_path, works) as (service, client):
        wait_until(lambda: state(client, "10.1/b") == "done")
        found = client.get("/works/work:10.1/a").json()
        service.process.send_signal(signal.SIGTERM)
        assert service.ended() == 0, "".join(service.lines)
    assert found["result"] == {"doi": "10.1/a", "title": "About /works/10.1/a"}
    assert Works.asked == ["/works/10.1/a", "/works/10.1/b"]


def cells(notebook: Path) -> list[str]:
    document = json.loads(notebook.read_text())
    return ["".join(one["source"]) for one in document["cells"] if one["cell_type"] == "code"]


def test_a_notebook_runs_cell_by_cell_on_a_running_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    async def kernel() -> None:
        names: dict[str, Any] = {"__name__": "__main__"}
        for text in cells(EXAMPLES / "notebook/measure.ipynb"):
            code = compile(text, "cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            running = eval(code, names)
            if inspect.iscoroutine(running):
                await running
        names["app"].close()

    asyncio.run(kernel())
    first = capsys.readouterr().out
    asyncio.run(kernel())  # the kernel was restarted
    second = capsys.readouterr().out

    assert "2 new, 0 known" in first
    assert "2 ended, 0 left" in first
    assert "2 done, 0 failed" in first
    assert "shape: (2, 3)" in first
    assert "0 new, 2 known" in second
    assert "0 done, 0 failed" in second
    assert "shape: (2, 3)" in second


def test_a_script_does_nothing_twice(tmp_path: Path) -> None:
    def run() -> str:
        done = run_forked(
            [sys.executable, str(EXAMPLES / "script/enrich.py"), "people.csv"],
            cwd=tmp_path,
            env=environment_of_tests(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    assert run() == "3 new, 3 done in this run, written to people.csv\n"
    assert run() == "0 new, 0 done in this run, written to people.csv\n"
    with (tmp_path / "people.csv").open() as file:
        rows = {row["last"]: row["century"] for row in csv.DictReader(file)}
    assert rows == {"Lovelace": "19", "Turing": "20", "Hopper": "20"}

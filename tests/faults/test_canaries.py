# SPDX-License-Identifier: Apache-2.0
"""F71: are prompts, answers, arguments and keys found nowhere but where they are kept on purpose?

One run meets all that a run may meet (429s, failures, time-outs, kill -9, a call in doubt, a budget
that is used up, malformed replies, both SDKs, threads and processes) with a canary in every place
that holds a secret or content. Then every place that people can read is swept.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.definitions.request import JobRequest, to_new_job
from penstock.model.job import JobState
from penstock.testing import Reply, SimulatedProvider, SimulatedRequest
from penstock.testing.simulated_provider import Ending, Part
from tests.canaries import CONTENT, SECRETS, Sweep, found_in, prose, word
from tests.faults import canary_jobs
from tests.faults.folder import ProjectFolder
from tests.forked import run_forked
from tests.processes import environment_of_tests, session_of

if TYPE_CHECKING:
    from tests.postgres.cluster import Server

pytestmark = pytest.mark.faults

PENSTOCK = [sys.executable, "-m", "penstock.cli.main"]
OURS = {"pipeline.py", "vault.txt", "penstock.toml"}  # what the user wrote, with secrets in it
CONFIG = """
app = "pipeline.py"
store = "sqlite:///canaries.db"
durability = "normal"
[runtime]
grace_seconds = 1.0
[tasks]
max_crashes = 3
[providers.plain]
base_url = "{url}"
[providers.model.models.m]
usd_per_million_tokens = {{ input = 1, output = 2 }}
[budget.task.over_budget.run]
tokens = 1
"""
TOLD = (("set-cookie", f"sid={word('set_cookie')}; Path=/"), ("x-echo", word("echoed_header")))


def answer(request: SimulatedRequest) -> Reply | None:
    """Each case by what is asked; all tell more than they should."""
    body = request.json() or {}
    echo = f"Incorrect key: Bearer {word('authorization_key')}, x-api-key: {word('x_api_key')}"
    if request.path == "/refused":
        return Reply.of({"error": {"message": echo}}, status=401, headers=TOLD)
    if request.path == "/hangs":
        return Reply(status=None, ending=Ending.HANG)
    if body.get("model") == "bad":
        said = f"Invalid prompt: {body['messages'][0]['content']!r}; {echo}"
        problem = {"type": "error", "error": {"type": "invalid", "message": said}}
        return Reply.of(problem, status=400, headers=TOLD)
    if request.number == 1:
        return Reply.of(b"", status=429, headers=[*TOLD, ("retry-after", "0")])
    if request.number == 2:
        return Reply.of({"error": prose("prompt")}, status=500, headers=TOLD)
    case = body.get("case")
    if case == "malformed":
        return Reply.of(prose("malformed").encode(), headers=TOLD)
    if case == "broken":
        data = json.dumps({"choices": [{"message": {"content": prose("broken_stream")}}]})
        return Reply(parts=(Part(data.encode()[:-8]),), ending=Ending.RESET, headers=TOLD)
    if body.get("stream"):
        return _stream(prose("streamed"))
    message: dict[str, object] = {"role": "assistant", "content": prose("completion")}
    if case == "tool":
        arguments = json.dumps({"query": prose("tool_arguments")})
        message["tool_calls"] = [{"function": {"name": "look", "arguments": arguments}}]
    usage = {"prompt_tokens": 4, "completion_tokens": 9, "total_tokens": 13}
    return Reply.of({"choices": [{"message": message}], "usage": usage}, headers=TOLD)


def _stream(text: str) -> Reply:
    pieces = [text[at : at + 3] for at in range(0, len(text), 3)]
    events = [{"choices": [{"delta": {"content": piece}}]} for piece in pieces]
    lines = [f"data: {json.dumps(event)}\n\n" for event in events] + ["data: [DONE]\n\n"]
    kind = ("content-type", "text/event-stream")
    return Reply(parts=tuple(Part(line.encode()) for line in lines), headers=(kind, *TOLD))


class Project(ProjectFolder):
    """The app of the canaries in a folder, with all secrets where they belong."""

    def __init__(self, folder: Path, provider: SimulatedProvider) -> None:
        url = provider.url.replace("://", f"://me:{word('config_url_password')}@")
        (folder / "vault.txt").write_text(f"plain-{word('vault_key')}\n")
        (folder / "tmp").mkdir()
        shutil.copy(canary_jobs.PIPELINE, folder / "pipeline.py")
        super().__init__(folder, CONFIG.format(url=url), "sqlite:///canaries.db")
        self.environment = environment_of_tests(
            CANARY_FOLDER=str(folder),
            CANARY_PROVIDER=provider.url,
            CANARY_TOKEN=f"token-{word('environment_token')}",
            CANARY_PRIVATE_KEY=f"-----BEGIN-----\n'{word('many_lines')}\"\n-----END-----",
            OPENAI_API_KEY=word("authorization_key"),
            HTTPS_PROXY=f"http://me:{word('proxy_password')}@127.0.0.1:1",
            NO_PROXY="127.0.0.1",
            TMPDIR=str(folder / "tmp"),
        )

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self._started([*PENSTOCK, *words])

    def start(self, *words: str) -> subprocess.Popen[str]:
        """A real process, whose arguments can be looked at."""
        with (self.folder / "run.err").open("w") as said:
            process = subprocess.Popen(
                [*PENSTOCK, *words],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                text=True,
                start_new_session=True,
            )
        self.running.append(process)
        return process

    def looks(self, commands: Sequence[Sequence[str]]) -> list[str]:
        """What each of these commands prints, all in one process, which saves time."""
        done = self._started([sys.executable, "-c", DRIVER, json.dumps(commands)])
        assert done.returncode == 0, done.stderr
        said: list[str] = json.loads(done.stdout)
        assert len(said) == len(commands)
        return said

    def _started(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        done: subprocess.CompletedProcess[str] = run_forked(
            command,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert "our bug" not in done.stderr, done.stderr
        return done


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    with SimulatedProvider(script=answer) as provider:
        project = Project(tmp_path, provider)
        yield project
        project.close()


DRIVER = """
import contextlib, io, json, sys
from penstock.cli import main

said = []
for words in json.loads(sys.argv[1]):
    with io.StringIO() as text, contextlib.redirect_stdout(text):
        with contextlib.redirect_stderr(text), contextlib.suppress(SystemExit):
            main.run(words)
        said.append(text.getvalue())
print(json.dumps(said))
"""
LOOKS: Sequence[Sequence[str]] = [
    ["queue", "stats"],
    ["why", "held-0"],
    ["why", "over_budget-0"],
    ["providers"],
    ["explain"],
    ["explain", "--capacity"],
    ["report"],
    ["doctor"],
    ["config", "show"],
]
AWAY = f"postgresql://me:{word('store_password')}@127.0.0.1:1/shop"


def test_f71_twenty_canaries_are_found_only_where_content_is_kept(project: Project) -> None:
    sweep = Sweep()
    flags = {"text": ("--log-level", "debug"), "json": ("--debug", "--log-level", "debug")}
    for log_format, jobs in (("text", canary_jobs.DEADLY), ("json", canary_jobs.QUOTING)):
        for task, arguments in jobs.items():
            project.add(task, **arguments)
        run = project.command(
            *flags[log_format], "--log-format", log_format, "queue", "run", "--drain"
        )
        assert run.returncode == 4, run.stderr  # for want of money
        sweep.look(f"stdout of a run, {log_format}", run.stdout)
        sweep.look(f"stderr of a run, {log_format}", run.stderr)
    _has_met_everything(project)

    commands = [[*words, *more] for words in LOOKS for more in ([], ["--json"])]
    commands += [["queue", "list"], ["--debug", "queue", "stats", "--store", AWAY]]
    for words, said in zip(commands, project.looks(commands), strict=True):
        assert said, words
        sweep.look(" ".join(words), said)
    documents = [["queue", "show", key, "--traceback", "--json"] for key in project.states()]
    documents.append(["queue", "list", "--json"])
    for words, said in zip(documents, project.looks(documents), strict=True):
        sweep.job_document(" ".join(words), said)
    backup = project.command("backup", "copy.db")
    sweep.look("backup", backup.stdout + backup.stderr)
    sweep.sqlite(project.folder / "canaries.db")
    sweep.sqlite(project.folder / "copy.db")
    sweep.folder(project.folder, but=OURS | _stores(project.folder))

    assert not sweep.leaks, "\n".join(sweep.leaks)
    _was_planted(project)


def _has_met_everything(project: Project) -> None:
    states = project.states()
    assert states.pop("over_budget-0") is JobState.QUEUED
    assert states.pop("good-0") is states.pop("dies-0") is JobState.DONE
    assert states.pop("skips-0") is JobState.SKIPPED
    assert set(states.values()) == {JobState.ERROR}, states
    errors = {key: project.job(key).last_error for key in states}
    kinds = {key: error.kind for key, error in errors.items() if error is not None}
    assert kinds["held-0"] == "CallInDoubt"
    assert kinds["sdk_openai-0"] == kinds["sdk_anthropic-0"] == "BadRequestError"
    assert kinds["times_out-0"] in ("TimeLimitError", "AttemptOver")


def _stores(folder: Path) -> set[str]:
    """Files that were swept table by table."""
    return {path.name for path in folder.glob("*.db*")}


def _was_planted(project: Project) -> None:
    """The canaries have been where they are kept: whoever sends none finds none."""
    jobs = [project.job(key) for key in project.states()]
    kept = " ".join(f"{job.payload} {job.result}" for job in jobs)
    assert found_in(kept) == {"payload", "skipped", "result", "completion"}
    assert len({*SECRETS, *CONTENT}) >= 20
    errors = [job.last_error.message for job in jobs if job.last_error is not None]
    quoted = [message for message in errors if "[content]" in message]
    hidden = [message for message in errors if "[redacted]" in message]
    assert len(quoted) >= 10, errors
    traced = [job.last_error for job in jobs if job.last_error and job.last_error.traceback]
    assert len(traced) >= 10, errors
    assert len(hidden) >= 5, errors


def test_f71_canaries_are_found_in_no_table_log_or_command_line_of_a_server(
    tmp_path: Path, postgres_url: str, postgres_server: Server
) -> None:
    import psycopg

    from penstock.stores.postgres.open import open_postgres

    secret = f"password={word('store_password')}"
    url = f"{postgres_url}{'&' if '?' in postgres_url else '?'}{secret}"
    sweep = Sweep()
    with SimulatedProvider(script=answer) as provider, closing(open_postgres(url)) as store:
        project = Project(tmp_path, provider)
        tasks = ("good", "shows_answer", "shows_stream", "quotes_payload", "skips", "in_process")
        everything = canary_jobs.DEADLY | canary_jobs.QUOTING
        for task in tasks:
            payload = json.dumps(everything[task])
            request = JobRequest[None](task=task, payload=payload, key=task)
            store.enqueue([to_new_job(request)]).result()
        project.environment["PENSTOCK_STORE"] = url
        with psycopg.connect(postgres_url, autocommit=True) as server:
            run = project.start("--log-level", "debug", "queue", "run", "--drain")
            while run.poll() is None:
                asked = server.execute("select application_name, query from pg_stat_activity")
                sweep.look("pg_stat_activity", repr(asked.fetchall()))
                for pid in session_of(run.pid):
                    with suppress(OSError):
                        sweep.look("a command line", Path(f"/proc/{pid}/cmdline").read_bytes())
                time.sleep(0.05)
            err = (tmp_path / "run.err").read_text()
            assert run.returncode == 1, err
            sweep.look("a run", err)
            tables = server.execute(
                "select relname from pg_class where relkind = 'r' and "
                "relnamespace = 'penstock'::regnamespace"
            ).fetchall()
            for (table,) in tables:
                rows = server.execute(f"select * from penstock.{table}")
                columns = [column.name for column in rows.description or ()]
                sweep.rows(table, columns, rows.fetchall())
        commands = [["queue", "stats"], ["doctor"], ["config", "show", "--json"], ["report"]]
        for words, said in zip(commands, project.looks(commands), strict=True):
            sweep.look(" ".join(words), said)
        sweep.look("the server's log", (postgres_server.folder / "log").read_bytes())
        project.close()

    assert not sweep.leaks, "\n".join(dict.fromkeys(sweep.leaks))
    assert {"column ended.error", "column calls.fingerprint", "a command line"} <= {*sweep.places}

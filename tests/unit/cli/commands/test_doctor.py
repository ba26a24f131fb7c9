# SPDX-License-Identifier: Apache-2.0
"""What does the doctor make of settings, apps and stores that are not healthy?"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from penstock.cli.app_inspect import AppFacts, probe_app
from penstock.cli.commands.doctor import Diagnosis, format_finding
from penstock.cli.target import Target
from penstock.model.job import NewJob
from penstock.model.views import Finding, healthy, problem
from penstock.observe.doctor import python_finding
from penstock.stores.sqlite.store import SqliteStore
from tests.postgres_modules import put_module, without_psycopg
from tests.unit.cli.conftest import Command

BROKEN = AppFacts(problem="It does not work; mend it.", details="Traceback: here")


def visit(folder: Path, facts: AppFacts, **flags: str) -> list[Finding]:
    target = Target({f"--{name}": value for name, value in flags.items()}, folder)
    return list(Diagnosis(target, import_app=lambda flags, folder, named: facts).findings())


def fill(folder: Path, name: str) -> None:
    store = SqliteStore.open(folder / f".penstock/{name}.db", durability="normal")
    store.enqueue([NewJob(key="k", task="visit", payload="{}", group="g")]).result()
    store.close()


def text_of(findings: list[Finding], check: str) -> str:
    return "|".join(finding.text for finding in findings if finding.check == check)


def problems(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if not finding.ok]


def test_the_store_of_a_broken_app_is_found_by_the_text_of_the_app(project: Path) -> None:
    fill(project, "shop")
    fill(project, "another")

    findings = visit(project, BROKEN)

    assert problems(findings) == [problem("app", "It does not work; mend it.")]
    assert "shop.db" in text_of(findings, "store")
    assert text_of(findings, "waiting").startswith("1 queued")
    assert text_of(findings, "tasks") == ""  # nobody knows what the app knows


def test_where_nothing_names_the_store_all_that_could_be_it_are_checked(project: Path) -> None:
    fill(project, "one")
    fill(project, "two")
    (project / "pipeline.py").write_text("def\n")

    found = text_of(visit(project, BROKEN), "store")

    assert "one.db" in found
    assert "two.db" in found


def test_wrong_settings_do_not_hide_the_store(project: Path) -> None:
    (project / "penstock.toml").write_text("stroe = 'x'\n")
    fill(project, "shop")

    for findings in (visit(project, BROKEN), visit(project, BROKEN, store="sqlite:///x.db")):
        (found,) = problems(findings)
        assert found.check == "settings"
        assert "the nearest known name is store" in found.text
    assert "shop.db" in text_of(visit(project, BROKEN), "store")


def test_a_store_on_a_server_is_asked_and_its_password_not_told(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = AppFacts(name="shop", store_url="postgresql://me:secret@db/x")
    asked: list[str] = []

    def postgres_findings(url: str, *, full: bool) -> list[Finding]:
        asked.append(url)
        return [problem("server", "It is a standby.")]

    put_module(
        monkeypatch,
        "doctor",
        postgres_findings=postgres_findings,
        postgres_facts=lambda url: None,
    )
    (found,) = problems(visit(project, facts))
    assert (found.check, found.text) == ("server", "It is a standby.")
    assert asked == [facts.store_url]

    without_psycopg(monkeypatch)
    (found,) = problems(visit(project, facts))
    assert "postgresql://[redacted]@db/x needs psycopg" in found.text


def test_the_url_of_a_store_is_no_argument_of_the_process_that_imports_the_app(
    project: Path,
) -> None:
    (project / "pipeline.py").write_text(
        "from penstock import Penstock\n"
        "open('seen', 'w').write(open('/proc/self/cmdline').read())\n"
        "app = Penstock('shop')\n"
    )

    facts = probe_app({"--store": "postgresql://me:canary99@db/x"}, project, "pipeline.py")

    assert facts.store_url == "postgresql://me:canary99@db/x"
    assert "app_inspect" in (project / "seen").read_text()
    assert "canary99" not in (project / "seen").read_text()


def test_a_new_project_is_well_and_gets_no_store(project: Path, command: Command) -> None:
    ended = command("doctor", "--json")

    assert (ended.code, ended.document["healthy"]) == (0, True)
    last = ended.document["findings"][-1]
    assert (last["check"], last["ok"]) == ("store", True)
    assert "when the first job is enqueued" in last["text"]
    assert not (project / ".penstock").exists()


def test_debug_shows_the_traceback_of_an_import(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = Target({}, project)

    for debug in (False, True):
        list(Diagnosis(target, debug=debug, import_app=lambda *_: BROKEN).findings())
        assert ("Traceback: here" in capsys.readouterr().err) == debug


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise SystemExit(3)\n", "SystemExit: 3 (some.py, line 2)"),
        ("print('noise'); import os; os._exit(7)\n", "was imported (exit code 7)"),
        ("import os; os.abort()\n", "(signal SIGABRT)"),
        ("import other\n", "has a syntax error in line 3 of 'other.py'"),
    ],
)
def test_an_import_that_ends_its_process_ends_nobody_else(
    source: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "some.py").write_text(f"print('hello')\n{source}")
    (tmp_path / "other.py").write_text("\n\ndef\n")

    facts = probe_app({"--app": "some.py"}, tmp_path, "some.py")

    assert facts.problem is not None
    assert said in facts.problem


def test_the_traceback_of_an_import_gives_no_orders_to_a_terminal(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = AppFacts(problem="It does not work; mend it.", details="Traceback\n \x1b]0;own\x07red")

    list(Diagnosis(Target({}, project), debug=True, import_app=lambda *_: facts).findings())

    assert capsys.readouterr().err == "Traceback\n \\x1b]0;own\\x07red\n"


def test_an_app_file_that_is_a_pipe_is_not_waited_for(project: Path) -> None:
    (project / "pipeline.py").unlink()
    os.mkfifo(project / "pipeline.py")

    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(visit, project, BROKEN)
        ended = wait([asked], timeout=240.0).done
        if not ended:  # let it go on, so that the test ends
            os.close(os.open(project / "pipeline.py", os.O_WRONLY))

    assert ended
    assert problems(asked.result()) == [problem("app", "It does not work; mend it.")]


def test_an_app_that_starts_a_thread_at_import_is_imported(tmp_path: Path) -> None:
    (tmp_path / "some.py").write_text(
        "import threading, time\n"
        "from penstock import Penstock\n"
        "app = Penstock('shop')\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
    )

    facts = probe_app({"--app": "some.py"}, tmp_path, "some.py", seconds=20.0)

    assert (facts.problem, facts.name) == (None, "shop")


@pytest.mark.parametrize("name", ["a\0b.db", "n" * 253, "n" * 300 + "/x.db", "d/" * 300 + "x.db"])
def test_a_store_whose_name_no_file_can_have_is_told(
    name: str, project: Path, command: Command
) -> None:
    facts = AppFacts(name="shop", store_url=f"sqlite:///{name}")

    (found,) = problems(visit(project, facts))

    assert "no file can have" in found.text
    if "\0" not in name:
        ended = command("queue", "stats", "--store", f"sqlite:///{name}")
        assert ended.code == 2
        assert "no file can have" in ended.err


def test_an_import_that_never_returns_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "some.py").write_text("import time\ntime.sleep(600)\n")

    facts = probe_app({"--app": "some.py"}, tmp_path, "some.py", seconds=0.5)

    assert facts.problem is not None
    assert "was not imported within 0.5 s" in facts.problem


def test_an_import_tells_the_name_the_tasks_and_the_store(project: Path) -> None:
    facts = probe_app({}, project, "pipeline.py")

    assert facts == AppFacts(
        name="shop",
        tasks=("visit", "broken"),
        store_url="sqlite:///.penstock/shop.db",
        files=(str(project / "pipeline.py"),),
    )


def test_a_finding_is_one_line_whatever_is_in_it() -> None:
    assert format_finding(healthy("app", "a\nb\x1b[31m")) == "ok app: a b\\x1b[31m"
    assert format_finding(problem("app", "Bad;\nmend it.")) == "problem: Bad; mend it."


def test_an_old_python_and_a_strange_system_are_told() -> None:
    assert python_finding((3, 11), "linux").ok
    assert "install 3.11" in python_finding((3, 10), "linux").text
    assert "use Linux" in python_finding((3, 12), "win32").text


SDK = """
from penstock import Context, Penstock
app = Penstock("shop")
ai = app.provider("ai", base_url="https://ai.example")
class AsyncOpenAI:
    def __init__(self, **options): pass
@app.task(uses=ai)
async def ask(ctx: Context) -> None:
    AsyncOpenAI(api_key="x", http_client=ai.http_client(){more})
"""


@pytest.mark.parametrize(
    ("more", "is_well"),
    [("", False), (", max_retries=2", False), (", max_retries=0", True), (", **options", True)],
)
def test_a_client_of_an_sdk_that_sends_again_by_itself_is_told(
    project: Path, command: Command, more: str, is_well: bool
) -> None:
    (project / "pipeline.py").write_text(SDK.replace("{more}", more))

    ended = command("doctor", "--json")

    (found,) = [one for one in ended.document["findings"] if one["check"] == "providers"]
    assert found["ok"] is is_well
    assert "max_retries=0" in found["text"]
    if not is_well:
        assert "pipeline.py, line 9" in found["text"]


def test_a_client_of_an_sdk_that_sends_past_the_providers_is_told(
    project: Path, command: Command
) -> None:
    text = SDK.replace("http_client=ai.http_client(){more}", "max_retries=0")
    (project / "pipeline.py").write_text(text)

    ended = command("doctor", "--json")

    (found,) = [one for one in ended.document["findings"] if one["check"] == "providers"]
    assert not found["ok"]
    assert found["text"].startswith(
        "An SDK client sends past the providers 'ai' (pipeline.py, line 9), without permit"
    )


def test_an_app_that_uses_an_unknown_provider_is_a_problem_of_the_app(
    project: Path, command: Command
) -> None:
    text = 'app = Penstock("shop")\n@app.task(uses="aii")\nasync def a(ctx: Context): ...\n'
    (project / "pipeline.py").write_text(f"from penstock import Context, Penstock\n{text}")

    ended = command("doctor", "--json")

    (found,) = [one for one in ended.document["findings"] if one["check"] == "app"]
    assert not found["ok"]
    assert found["text"].startswith("Task 'a' uses the provider 'aii', which the app does not")

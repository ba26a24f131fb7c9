# SPDX-License-Identifier: Apache-2.0
"""Does each mistake of a new user get an answer with its cause first, short, and a remedy?

The remedy is a command where one can be typed, and it works as it is printed.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from penstock.terminal_text import LINE_MAX, folded
from tests.unit.cli.conftest import Command, Ended

COMMAND = re.compile(r"(?:'penstock ((?:[^']|'\\'')*)')|(?:such as penstock (.*)\.$)")


@dataclass(frozen=True)
class Mistake:
    """What somebody types, and what an answer must say."""

    typed: str
    cause: str  # how the answer begins
    remedy: str = ""  # what it has further on
    files: dict[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()  # commands that make the situation
    code: int = 2
    works: bool = False  # the first command that it names is typed, and has to succeed


OLD = ('queue enqueue visit a \'{"host": "h"}\'',)
OTHER_NAMES = [
    Mistake("queue run --workers 4", "There is no option --workers; here it is --processes."),
    Mistake("queue run pipeline.py -c 4", "There is no option -c; here it is --slots."),
    Mistake("queue run --burst", "There is no option --burst; here it is --drain."),
    Mistake("queue run --max-tasks 5", "There is no option --max-tasks; here it is --max-jobs."),
    Mistake("queue list --status error", "There is no option --status; here it is --state."),
    Mistake("results visit --format csv", "There is no option --format; here it is --to."),
    Mistake("run --concurrency 4", "There is no option --concurrency; here it is --slots."),
    Mistake("queue list -A pipeline.py", "There is no option -A; here it is --app."),
    Mistake("retry a", "There is no command 'retry'; here it is 'penstock queue retry'."),
    Mistake(
        "status",
        "There is no command 'status'; here it is 'penstock queue stats'.",
        before=('queue enqueue visit a \'{"host": "h"}\'',),
        works=True,
    ),
    Mistake("worker", "There is no command 'worker'; here it is 'penstock queue run'."),
    Mistake("queue ls", "There is no command 'ls'; here it is 'penstock queue list'."),
    Mistake("queue list --state failed", "No state is called 'failed'; the nearest is 'error'."),
    Mistake("queue list --state running", "No state is called 'running'", "is 'in_progress'"),
    Mistake("queue list --state canceled", "No state is called 'canceled'", "is 'cancelled'"),
]
JOBS = [
    Mistake(
        'queue enqueue visit \'{"host": "example.org"}\'',
        'The key is missing: {"host": "example.org"} is what the task is given.',
        works=True,
    ),
    Mistake("queue enqueue visit k '{host: 1}'", "The payload is refused: not JSON at column 2"),
    Mistake("queue enqueue visit k '[1]'", "The payload must be a JSON object of the task's"),
    Mistake(
        "queue enqueue visit k '{\"hots\": 1}'", "Task 'visit' has no argument 'hots'; it takes"
    ),
    Mistake(
        "queue enqueue visit k '{\"host\": 1}'", "Task 'visit', argument 'host': expected `str`"
    ),
    Mistake("queue enqueue visti k", "No task named 'visti' is registered", "closest: 'visit'"),
    Mistake("queue enqueue broken 'a\tb'", "A key cannot hold control characters: 'a\\tb'."),
    Mistake("queue enqueue broken ''", "A key has 1 to 512 characters; got 0."),
    Mistake(
        "queue enqueue broken k --after x", "Job 'x' does not exist, but job 'k' is to run after"
    ),
    Mistake("queue enqueue broken k --delay 5min", "--delay must be a number of seconds or a text"),
    Mistake("queue import jobs.jsonl", "The file 'jobs.jsonl' cannot be read: No such file"),
    Mistake(
        "queue import jobs.csv",
        "The file 'jobs.csv' looks like CSV",
        files={"jobs.csv": "id,host\na,h\n"},
    ),
    Mistake("queue run --max-jobs 0", "Invalid value for '--max-jobs': at least 1."),
    Mistake("queue run --slots many", "Invalid value for '--slots': a whole number."),
    Mistake("queue run --limit host", "--limit must be DIMENSION=NAME:N, such as resolver="),
    Mistake("queue purge --older-than soon --yes", "--older-than must be a number of seconds or a"),
    Mistake("queue limit host 3", "A limit key is dimension:value, such as host:example.org;"),
    Mistake(
        "--log-level loud queue stats", "Invalid value for '--log-level': 'loud' is not one of"
    ),
    Mistake("results visit --to xlsx", "Invalid value for '--to': 'xlsx' is not one of 'jsonl'"),
    Mistake(
        "queue rerun a",
        "Job 'a' is queued, it has not ended: 'penstock why a' says",
        before=OLD,
        code=1,
    ),
    Mistake("queue retry a", "Job 'a' is", before=OLD, code=1),
]
APPS = [
    Mistake(
        "queue run visits.py:app",
        "The app 'visits.py:app' is a file with an attribute;",
        "'visits.py'",
    ),
    Mistake("queue run nofile.py", "The app file '", "nofile.py' does not exist. Name another"),
    Mistake(
        "queue run visits:app",
        "The app 'visits:app' is in no module that is there: 'visits' is missing. Name a file",
    ),
    Mistake("queue run visits", "'visits' is not an app; name a file such as pipeline.py"),
    Mistake(
        "queue list",
        "The app calls app.run() or app.build() while it is imported. Put the call below",
        files={
            "pipeline.py": "from penstock import Penstock\n"
            "app = Penstock('x')\napp.run(drain=True)\n"
        },
    ),
    Mistake(
        "queue list",
        "The app '",
        "has a syntax error in line 2: '(' was never closed. Correct it there.",
        {"pipeline.py": "from penstock import Penstock\napp = Penstock('x'\n"},
    ),
    Mistake(
        "queue list",
        "The app '",
        "ModuleNotFoundError: No module named 'nosuch' (pipeline.py, line 1). Fix it there;",
        {"pipeline.py": "import nosuch\n"},
    ),
    Mistake(
        "queue list",
        "The app 'pipeline.py' defines no Penstock object. Write `app = Penstock('name')` in it.",
        files={"pipeline.py": "x = 1\n"},
    ),
    Mistake(
        "queue list",
        "The app 'pipeline.py' defines several Penstock objects: a, b. Name one as",
        files={"pipeline.py": "from penstock import Penstock as P\na, b = P('a'), P('b')\n"},
    ),
    Mistake("queue list --store jobs.db", "The store 'jobs.db' is not known; write sqlite:///path"),
    Mistake("queue list --store redis://localhost", "The store 'redis://localhost' is not known;"),
    Mistake("queue list --store sqlite:///", "The store 'sqlite:///' names no file; write"),
    Mistake("queue list", "There is no store sqlite:///.penstock/shop.db yet. Enqueue a job first"),
    Mistake(
        "queue list --store sqlite:///junk.db",
        "The store '",
        "/junk.db' is not a sound database (file is not a database);",
        {"junk.db": "not a database"},
        code=1,
    ),
]
RENAMED = """
from penstock import Context, Penstock

app = Penstock("shop")

@app.task()
async def call_on(ctx: Context, host: str) -> str:
    return host
"""
OLD = ('queue enqueue visit a \'{"host": "h"}\'',)
PLACES = [
    Mistake(
        "why a",
        "The app 'shop' does not define the task 'visit' of 'a', so none of its workers takes it.",
        "(`name='visit'` keeps an old name); or cancel it.\nCommand: penstock queue cancel a\n",
        {"pipeline.py": RENAMED},
        OLD,
        code=0,
    ),
]
SETTINGS = [
    Mistake(
        "queue stats",
        "The settings have 4 problems:\n- stor is not a setting",
        "- runtime.thread_slots must be a whole number, got 'many' (from penstock.toml).",
        {
            "penstock.toml": 'stor = "x"\ndurability = "fast"\n'
            '[runtime]\nasync_slot = 5\nthread_slots = "many"\n'
        },
    ),
]
MISTAKES = [*OTHER_NAMES, *JOBS, *APPS, *PLACES, *SETTINGS]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.typed.replace("/", "|"))
def test_a_mistake_is_answered_with_its_cause_and_a_remedy(
    mistake: Mistake, project: Path, command: Command
) -> None:
    for typed in mistake.before:
        assert command(*shlex.split(typed)).code == 0
    for name, text in mistake.files.items():
        (project / name).write_text(text)

    ended = command(*shlex.split(mistake.typed))

    assert ended.code == mistake.code, ended
    said = ended.err or ended.out
    assert said.startswith(mistake.cause), said
    assert mistake.remedy in said
    assert "Traceback" not in said
    assert "our bug" not in said
    for line in said.splitlines():
        assert all(len(part) <= LINE_MAX for part in folded(line)), line
    if mistake.works:
        assert _typed_as_printed(said, command).code == 0


def _typed_as_printed(said: str, command: Command) -> Ended:
    found = COMMAND.search(said)
    assert found is not None, said
    return command(*shlex.split(found[1] or found[2]))


def test_a_store_that_is_made_beside_another_one_is_not_made_silently(
    project: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command(*shlex.split(OLD[0])).code == 0
    elsewhere = project / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    said = f"The store {project}/.penstock/shop.db is not used, since the current folder is another"

    looked = command("queue", "stats", "../pipeline.py")
    assert said in looked.err
    assert f"Run it in {project}, or set store = 'sqlite:///{project}/" in looked.err
    made = command("queue", "enqueue", "../pipeline.py", "visit", "a", '{"host": "h"}')
    assert said in made.err
    assert (elsewhere / ".penstock" / "shop.db").exists()
    again = command("queue", "enqueue", "../pipeline.py", "visit", "b", '{"host": "h"}')
    assert again.err == ""  # it is known by now that this folder has a store of its own

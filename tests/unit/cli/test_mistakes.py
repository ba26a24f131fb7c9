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
MISTAKES = [*OTHER_NAMES, *JOBS, *PLACES, *SETTINGS]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.typed)
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

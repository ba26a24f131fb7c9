# SPDX-License-Identifier: Apache-2.0
"""What is imported by whom: defining an app needs definitions only, a list of commands none."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

OURS_MAX = 120  # modules of ours that `import penstock` may load
HEAVY = {
    "aiohttp",
    "apsw",
    "exchange_calendars",
    "httpcore2",
    "httpx",
    "httpx2",
    "numpy",
    "pandas",
    "psycopg",
    "pyarrow",
    "pydantic",
    "requests",
    "rich",
    "uvloop",
}
NOT_FOR_DEFINING = {
    "admission",
    "cli",
    "config",
    "observe",
    "requests",
    "stores",
    "supervisor",
    "testing",
    "worker",
}
HELP = """
import sys
import penstock_command
sys.argv = ["penstock", *{arguments}]
try:
    penstock_command.run()
except SystemExit as ended:
    assert not ended.code
"""
TELL = "\nimport json, sys; print('\\n' + json.dumps(sorted(sys.modules)))"


def lines_of(code: str, folder: Path) -> list[str]:
    """What a new interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def loaded_by(code: str, folder: Path) -> set[str]:
    """The modules that are there after this."""
    return set(json.loads(lines_of(code + TELL, folder)[-1]))


def ours(modules: set[str]) -> set[str]:
    return {name for name in modules if name.partition(".")[0] == "penstock"}


def test_an_app_is_defined_without_store_worker_and_settings(tmp_path: Path) -> None:
    code = """
from penstock import Context, Penstock

app = Penstock("shop")
api = app.provider("api", base_url="http://simulated.invalid", rpm=60)

@app.task(uses=api)
async def visit(ctx: Context, n: int) -> int:
    return n

visit.job(n=1)
app.close()
"""
    loaded = loaded_by(code, tmp_path)

    assert len(ours(loaded)) <= OURS_MAX
    assert loaded & HEAVY == set()
    packages = {name.split(".")[1] for name in ours(loaded) if "." in name}
    assert packages.isdisjoint(NOT_FOR_DEFINING)


def test_the_public_list_is_there_and_the_version_is_read_when_it_is_asked_for(
    tmp_path: Path,
) -> None:
    code = """
import sys
import penstock
print("importlib.metadata" in sys.modules)
print(penstock.__version__)
print(sum(getattr(penstock, name) is not None for name in penstock.__all__) - len(penstock.__all__))
print(hasattr(penstock, "nothing"))
"""
    before, version, missing, other = lines_of(code, tmp_path)

    assert (before, version) == ("False", metadata.version("penstock"))
    assert (missing, other) == ("0", "False")


def test_help_imports_no_command(tmp_path: Path) -> None:
    loaded = loaded_by(HELP.format(arguments=["--help"]), tmp_path)
    of_a_group = loaded_by(HELP.format(arguments=["queue", "--help"]), tmp_path)

    assert loaded & HEAVY == set()
    assert of_a_group & HEAVY <= {"pydantic"}  # typer's own: it reads the values of options by it
    assert len(ours(loaded)) <= OURS_MAX
    assert ours(of_a_group) - ours(loaded) == {
        "penstock.cli.commands",
        "penstock.cli.commands.queue",
    }


def test_a_command_imports_itself_before_it_begins(tmp_path: Path) -> None:
    code = """
import sys
from penstock.cli import main
main.import_command(["--log-level", "info", "queue", "--json", "stats"])
print("penstock.cli.commands.queue.stats" in sys.modules)
print("penstock.cli.commands.queue.list" in sys.modules)
"""
    assert lines_of(code, tmp_path) == ["True", "False"]


def test_a_loop_goes_on_while_the_queue_and_a_run_are_imported(tmp_path: Path) -> None:
    code = """
import asyncio, sys, threading
from penstock import Context, Penstock

class Watch:
    def find_spec(self, name, path, target=None):
        if name in ("penstock.app.queue", "penstock.app.run"):
            print(name, threading.current_thread() is threading.main_thread())

sys.meta_path.insert(0, Watch())
app = Penstock("shop")

@app.task()
async def visit(ctx: Context) -> None: ...

async def main():
    await app.enqueue_async(visit.job())
    return await app.run_async(drain=True)

print(asyncio.run(main()).done)
app.close()
"""
    assert lines_of(code, tmp_path) == [
        "penstock.app.queue False",
        "penstock.app.run False",
        "1",
    ]

# SPDX-License-Identifier: Apache-2.0
"""May several apps share a store without running each other's jobs?

Each story is the real command in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.model.job import NewJob
from penstock.stores.open import open_store
from tests.forked import run_forked

pytestmark = pytest.mark.acceptance

APP = """
from penstock import Context, Penstock

app = Penstock("{name}")

@app.task()
def work(ctx: Context, x: int) -> str:
    return "by {name}"

if __name__ == "__main__":
    print(app.enqueue(work.job(x=1), key="k").created)
"""


class Shared:
    """A folder with two apps, and the store that they share."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        for name in ("a", "b"):
            (folder / f"{name}.py").write_text(APP.format(name=name))

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environ = {name: value for name, value in os.environ.items() if "PENSTOCK" not in name}
        return run_forked(
            [sys.executable, *arguments],
            cwd=self.folder,
            env={**environ, "PENSTOCK_STORE": self.url},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    def penstock(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "penstock.cli.main", *arguments)

    def good(self, *arguments: str) -> str:
        done = self.penstock(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def enqueue(self, name: str) -> str:
        done = self.run(f"{name}.py")
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture(params=["sqlite", "postgres"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Shared:
    if request.param == "postgres":
        return Shared(tmp_path, request.getfixturevalue("postgres_url"))
    return Shared(tmp_path, f"sqlite:///{tmp_path}/shared.db")


def test_f87_an_app_runs_its_own_jobs_only(shared: Shared) -> None:
    assert shared.enqueue("a") == "True"

    shared.good("queue", "run", "b.py", "--drain")

    assert json.loads(shared.good("queue", "show", "k", "--json"))["state"] == "queued"
    assert shared.enqueue("b") == "True"  # the same key, another app
    shared.good("queue", "run", "b.py", "--drain")
    shared.good("queue", "run", "a.py", "--drain")
    refused = shared.penstock("queue", "show", "k")
    assert refused.returncode == 2
    assert "exists in several apps of this store ('a', 'b')" in refused.stderr
    assert refused.stderr.count("\n") == 1
    for name in ("a", "b"):
        for named in (name, f"{name}.py"):
            shown = json.loads(shared.good("queue", "show", "k", "--app", named, "--json"))
            assert (shown["app"], shown["result"]) == (name, f"by {name}")


def test_apps_are_listed_renamed_and_told_apart(shared: Shared) -> None:
    for name in ("a", "b"):
        shared.enqueue(name)

    document = json.loads(shared.good("app", "list", "--json"))
    assert [(one["app"], one["states"]["queued"]) for one in document["apps"]] == [
        ("a", 1),
        ("b", 1),
    ]
    listed = json.loads(shared.good("queue", "list", "--json"))["jobs"]
    assert [(job["app"], job["key"]) for job in listed] == [("a", "k"), ("b", "k")]
    assert shared.good("queue", "list").splitlines() == [
        "queued       a  work  k",
        "queued       b  work  k",
    ]
    for arguments in (("queue", "cancel", "k"), ("why", "k")):
        refused = shared.penstock(*arguments)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert "with --app b" in refused.stderr
    shared.good("queue", "cancel", "k", "--app", "b")
    assert "No live worker could take 'k'" in shared.good("why", "k", "--app", "a.py")

    refused = shared.penstock("app", "rename", "a", "b")
    assert refused.returncode == 2
    assert "both have a job 'k'" in refused.stderr
    assert shared.good("app", "rename", "a", "c") == "The app 'a' is called 'c' now.\n"
    document = json.loads(shared.good("app", "list", "--json"))
    states = {one["app"]: one["states"] for one in document["apps"]}
    assert (states["c"]["queued"], states["b"]["cancelled"]) == (1, 1)


def test_what_has_no_owner_is_listed_by_the_doctor_and_adopted(shared: Shared) -> None:
    store = open_store(shared.url)  # as before there were apps
    store.enqueue(
        [NewJob(key=f"old {n}", task="work", payload='{"x":1}', group="work") for n in range(3)]
    ).result()
    store.close()
    other = open_store(shared.url, app="z", tasks=[])
    other.close()
    shared.enqueue("a")  # the store names another app: nothing is given away

    done = shared.penstock("doctor", "--app", "a.py")

    (sentence,) = [line for line in done.stdout.splitlines() if "belong to no app" in line]
    assert "3 jobs belong to no app (3 of 'work')" in sentence
    assert "penstock app adopt a --task work" in sentence
    said = shared.good("app", "adopt", "a", "--task", "work")
    assert said == "3 jobs without an owner went to the app 'a'.\n"
    shared.good("queue", "run", "a.py", "--drain")
    shown = json.loads(shared.good("queue", "show", "old 0", "--json"))
    assert (shown["app"], shown["result"]) == ("a", "by a")
    assert "belong to no app" not in shared.penstock("doctor", "--app", "a.py").stdout

# SPDX-License-Identifier: Apache-2.0
"""The two checkouts that are compared, each with its own environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measuring import ERROR_CHARACTERS, ROOT
from benchmarks.report import current_commit

FOLDER = ".bench-baseline"  # of the checkouts, which stay for the next run; git ignores it
COMMIT_CHARACTERS = 12
ENVIRONMENT = ".venv"


class NoBaseline(Exception):
    """There is nothing to compare with; the message is one sentence for whoever asked."""


@dataclass(frozen=True, slots=True)
class Side:
    """One checkout and the Python of its environment."""

    name: str  # "old" or "new"
    root: Path
    python: Path
    commit: str

    def check(self) -> None:
        """NoBaseline if its Python would run the code of another checkout."""
        where = "import penstock; print(penstock.__file__)"
        with tempfile.TemporaryDirectory() as folder:
            found = Path(_run([self.python, "-c", where], Path(folder)).strip())
        if not found.is_relative_to(self.root / "src"):
            raise NoBaseline(
                f"{self.python} runs {found.parent}, not the code of {self.root}; install that "
                "checkout into its own environment (make setup)."
            )


def this_checkout() -> Side:
    """The new side: what is in the working tree, run by this Python."""
    return Side("new", ROOT, Path(sys.executable), current_commit())


def old_checkout(ref: str, root: Path = ROOT) -> Side:
    """The old side: a worktree of this commit, with an environment of its own lock."""
    commit = resolve(ref, root)
    folder = worktree(commit, root)
    return Side("old", folder, environment(folder), commit[:COMMIT_CHARACTERS])


def resolve(ref: str, root: Path = ROOT) -> str:
    """The commit that is meant; NoBaseline if there is none."""
    command = ["git", "rev-parse", "--quiet", "--verify", f"{ref}^{{commit}}"]
    found = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        raise NoBaseline(f"This repository has no commit {ref!r} to compare with.")
    return found.stdout.strip()


def worktree(commit: str, root: Path = ROOT) -> Path:
    """A checkout of this commit, made when it is asked for first."""
    folder = root / FOLDER / commit[:COMMIT_CHARACTERS]
    if not folder.exists():
        # --force: somebody may have removed the folder of an earlier one without telling git.
        _run(["git", "worktree", "add", "--quiet", "--force", "--detach", folder, commit], root)
    found = _run(["git", "rev-parse", "HEAD"], folder).strip()
    if found != commit or _run(["git", "status", "--porcelain"], folder).strip():
        raise NoBaseline(f"{folder} is not {commit} as it was committed; remove that folder.")
    return folder


def environment(checkout: Path) -> Path:
    """The Python of an environment with the checkout's own lock, made when it is not there."""
    python = checkout / ENVIRONMENT / "bin" / "python"
    made = checkout / ENVIRONMENT / "ok"
    if not made.exists():
        uv = _uv()
        install: list[str | Path] = [uv, "pip", "install", "--quiet", "--python", python]
        _run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, ENVIRONMENT], checkout)
        _run([*install, "--require-hashes", "-r", "requirements.lock"], checkout)
        _run([*install, "--no-deps", "--no-build-isolation", "--editable", "."], checkout)
        made.touch()
    return python


def _uv() -> Path:
    beside = Path(sys.executable).with_name("uv")
    found = beside if beside.exists() else shutil.which("uv")
    if found is None:
        raise NoBaseline("The environment of the baseline needs uv, which make setup installs.")
    return Path(found)


def _run(command: list[str | Path], folder: Path) -> str:
    """Its output; NoBaseline if it fails."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=folder, env=kept, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        text = " ".join(map(str, command))
        raise NoBaseline(f"{text} failed: {done.stderr.strip()[-ERROR_CHARACTERS:]}")
    return done.stdout

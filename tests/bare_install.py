# SPDX-License-Identifier: Apache-2.0
"""How does a test get what `pip install penstock` gives to a stranger, without a network?

The wheel is built from a copy of the sources and installed by pip into a new environment, where
pip finds only what the metadata of the wheel and of its dependencies ask for: those are linked in
from the environment of the tests, and nothing else is. What is missing there, pip refuses.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.processes import REPOSITORY

SOURCES = ("src", "pyproject.toml", "README.md", "LICENSE")
PIP = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "--no-input"]


def build_wheel(folder: Path) -> Path:
    """The wheel, built where nobody else builds."""
    copy = folder / "sources"
    copy.mkdir()
    for name in SOURCES:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(
                source, copy / name, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__")
            )
        else:
            shutil.copy(source, copy)
    options = ["--no-deps", "--no-build-isolation", "--no-index"]
    _run([*PIP, "wheel", *options, "-w", str(folder), str(copy)])
    shutil.rmtree(copy)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path, folder: Path) -> Path:
    """A new environment with the wheel and its core dependencies; its folder of programs."""
    place = folder / "environment"
    venv.create(place, symlinks=True)
    (packages,) = place.glob("lib/python*/site-packages")
    for name in _needed("penstock"):
        distribution = importlib.metadata.distribution(name)
        tops = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
        for top in tops:
            os.symlink(str(distribution.locate_file(top)), packages / top)
    _run([*PIP, "--python", str(place / "bin/python"), "install", "--no-index", str(wheel)])
    return place / "bin"


def environment_of_strangers() -> dict[str, str]:
    """Nothing of ours: no path to the repository, no settings."""
    ours = ("PYTHON", "PENSTOCK_", "VIRTUAL_ENV", "PYTEST", "COV_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def _needed(name: str) -> set[str]:
    """What a distribution requires, and what that requires, without extras and without itself."""
    found: set[str] = set()
    left = [name]
    while left:
        for text in importlib.metadata.requires(left.pop()) or ():
            requirement = Requirement(text)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
            needed = canonicalize_name(requirement.name)
            if needed not in found:
                found.add(needed)
                left.append(needed)
    return found


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

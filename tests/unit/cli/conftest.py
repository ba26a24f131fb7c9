# SPDX-License-Identifier: Apache-2.0
"""The command line inside the test's own process: one call, an exit code, two texts."""

from __future__ import annotations

import io
import json
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main

PIPELINE = """
from penstock import Context, Penstock

app = Penstock("shop")

@app.task(limits={"host": lambda host: host})
async def visit(ctx: Context, host: str, depth: int = 1) -> str:
    return host

@app.task()
def broken(ctx: Context) -> None:
    raise ValueError("nothing works")
"""


@dataclass(frozen=True)
class Ended:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    @property
    def sentence(self) -> str:
        """What an error says: one line, no traceback."""
        assert self.err.endswith("\n"), self.err
        assert self.err.count("\n") == 1, self.err
        assert "Traceback" not in self.err
        return self.err[:-1]


Command = Callable[..., Ended]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with an app, which is the current one; imports of it are forgotten."""
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if name == "pipeline" or name.startswith("penstock_app_"):
            del sys.modules[name]


@pytest.fixture
def command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Command]:
    """Run a command line."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    heard = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}

    def run(*arguments: str, stdin: bytes = b"") -> Ended:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main.run(list(arguments))
        captured = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Ended(ended.value.code, captured.out, captured.err)

    yield run
    root.handlers[:] = handlers
    root.setLevel(level)
    for number, handler in heard.items():  # the end of a run ignores them until its process ends
        signal.signal(number, handler)

# SPDX-License-Identifier: Apache-2.0
"""Does a script with a mistake in its configuration end with the whole sentence?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import run_forked
from tests.processes import environment_of_tests

SCRIPT = """
from penstock import Context, Penstock

app = Penstock("script")

@app.task()
async def work(ctx: Context) -> None: ...

app.enqueue(work.job(), key="k")
"""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[runtime\n", "penstock.toml, line 1, column 9, is not valid TOML: "),
        ("[runtime]\nslots = 3\n", "runtime.slots is not a setting, got 3 (from penstock.toml); "),
        ("[runtime]\nlease_ttl_seconds = 5\n", "set runtime.beat_seconds below 2.5."),
    ],
)
def test_the_last_line_of_a_script_is_the_whole_sentence(
    tmp_path: Path, text: str, sentence: str
) -> None:
    (tmp_path / "pipeline.py").write_text(SCRIPT)
    (tmp_path / "penstock.toml").write_text(text)

    ended = run_forked(
        [sys.executable, "pipeline.py"],
        cwd=tmp_path,
        env=environment_of_tests(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("penstock.errors.ConfigError: ")
    assert sentence in last
    assert "During handling" not in ended.stderr

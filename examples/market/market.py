# SPDX-License-Identifier: Apache-2.0
"""Keep datasets current: plan, build, kill -9, go on, change a version; and mistakes.

python examples/market/market.py [--to 2025-01-01]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
FILES = ("pipeline.py", "penstock.toml")
START = "2024-01-01"
PATIENCE_SECONDS = 120.0
LOOK_SECONDS = 0.1
USAGE = 2
SLOW = "import time; time.sleep(1)"
DATASETS = ("prices", "returns", "volatility", "report")
MISTAKES = {
    "a cycle": ("prices", 'Exchange("XNYS"), needs=["report"]', "report"),
    "an unknown dependency": ("prices", 'Exchange("XNYS"), needs=["price"]', "price"),
    "an impossible mapping": ("minutes", "Daily('12:34'), needs=[prices.exact()]", "prices"),
}
MISTAKE = """
from penstock.calendars import Daily

app.datasets.pop("{name}", None)


@app.dataset(calendar={calendar}, name="{name}")
def mistake(ctx: Context, at: datetime, {need}: Slices) -> bytes: ...
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--to", default="2025-01-01", help=f"a date after {START}")
    end = parser.parse_args().to
    with tempfile.TemporaryDirectory(prefix="penstock-market-") as folder:
        for name in FILES:
            shutil.copy(HERE / name, folder)
        keep_current(Shell(Path(folder)), end)
    return 0


def keep_current(shell: Shell, end: str) -> None:
    asked = f"report --from {START} --to {end}"
    for mistake in MISTAKES:
        refuse(shell, mistake, end)

    planned = shell.type(f"penstock plan {asked}")
    expect("level 3" in planned and not shell.has_store(), "a plan has levels and writes nothing")

    print("\nThe code of returns is slow.", end="")
    shell.edit("before, now = prices", f"{SLOW}; before, now = prices")
    build = shell.start(f"penstock build {asked}")
    await_(lambda: bool(shell.files("returns")), "some returns are written")
    kill_all(build)
    prices = shell.files("prices")
    committed = shell.committed()
    print(f"committed: {committed['prices']} prices, {committed['returns']} returns")
    expect(committed["prices"] == len(prices) > 0 == committed["returns"], "a level is whole")

    print("\nIt is made quick.", end="")
    shell.edit(f"{SLOW}; ", "")
    expect("Built" in shell.type(f"penstock build {asked}"), "the same command goes on")
    expect(shell.files("prices") == prices, "nothing that was committed is built twice")
    expect("Up to date" in shell.type(f"penstock build {asked}"), "a second build does nothing")

    print("\nThe code of volatility changes, and its version.", end="")
    shell.edit("needs=[returns.lookback(20)])", "needs=[returns.lookback(20)], version=2)")
    planned = shell.type(f"penstock plan {asked}")
    expect("of another version" in planned, "the plan says why")
    before = {name: shell.files(name) for name in DATASETS}
    shell.type(f"penstock build {asked}")
    changed = [name for name in DATASETS if shell.files(name) - before[name]]
    print(f"built anew: {' and '.join(changed)}")
    expect(changed == ["volatility", "report"], "exactly what depends on it is built")

    rows = shell.type("penstock dataset read report --format csv").splitlines()
    expect(rows[0] == "month,symbol,close,against_average,volatility", "there are rows")


def refuse(shell: Shell, mistake: str, end: str) -> None:
    """What cannot be built: one sentence, exit 2, nothing written."""
    name, calendar, need = MISTAKES[mistake]
    print(f"\nThere is {mistake}:", end="")
    text = MISTAKE.format(name=name, calendar=calendar, need=need)
    shell.write("mistake.py", shell.read() + text)
    target = "minutes" if name == "minutes" else "report"
    shell.type(f"penstock build {target} --from {START} --to {end} --app mistake.py", USAGE)
    expect(not shell.has_store(), "nothing is written")


def kill_all(run: subprocess.Popen[bytes]) -> None:
    """As when the power goes: the supervisor and its worker at once, by kill -9."""
    workers = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    print(f"\n$ kill -9 {run.pid} {' '.join(workers)}", flush=True)
    for pid in (run.pid, *map(int, workers)):
        os.kill(pid, signal.SIGKILL)
    run.wait(PATIENCE_SECONDS)


def expect(condition: bool, what: str) -> None:
    if not condition:
        raise SystemExit(f"It is not so that {what}.")


def await_(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        expect(time.monotonic() < until, what)
        time.sleep(LOOK_SECONDS)


class Shell:
    """Types commands in one folder, and shows them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        self._environment = {
            **os.environ,
            "PATH": programs,
            "PENSTOCK_RUNTIME__LEASE_TTL_SECONDS": "6",  # so that a kill costs seconds
            "PENSTOCK_RUNTIME__BEAT_SECONDS": "2",
        }

    def type(self, command: str, expected: int = 0) -> str:
        """What it prints on stdout; the rest is seen as it comes."""
        print(f"\n$ {command}", flush=True)
        done = subprocess.run(
            command.split(),
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        print(f"{done.stdout}exit {done.returncode}", flush=True)
        expect(done.returncode == expected, f"{command!r} ends with {expected}")
        return done.stdout

    def start(self, command: str) -> subprocess.Popen[bytes]:
        print(f"\n$ {command}", flush=True)
        return subprocess.Popen(command.split(), cwd=self._folder, env=self._environment)

    def edit(self, old: str, new: str) -> None:
        """Change the pipeline, as somebody at an editor does."""
        text = self.read()
        expect(old in text, f"the pipeline has {old!r}")
        (self._folder / "pipeline.py").write_text(text.replace(old, new))

    def read(self) -> str:
        return (self._folder / "pipeline.py").read_text()

    def write(self, name: str, text: str) -> None:
        (self._folder / name).write_text(text)

    def has_store(self) -> bool:
        return any((self._folder / name).exists() for name in (".penstock", "datasets"))

    def files(self, dataset: str) -> set[str]:
        """Its files, whether they are visible or not; no two attempts have one of the same name."""
        folder = self._folder / "datasets" / dataset
        return {f"{path.parent.name}/{path.name}" for path in folder.glob("*/part-*")}

    def committed(self) -> dict[str, int]:
        """How many slices of each dataset readers see."""
        listed = subprocess.run(
            ["penstock", "dataset", "list", "--json"],
            cwd=self._folder,
            env=self._environment,
            check=True,
            capture_output=True,
            text=True,
        )
        return {one["name"]: one["slices"] for one in json.loads(listed.stdout)["datasets"]}


if __name__ == "__main__":
    sys.exit(main())

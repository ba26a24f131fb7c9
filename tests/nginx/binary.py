# SPDX-License-Identifier: Apache-2.0
"""Which nginx is there to be run?

The one that is named, the system's, or one that the system's package manager downloads and that is
unpacked beside the environment: nothing of the system is changed and nobody has to be root.
`make nginx` does this ahead of the tests.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

USUAL = ("/usr/sbin/nginx", "/usr/local/sbin/nginx", "/usr/local/nginx/sbin/nginx")
FETCH_SECONDS = 60.0  # for one step of a download
FETCHED = Path(sys.prefix) / "nginx"


class NoNginx(Exception):
    """There is no nginx to be run here."""


def find_nginx() -> Path:
    """The program; it is fetched if there is none."""
    if named := os.environ.get("PENSTOCK_NGINX"):
        if not Path(named).is_file():
            raise NoNginx(f"PENSTOCK_NGINX names {named!r}, which is no file.")
        return Path(named)
    for place in (shutil.which("nginx"), *USUAL):
        if place is not None and Path(place).is_file():
            return Path(place)
    return _fetched()


def _fetched() -> Path:
    """The one beside the environment; one process fetches it, once."""
    program = FETCHED / "usr/sbin/nginx"
    try:
        FETCHED.mkdir(exist_ok=True)
        lock = (FETCHED / "lock").open("w")
    except OSError as error:
        raise NoNginx(f"nginx is not installed and {FETCHED} cannot be written: {error}") from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        failed = FETCHED / "failed"
        if failed.exists():
            raise NoNginx(failed.read_text())
        if not program.exists():
            try:
                _fetch()
                _run([str(program), "-v"])
            except NoNginx as error:
                shutil.rmtree(FETCHED / "usr", ignore_errors=True)
                failed.write_text(
                    f"nginx is not installed and could not be fetched ({error}); install it, name "
                    f"it in PENSTOCK_NGINX, or remove {failed.name!r} in the environment's folder "
                    "'nginx' to try again."
                )
                raise NoNginx(failed.read_text()) from None
    return program


def _fetch() -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise NoNginx("there is no apt-get")
    own = ["-o", f"Dir::State::lists={FETCHED / 'lists'}", "-o", f"Dir::Cache={FETCHED / 'cache'}"]
    try:
        _run(["apt-get", "-qq", "download", "nginx"])
    except NoNginx:
        for folder in ("lists/partial", "cache/archives/partial"):
            (FETCHED / folder).mkdir(parents=True, exist_ok=True)
        _run(["apt-get", "-qq", *own, "update"])
        _run(["apt-get", "-qq", *own, "download", "nginx"])
    packages = sorted(FETCHED.glob("nginx_*.deb"))
    if not packages:
        raise NoNginx("apt-get downloaded nothing")
    _run(["dpkg-deb", "-x", str(packages[-1]), str(FETCHED)])
    for leftover in (*packages, FETCHED / "lists", FETCHED / "cache"):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink(missing_ok=True)


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=FETCHED,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=FETCH_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoNginx(f"{Path(command[0]).name}: {type(error).__name__}") from None
    if done.returncode != 0:
        said = " ".join(done.stderr.split())[-200:]
        raise NoNginx(f"{Path(command[0]).name} ended with {done.returncode}: {said}")


if __name__ == "__main__":
    try:
        print(find_nginx())
    except NoNginx as error:
        raise SystemExit(str(error)) from None

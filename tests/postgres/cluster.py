# SPDX-License-Identifier: Apache-2.0
"""How does a test or a benchmark get a PostgreSQL server of its own?"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import psycopg
from psycopg import sql

from tests.postgres.binaries import (
    NoPostgres,
    ServerFailed,
    find_binaries,
    identity,
    within_reach,
)
from tests.postgres.guard import GuardedFolder

USER = "penstock"
PATIENCE_SECONDS = 60.0
_POLL_SECONDS = 0.005
_CARELESS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}

__all__ = ["USER", "Cluster", "NoPostgres", "Server", "ServerFailed", "free_port"]


def free_port() -> int:
    """A port that nobody listens on and that no outgoing connection is given."""
    for _ in range(200):
        port = random.SystemRandom().randrange(15_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("None of 200 ports between 15000 and 32000 is free.")


class Server:
    """Where a server listens. Does not own it."""

    def __init__(self, folder: Path, port: int, *, tcp: bool = False) -> None:
        self.folder = folder
        self.port = port
        self.tcp = tcp

    @property
    def socket_path(self) -> Path:
        return self.folder / f".s.PGSQL.{self.port}"

    def url(self, database: str = "postgres", *, tcp: bool | None = None) -> str:
        """Over TCP if the server listens there, unless the other is asked for."""
        if self.tcp if tcp is None else tcp:
            return f"postgresql://{USER}@127.0.0.1:{self.port}/{quote(database)}"
        host = quote(str(self.folder), safe="")
        return f"postgresql://{USER}@/{quote(database)}?host={host}&port={self.port}"

    def connect(self, database: str = "postgres") -> psycopg.Connection[tuple[Any, ...]]:
        """A connection that commits each statement."""
        return psycopg.connect(self.url(database, tcp=False), autocommit=True)

    def ask(self, statement: str, *values: object, database: str = "postgres") -> Any:
        """The first column of the first row; None if there is no row."""
        with self.connect(database) as connection:
            cursor = connection.execute(statement.encode(), values or None)
            row = cursor.fetchone() if cursor.description else None
            return row[0] if row else None

    def create_database(self, name: str, template: str | None = None) -> str:
        """Make a database; its URL."""
        statement = sql.SQL("create database {}").format(sql.Identifier(name))
        if template is not None:
            statement += sql.SQL(" template {}").format(sql.Identifier(template))
        with self.connect() as connection:
            connection.execute(statement)
        return self.url(name)


class Cluster(Server):
    """A throwaway server. Owns its process and its folder; neither outlives this process.

    Args:
        durable: whether what is committed survives a crash of the server.
        on_disk: whether its data are on a disk, for who measures; in memory, they survive a crash
            of the server as well, and no other work on the disk delays its recovery.
        tcp: whether it listens on 127.0.0.1 too; its URLs are then of that kind.
        settings: more of PostgreSQL's settings.
        home: a new folder in one that is guarded already; None is a guarded folder of its own.
        pristine: data that `initdb` has made, to be copied in place of running it.
    """

    def __init__(
        self,
        *,
        durable: bool = False,
        on_disk: bool = False,
        tcp: bool = False,
        settings: Mapping[str, str | int] | None = None,
        home: Path | None = None,
        pristine: Path | None = None,
    ) -> None:
        self._identity = identity()
        binaries = find_binaries()
        self._guarded: GuardedFolder | None = None
        if home is None:
            self._guarded = GuardedFolder(on_disk=on_disk)
            home = self._guarded.path
        super().__init__(home, free_port(), tcp=tcp)
        home.mkdir(exist_ok=True)
        if self._identity:
            os.chown(home, self._identity["user"], self._identity["group"])
        self.durable = durable
        self.settings = dict(settings or {})
        self.data = home / "data"
        self._pristine = pristine
        self._primary: Server | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._binaries = within_reach(binaries, home)

    @property
    def pid(self) -> int:
        """The number of the server's first process."""
        assert self._process is not None, "the server does not run"
        return self._process.pid

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def prepare(self) -> None:
        """Make the data folder, if there is none."""
        if self.data.exists():
            return
        if self._pristine is not None:
            self._run("cp", "-a", self._pristine, self.data)
            return
        how = ("-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        self._run(self._binaries / "initdb", "-D", self.data, *how)

    def start(self) -> None:
        """Return when the server accepts connections; make its data first if there are none."""
        assert self._process is None, "the server runs already"
        self.prepare()
        settings: dict[str, str | int] = {
            "listen_addresses": "127.0.0.1" if self.tcp else "",
            "port": self.port,
            "unix_socket_directories": str(self.folder),
            **({} if self.durable else _CARELESS),
            **self.settings,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._binaries / "postgres", "-D", self.data, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.folder,
                env=_environment(),
                **self._identity,
            )
        self._await_ready(self._process)

    def stop(self, *, immediate: bool = False) -> None:
        """End the server: cleanly, or as a crash would. Its data stay."""
        if self._process is None:
            return
        process, self._process = self._process, None
        process.send_signal(signal.SIGQUIT if immediate else signal.SIGINT)
        process.wait(PATIENCE_SECONDS)

    def restart_immediate(self) -> None:
        """Crash and start again; return when it accepts connections."""
        self.stop(immediate=True)
        self.start()

    def standby(self, *, settings: Mapping[str, str | int] | None = None) -> Cluster:
        """A started read-only replica that streams from this server, with the same options."""
        made = Cluster(
            durable=self.durable, tcp=self.tcp, settings={**self.settings, **(settings or {})}
        )
        made._primary = self
        try:
            where = ("-h", self.folder, "-p", str(self.port), "-U", USER)
            how = ("-R", "-X", "stream", "-c", "fast", "--no-sync")
            made._run(self._binaries / "pg_basebackup", "-D", made.data, *where, *how)
            made.start()
        except BaseException:
            made.close()
            raise
        return made

    def catch_up(self) -> None:
        """Of a standby: wait until it shows what its primary has committed by now."""
        assert self._primary is not None, "only a standby catches up"
        # What is only inserted so far may be sent as late as the next routine write of the server.
        end = self._primary.ask("select pg_switch_wal()::text")
        self._wait_for("select pg_last_wal_replay_lsn() >= %s::pg_lsn", end)

    def detach(self) -> None:
        """Of a standby: receive nothing more, so that later commits are lost by a promotion."""
        self.ask("alter system set primary_conninfo = ''")
        self.ask("select pg_reload_conf()")
        self._wait_for("select not exists (select from pg_stat_wal_receiver)")

    def promote(self) -> None:
        """Of a standby: become a primary, on the next timeline."""
        self.ask("select pg_promote(true, 60)")
        self._wait_for("select not pg_is_in_recovery()")

    def timeline(self) -> int:
        return int(
            self.ask(
                "select case when pg_is_in_recovery()"
                " then (select timeline_id from pg_control_checkpoint())"
                " else ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int end"
            )
        )

    def leave(self) -> None:
        """Let the server live on: who guards its folder ends it."""
        if self._process is not None:
            self._process.returncode = 0  # so that nobody misses our wait for it
            self._process = None

    def close(self) -> None:
        """End the server and remove all it has written."""
        self.stop(immediate=True)
        if self._guarded is not None:
            self._guarded.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, program: str | Path, *arguments: str | Path) -> None:
        command: Sequence[str | Path] = [program, *arguments]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            env=_environment(),
            **self._identity,
        )
        if done.returncode != 0:
            raise ServerFailed(
                f"{Path(program).name} failed in {self.folder}: {done.stderr.strip()}"
            )

    def _await_ready(self, process: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while not self._ready(process.pid):
            if process.poll() is not None or time.monotonic() > until:
                self._process = None
                raise NoPostgres(
                    f"The server in {self.folder} does not start: {self.log()[-2000:]}"
                )
            time.sleep(_POLL_SECONDS)

    def _ready(self, pid: int) -> bool:
        """By the server's own note, which may be that of one that was killed."""
        try:
            lines = (self.data / "postmaster.pid").read_text().split("\n")
        except OSError:
            return False
        return lines[0] == str(pid) and len(lines) > 7 and lines[7].strip() == "ready"

    def _wait_for(self, question: str, *values: object) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while not self.ask(question, *values):
            assert time.monotonic() < until, f"no server said so in time: {question}"
            time.sleep(_POLL_SECONDS)


def _environment() -> dict[str, str]:
    """Without what would lead PostgreSQL's programs elsewhere."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return {**kept, "LC_ALL": "C", "TZ": "UTC"}

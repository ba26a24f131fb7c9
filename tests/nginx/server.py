# SPDX-License-Identifier: Apache-2.0
"""How does a test or a benchmark get an nginx with hidden limits of its own?"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.nginx.binary import find_nginx
from tests.postgres.cluster import free_port
from tests.postgres.guard import DISK, GuardedFolder

PREFIX = "penstock-nginx-"
PATIENCE_SECONDS = 30.0
PORTS_MAX = 5  # that are tried: another process may take one before us
_POLL_SECONDS = 0.005
_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


class NginxFailed(Exception):
    """There is an nginx, but it does not do what it is told."""


@dataclass(frozen=True, slots=True)
class NginxLimits:
    """What nginx does not tell its clients."""

    connections: int | None = None  # calls at once (limit_conn)
    per_second: int | None = None  # limit_req
    burst: int = 20  # of limit_req, let through without delay
    retry_after: str | None = "1"


@dataclass(frozen=True, slots=True)
class Served:
    """One line of the log."""

    began: float  # seconds since 1970
    ended: float  # when the answer was complete
    status: int
    path: str
    by_connections: str  # PASSED, REJECTED, or - where it was not asked
    by_requests: str


class Nginx:
    """A throwaway server before an upstream. Its process and folder do not outlive this process."""

    def __init__(self, upstream: str, limits: NginxLimits) -> None:
        self._program = find_nginx()
        self._upstream = upstream.removeprefix("http://")
        self._limits = limits
        self._guarded = GuardedFolder(Path(tempfile.mkdtemp(prefix=PREFIX, dir=DISK)))
        self.home = self._guarded.path / "run"
        self.home.mkdir()
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server does not run"
        return self._process.pid

    def start(self) -> None:
        """Return when it accepts connections."""
        for _ in range(PORTS_MAX):
            self.port = free_port()
            (self.home / "nginx.conf").write_text(self._configuration())
            self._process = subprocess.Popen(
                [self._program, "-p", f"{self.home}/", "-c", "nginx.conf", "-e", "error.log"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd=self.home,
            )
            if self._listens(self._process):
                return
            if "Address already in use" not in self.errors():
                break
        raise NginxFailed(f"nginx in {self.home} does not start: {self.errors()[-2000:]}")

    def log(self) -> list[Served]:
        """What it answered so far; lines come when an answer is complete."""
        lines = (self.home / "access.log").read_text().splitlines()
        found = []
        for line in lines:
            ended, took, status, path, connections, requests = line.split(" ")
            began = float(ended) - float(took)
            found.append(Served(began, float(ended), int(status), path, connections, requests))
        return found

    def errors(self) -> str:
        with contextlib.suppress(OSError):
            return (self.home / "error.log").read_text(errors="replace")
        return ""

    def close(self) -> None:
        """End the server and remove all it has written."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(PATIENCE_SECONDS)
            self._process = None
        self._guarded.close()

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

    def _listens(self, process: subprocess.Popen[bytes]) -> bool:
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            if process.poll() is not None:
                return False
            # It listens before it writes its number; without one, somebody else may listen there.
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                if (self.home / "nginx.pid").exists():
                    return True
            time.sleep(_POLL_SECONDS)
        return False

    def _configuration(self) -> str:
        limits = self._limits
        told = f"add_header Retry-After {limits.retry_after} always;" if limits.retry_after else ""
        zones, asked = [], []
        if limits.connections is not None:
            zones.append("limit_conn_zone $server_name zone=connections:1m;")
            asked.append(f"limit_conn connections {limits.connections};")
        if limits.per_second is not None:
            zones.append(f"limit_req_zone $server_name zone=rate:1m rate={limits.per_second}r/s;")
            asked.append(f"limit_req zone=rate burst={limits.burst} nodelay;")
        folders = " ".join(f"{name}_temp_path temp_{name};" for name in _TEMPORARY)
        # One process: who ends it has ended all of it.
        return f"""
daemon off; master_process off; pid nginx.pid; error_log error.log;
events {{ worker_connections 4096; }}
http {{
  {folders}
  log_format told '$msec $request_time $status $request_uri $by_connections $by_requests';
  map $limit_conn_status $by_connections {{ default $limit_conn_status; "" -; }}
  map $limit_req_status $by_requests {{ default $limit_req_status; "" -; }}
  access_log access.log told;
  {" ".join(zones)}
  limit_conn_status 429; limit_req_status 429;
  limit_conn_log_level info; limit_req_log_level info;
  keepalive_requests 1000000;
  upstream behind {{ server {self._upstream}; keepalive 256; }}
  server {{
    listen 127.0.0.1:{self.port} backlog=1024; server_name hidden;
    error_page 429 = @limited;
    location @limited {{
      internal; default_type application/json; {told} return 429 '{{"error":"rate_limited"}}';
    }}
    location / {{
      {" ".join(asked)}
      proxy_http_version 1.1; proxy_set_header Connection ""; proxy_pass http://behind;
    }}
  }}
}}
"""

# SPDX-License-Identifier: Apache-2.0
"""An archive with hidden limits: nginx where there is one, else a simulated provider.

python archive.py serves until it is interrupted, and says where.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from penstock.testing import Bucket, Lognormal, ProviderRules, SimulatedProvider, SimulatedRequest

CONNECTIONS = 12  # calls at once
PER_SECOND = 100
BURST = 20
LATENCY = Lognormal(0.1, sigma=0.2)
START_SECONDS = 10.0

NGINX = """
daemon off; master_process off; pid nginx.pid; error_log error.log;
events {{ worker_connections 1024; }}
http {{
  client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4;
  scgi_temp_path t5;
  access_log off;
  limit_conn_zone $server_name zone=connections:1m;
  limit_req_zone $server_name zone=rate:1m rate={per_second}r/s;
  limit_conn_status 429; limit_req_status 429;
  keepalive_requests 1000000;
  upstream documents {{ server {upstream}; keepalive 256; }}
  server {{
    listen 127.0.0.1:{port}; server_name archive;
    error_page 429 = @limited;
    location @limited {{ internal; add_header Retry-After 1 always; return 429; }}
    location / {{
      limit_conn connections {connections}; limit_req zone=rate burst={burst} nodelay;
      proxy_http_version 1.1; proxy_set_header Connection ""; proxy_pass http://documents;
    }}
  }}
}}
"""


def document(request: SimulatedRequest) -> bytes:
    return f"Document {request.path.rpartition('/')[2]}. ".encode() * 100


@contextlib.contextmanager
def archive() -> Iterator[tuple[str, str]]:
    """Serve; gives the URL and what serves there."""
    program = find_nginx()
    if program is None:
        rules = ProviderRules(
            concurrency=CONNECTIONS, requests=Bucket(PER_SECOND, BURST), latency=LATENCY
        )
        with SimulatedProvider(rules, answer=document) as provider:
            yield provider.url, "a simulated provider"
        return
    with (
        SimulatedProvider(ProviderRules(latency=LATENCY), answer=document) as documents,
        nginx(program, documents.url) as url,
    ):
        yield url, "nginx"


def find_nginx() -> str | None:
    """One that is named, the system's, or the one that `make nginx` fetches."""
    fetched = Path(sys.prefix) / "nginx/usr/sbin/nginx"
    places = (os.environ.get("PENSTOCK_NGINX"), shutil.which("nginx"), "/usr/sbin/nginx", fetched)
    return next((str(place) for place in places if place and Path(place).is_file()), None)


@contextlib.contextmanager
def nginx(program: str, upstream: str) -> Iterator[str]:
    """Let nginx stand before an upstream; it goes with this process."""
    with tempfile.TemporaryDirectory(prefix="penstock-harvest-", dir="/tmp") as folder:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        Path(folder, "nginx.conf").write_text(
            NGINX.format(
                port=port,
                upstream=upstream.removeprefix("http://"),
                connections=CONNECTIONS,
                per_second=PER_SECOND,
                burst=BURST,
            )
        )
        setpriv = shutil.which("setpriv")
        bound = [setpriv, "--pdeathsig", "TERM", "--"] if setpriv else []
        command = [*bound, program, "-p", f"{folder}/", "-c", "nginx.conf", "-e", "error.log"]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
            try:
                await_port(port)
                yield f"http://127.0.0.1:{port}"
            finally:
                server.terminate()


def await_port(port: int) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.01)
    raise SystemExit(f"Nothing listens at port {port} after {START_SECONDS:g} s.")


if __name__ == "__main__":
    with archive() as (address, server), contextlib.suppress(KeyboardInterrupt):
        print(f"export HARVEST_URL={address}  # {server}", flush=True)
        threading.Event().wait()

# SPDX-License-Identifier: Apache-2.0
"""Does the throwaway nginx hide its limits as it is told, and does it go when its owner goes?"""

from __future__ import annotations

import http.client
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.testing import ProviderRules, SimulatedProvider
from tests.nginx.binary import NoNginx, find_nginx
from tests.nginx.fixtures import MakeNginx
from tests.nginx.server import NginxLimits
from tests.processes import environment_of_tests, is_alive
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

OWNER = """
import time
from tests.nginx.server import Nginx, NginxLimits
nginx = Nginx("127.0.0.1:9", NginxLimits())
nginx.start()
print(nginx.pid, nginx.home.parent, flush=True)
time.sleep(600)
"""


def get(port: int, path: str = "/") -> tuple[int, str | None]:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        reply.read()
        return reply.status, reply.getheader("Retry-After")
    finally:
        connection.close()


def test_calls_beyond_the_hidden_concurrency_are_refused(make_nginx: MakeNginx) -> None:
    with SimulatedProvider(ProviderRules(latency=0.5)) as upstream:
        nginx = make_nginx(upstream.url, NginxLimits(connections=2))
        with ThreadPoolExecutor(6) as threads:
            replies = list(threads.map(lambda _: get(nginx.port), range(6)))

        wait_until(lambda: len(nginx.log()) == 6)
        assert 1 <= replies.count((200, None)) < 6
        assert replies.count((429, "1")) == 6 - replies.count((200, None))
        assert upstream.counts.in_flight_max <= 2
        refused = [served for served in nginx.log() if served.status == 429]
        assert {served.by_connections for served in refused} == {"REJECTED"}


def test_calls_beyond_the_hidden_rate_are_refused(make_nginx: MakeNginx) -> None:
    with SimulatedProvider(ProviderRules(latency=0.0)) as upstream:
        nginx = make_nginx(upstream.url, NginxLimits(per_second=1, burst=5, retry_after=None))

        replies = [get(nginx.port, f"/{number}") for number in range(20)]

        assert (429, None) in replies
        assert replies[:6] == [(200, None)] * 6
        assert upstream.counts.calls == replies.count((200, None))


def test_server_and_folder_go_with_a_killed_owner() -> None:
    try:
        find_nginx()
    except NoNginx as error:
        pytest.skip(f"no nginx: {error}")
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, env=environment_of_tests()
    ) as owner:
        assert owner.stdout is not None
        number, folder = owner.stdout.readline().split()
        assert is_alive(int(number))

        owner.kill()

    wait_until(lambda: not Path(folder).exists())
    assert not is_alive(int(number))


def test_named_program_must_be_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PENSTOCK_NGINX", str(tmp_path / "nowhere"))

    with pytest.raises(NoNginx, match="PENSTOCK_NGINX names"):
        find_nginx()

# SPDX-License-Identifier: Apache-2.0
"""Does a parted network swallow what is sent, and deliver it when it has healed?"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import psycopg
import pytest

from tests.postgres.cluster import Server
from tests.postgres.netns import NotPermitted, Partition
from tests.postgres.proxy import Proxy
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

CLIENT = """
import sys, psycopg
with psycopg.connect(sys.argv[1], autocommit=True) as connection:
    for line in sys.stdin:
        print(connection.execute("insert into kept values (%s) returning id", [line]).fetchone()[0],
              flush=True)
"""


@pytest.fixture
def network() -> Iterator[Partition]:
    try:
        with Partition() as network:
            yield network
    except NotPermitted as error:
        pytest.skip(str(error))


def test_statement_waits_while_the_network_is_parted(
    network: Partition, postgres_server: Server, postgres_url: str
) -> None:
    database = postgres_url.split("?")[0].rsplit("/")[-1]
    with psycopg.connect(postgres_url, autocommit=True) as direct:
        direct.execute("create table kept (id int)")
    with Proxy(postgres_server, listener=network.listener()) as proxy:
        command = network.command([sys.executable, "-c", CLIENT, proxy.url(database)])
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        ) as client:
            assert client.stdin is not None
            assert client.stdout is not None
            print(1, file=client.stdin)
            assert client.stdout.readline() == "1\n"
            before = proxy.counts.round_trips

            network.part()
            print(2, file=client.stdin)
            wait_until(lambda: _waits_to_send(network))

            assert proxy.counts.round_trips == before
            network.heal()
            assert client.stdout.readline() == "2\n"
            client.stdin.close()


def _waits_to_send(network: Partition) -> bool:
    """Whether a connection of the program's has bytes that nobody has acknowledged."""
    command = network.command(["cat", "/proc/net/tcp"])
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    queues = [line.split()[4] for line in table.splitlines()[1:]]
    return any(int(queue.split(":")[0], 16) > 0 for queue in queues)


def test_this_process_stays_outside(network: Partition) -> None:
    with network.listener() as inside:
        address = inside.getsockname()
        with pytest.raises(OSError, match="annot assign"), socket.socket() as outside:
            outside.bind(address)

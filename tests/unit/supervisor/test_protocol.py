# SPDX-License-Identifier: Apache-2.0
"""Do supervisor and worker understand each other, however the bytes arrive?"""

from __future__ import annotations

import random
import socket

import pytest

from penstock.supervisor import protocol
from penstock.supervisor.protocol import Lines

HELLO = protocol.Hello(
    pid=1,
    app="ü",
    store_url="sqlite:///a b/ü.db",
    durability="full",
    lease_ttl_seconds=30.0,
    beat_seconds=10.0,
    grace_seconds=25.0,
    statistics_seconds=60.0,
    max_crashes=3,
)


def test_lines_are_whole_however_the_stream_is_cut() -> None:
    text = b"".join(f"line {n} {'x' * (n % 50)}\n".encode() for n in range(200)) + b"rest"
    for seed in range(20):
        rng = random.Random(seed)
        lines, found, left = Lines(), [], text
        while left:
            size = rng.randint(1, 40)
            found += lines.feed(left[:size])
            left = left[size:]

        assert b"\n".join(found) + b"\nrest" == text
        assert lines.flush() == [b"rest"]
        assert lines.flush() == []


def test_empty_lines_and_empty_reads_are_kept_apart() -> None:
    lines = Lines()

    assert lines.feed(b"") == []
    assert lines.feed(b"\n\na") == [b"", b""]
    assert lines.feed(b"\n") == [b"a"]
    assert lines.flush() == []


@pytest.mark.parametrize(
    "message",
    [
        HELLO,
        protocol.Failed("one\nsentence", 2, "Traceback\n  line"),
        protocol.Failed("short", 1),
        protocol.Finished(),
        protocol.Finished(left_behind=3),
    ],
)
def test_what_a_worker_says_arrives_as_one_line(message: protocol.FromWorker) -> None:
    ours, theirs = socket.socketpair()
    protocol.send(ours, message)
    ours.close()
    data = theirs.recv(65536)
    theirs.close()

    (line,) = Lines().feed(data)

    assert protocol.decode_from_worker(line) == message


def test_what_a_supervisor_says_arrives() -> None:
    ours, theirs = socket.socketpair()
    for message in (protocol.Stop(), protocol.Abort()):
        protocol.send(ours, message)
    lines = Lines().feed(theirs.recv(4096))
    ours.close()
    theirs.close()

    assert [protocol.decode_to_worker(line) for line in lines] == [
        protocol.Stop(),
        protocol.Abort(),
    ]


def test_speaking_to_somebody_who_is_gone_is_no_error() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()

    protocol.send(ours, protocol.Stop())
    protocol.send(ours, protocol.Stop())
    ours.close()

    protocol.send(ours, protocol.Abort())  # not even on a closed socket


def test_an_order_is_the_first_thing_a_worker_hears() -> None:
    order = protocol.WorkerOrder(
        spec=protocol.RunSpec(app="a.py", flags={"--slots": 3}, folder="/tmp/ä b", drain=True),
        run_id="run-1",
        supervisor_pid=7,
        solo=True,
        table_fd=5,
    )
    ours, theirs = socket.socketpair()
    protocol.send(ours, order)
    protocol.send(ours, protocol.Go())

    heard = protocol.receive_order(theirs)
    rest = theirs.recv(4096)
    ours.close()

    assert heard == order
    assert [protocol.decode_to_worker(line) for line in Lines().feed(rest)] == [protocol.Go()]
    assert protocol.receive_order(theirs) is None
    theirs.close()

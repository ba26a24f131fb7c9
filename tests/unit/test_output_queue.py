# SPDX-License-Identifier: Apache-2.0
"""The output queue: never waits for a reader, drops and counts, keeps the order."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import threading
from collections.abc import Iterator

import pytest

from penstock import output_queue
from penstock.output_queue import BYTES_MAX, OutputQueue

LINE = b"x" * 1023 + b"\n"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    yield reading, writing
    os.close(reading)


class WatchedQueue(OutputQueue):
    """Counts how often somebody waits for it."""

    waits = 0

    def wait(self, stalled_seconds: float, seconds: float) -> bool:
        self.waits += 1
        return super().wait(stalled_seconds, seconds)


def read_all(reading: int, queue: OutputQueue) -> bytes:
    """Read until the queue has written everything."""
    seen: list[bytes] = []

    def read() -> None:
        while not seen or not seen[-1].endswith(b"the end\n"):
            seen.append(os.read(reading, 65536))

    reader = threading.Thread(target=read)
    reader.start()
    assert queue.wait(120, 120)
    queue.put(b"the end\n")
    reader.join()
    return b"".join(seen)


def test_what_is_written_is_there_at_once_where_somebody_reads(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    queue = OutputQueue(writing)

    queue.write(b"one\n")
    queue.write(b"two\n")

    assert queue.wait(120, 120)
    assert os.read(reading, 100) == b"one\ntwo\n"
    assert queue.is_idle
    os.close(writing)


def test_what_nobody_reads_is_dropped_and_counted(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_queue, "_format", output_queue.format_dropped)  # no log was set up
    reading, writing = pipe
    queue, lines = OutputQueue(writing), 2 * BYTES_MAX // len(LINE)

    for _ in range(lines):
        queue.put(LINE)
    text = read_all(reading, queue)

    written = text.count(LINE)
    assert BYTES_MAX // len(LINE) <= written < lines
    notes = re.compile(rb"([0-9,]+) log lines? (?:was|were) dropped, since nobody read them\.\n")
    assert notes.sub(b"", text) == LINE * written + b"the end\n"
    assert sum(int(one.replace(b",", b"")) for one in notes.findall(text)) == lines - written
    os.close(writing)


def test_an_event_loop_never_waits_for_what_it_writes(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    queue = WatchedQueue(writing)

    async def speak() -> None:
        queue.write(LINE)

    asyncio.run(speak())
    assert queue.waits == 0
    queue.write(LINE)

    assert queue.waits == 1
    assert read_all(reading, queue).count(LINE) == 2
    os.close(writing)


def test_a_reader_that_is_gone_is_known_and_ends_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    queue = OutputQueue(writing)

    queue.put(LINE)

    assert queue.wait(120, 120)
    assert queue.is_gone
    os.close(writing)


def test_a_descriptor_that_does_not_block_is_waited_for(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.set_blocking(writing, False)
    queue = OutputQueue(writing)

    for _ in range(20):
        queue.put(LINE)

    assert read_all(reading, queue) == LINE * 20 + b"the end\n"
    os.close(writing)

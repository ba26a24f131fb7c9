# SPDX-License-Identifier: Apache-2.0
"""The other side of a campaign: a process that sells answers, and writes down who did what when.

Two ports of loopback. On one it is a paid service, which counts and bills every send. On the other
it hears visits: every body, program, producer and witness keeps a connection open for as long as it
lives, so the system itself tells when one has died. What came in is one line of JSON each, in
order, with the time of the machine's monotonic clock; whoever judges reads these lines alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, TextIO

MICRO_USD_PER_TOKEN = {"prompt": 10, "answer": 100}
BACKLOG_MAX = 40  # roots of an app that are accepted and not ended; then its producer waits
BATCHES_MAX = 150  # of an app, or what waits for money would be too much to end a round with
MISHAPS = {"refused": 0.01, "failed": 0.005, "cut": 0.015}  # shares of the sends


class Ledger:
    """What is known, and the file that it is written to."""

    def __init__(self, file: TextIO, seed: int) -> None:
        self._file = file
        self.random = random.Random(seed)
        self.sends = 0
        self.billed: dict[str, int] = {}
        self.undelivered: dict[int, str] = {}  # sends whose answer no body has told of, by app
        self.last_visit: dict[str, tuple[float, int]] = {}  # of a run: when, and by which worker
        self.backlog: dict[str, set[str]] = {}
        self.ended: set[tuple[str, str]] = set()
        self.ends = 0  # of visits
        self.batches: dict[str, int] = {}
        self.is_enough = False

    def write(self, what: str, **facts: Any) -> None:
        self._file.write(json.dumps({"at": time.monotonic(), "what": what, **facts}) + "\n")

    def accepted(self, app: str, keys: list[str]) -> None:
        self.backlog.setdefault(app, set()).update(
            key for key in keys if (app, key) not in self.ended
        )

    def has_ended(self, app: str, key: str) -> None:
        self.ended.add((app, key))
        self.backlog.get(app, set()).discard(key)

    def status(self, app: str) -> dict[str, Any]:
        """What whoever starts and kills wants to know."""
        undelivered = sum(of == app for of in self.undelivered.values())
        return {
            "billed": self.billed.get(app, 0),
            "undelivered": undelivered,
            "last_visit": self.last_visit,
            "ends": self.ends,
        }

    def wish(self, app: str) -> str:
        """What a producer shall do next."""
        if self.is_enough and app in self.backlog:  # not before the first batch
            return "enough"
        is_ahead = len(self.backlog.get(app, ())) >= BACKLOG_MAX
        return "wait" if is_ahead or self.batches.get(app, 0) >= BATCHES_MAX else "more"


class Visits(asyncio.Protocol):
    """One visitor: lines of JSON, each answered when it has been written down."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._rest = b""
        self._visit: dict[str, Any] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            # After the ends that the same look at the sockets has found: who has died is gone.
            asyncio.get_running_loop().call_soon(self._hear, json.loads(line))

    def eof_received(self) -> None:
        self._leave()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()

    def _leave(self) -> None:
        visit, self._visit = self._visit, None
        if visit is not None:
            self._ledger.write("lost", visit=visit["visit"])

    def _hear(self, line: dict[str, Any]) -> None:
        ledger, answer = self._ledger, "ok"
        if "visit" in line:
            self._visit = line
            ledger.write("begin", **line)
            if line["task"] not in ("crunch", "program"):  # which are no workers
                ledger.last_visit[line["run"]] = (time.monotonic(), line["pid"])
        elif "end" in line and self._visit is not None:
            visit, self._visit = self._visit, None
            ledger.write("end", visit=visit["visit"], how=line["end"])
            ledger.has_ended(visit["app"], visit["key"])
            ledger.ends += 1
        elif "accepted" in line:
            ledger.write("accepted", **line)
            ledger.accepted(line["app"], line["counted"])
            ledger.batches[line["app"]] = line["batch"] + 1
            answer = ledger.wish(line["app"])
        elif "wish" in line:
            answer = ledger.wish(line["wish"])
        elif "enough" in line:
            ledger.is_enough = True
        elif "status" in line:
            answer = json.dumps(ledger.status(line["status"]))
        else:
            ledger.undelivered.pop(line.get("send", 0), None)
            ledger.write("note", **({"visit": self._visit["visit"]} if self._visit else {}), **line)
        if self._transport is not None:
            self._transport.write(answer.encode() + b"\n")


class Shop(asyncio.Protocol):
    """One client of the paid service: HTTP/1.1, one request after the other."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._rest = b""
        self._transport: asyncio.Transport | None = None
        self._in_hand: int | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._in_hand is not None:
            self._ledger.write("gone", send=self._in_hand)

    def data_received(self, data: bytes) -> None:
        self._rest += data
        head, between, body = self._rest.partition(b"\r\n\r\n")
        lines = (line.partition(":") for line in head.decode().split("\r\n")[1:])
        fields = {name.strip().lower(): value.strip() for name, _, value in lines}
        if not between or len(body) < int(fields.get("content-length", "0")):
            return
        self._rest = b""
        self._serve(fields, body)

    def _serve(self, fields: dict[str, str], body: bytes) -> None:
        ledger = self._ledger
        asked = json.loads(body)
        call = asked["messages"][0]["content"].split("|")[0]
        app = call.split("/")[0]
        usage = {
            "prompt_tokens": max(1, len(body) // 8),
            "completion_tokens": ledger.random.randint(1, asked["max_tokens"]),
        }
        cost = (
            usage["prompt_tokens"] * MICRO_USD_PER_TOKEN["prompt"]
            + usage["completion_tokens"] * MICRO_USD_PER_TOKEN["answer"]
        )
        chance, how = ledger.random.random(), "served"
        for mishap, share in MISHAPS.items():
            if 0 <= chance < share:
                how = mishap
            chance -= share
        ledger.sends += 1
        self._in_hand = ledger.sends
        is_billed = how in ("served", "cut")
        if is_billed:
            ledger.billed[app] = ledger.billed.get(app, 0) + cost
            ledger.undelivered[ledger.sends] = app
        ledger.write(
            "send",
            send=ledger.sends,
            call=call,
            app=app,
            how=how,
            visit=fields.get("x-visit"),
            idempotency=fields.get("idempotency-key"),
            cost=cost if is_billed else 0,
            billed=ledger.billed.get(app, 0),
        )
        answer = {
            "id": ledger.sends,
            "choices": [{"message": {"role": "assistant", "content": f"{call}#{ledger.sends}"}}],
            "usage": usage,
        }
        seconds = min(2.0, ledger.random.lognormvariate(-2.5, 0.9)) if is_billed else 0.001
        asyncio.get_running_loop().call_later(seconds, self._reply, how, answer)

    def _reply(self, how: str, answer: dict[str, Any]) -> None:
        if self._transport is None:
            return
        self._ledger.write("replied", send=self._in_hand)
        self._in_hand = None
        if how == "cut":
            self._transport.abort()
            return
        status, more = {
            "served": ("200 OK", ""),
            "refused": ("429 Too Many Requests", "Retry-After: 1\r\n"),
            "failed": ("500 Internal Server Error", ""),
        }[how]
        body = json.dumps(answer if how == "served" else {"error": how}).encode()
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n{more}"
        self._transport.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)


async def serve(folder: Path, seed: int) -> None:
    """Write the two ports to a file when both listen, then serve until the parent closes stdin."""
    loop = asyncio.get_running_loop()
    with (folder / "ledger.jsonl").open("a", buffering=1) as file:
        ledger = Ledger(file, seed)
        ports = []
        for protocol in (Shop, Visits):
            server = await loop.create_server(
                partial(protocol, ledger), "127.0.0.1", 0, backlog=1000
            )
            ports.append(server.sockets[0].getsockname()[1])
        (folder / "ports.new").write_text(json.dumps(ports))
        os.replace(folder / "ports.new", folder / "ports")
        over = asyncio.Event()
        loop.add_reader(sys.stdin, over.set)
        await over.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    given = parser.parse_args()
    asyncio.run(serve(given.folder, given.seed))

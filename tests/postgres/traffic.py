# SPDX-License-Identifier: Apache-2.0
"""Which statement does a message belong to, and what is done to it?

PostgreSQL answers in order, so a queue of what is expected tells whose a reply is: an execution
ends with one completion, a query and a synchronisation with `ReadyForQuery`, and after an error
the server passes over everything up to the next synchronisation.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Literal

from tests.postgres import wire
from tests.postgres.wire import Message

COMMIT = r"(?:^|;)\s*commit\b"
_BEGIN = re.compile(r"\s*(?:begin|start transaction)\b", re.IGNORECASE)
_END = re.compile(r"\s*(?:commit|rollback(?!\s+to))\b", re.IGNORECASE)
_REMEMBERED = 500  # statements of an open transaction


class Cut(Exception):
    """The connection is to be cut now."""


@dataclass
class Rule:
    """What happens to the next statements of a kind."""

    action: Literal["drop reply", "cut before", "fail"]
    when: re.Pattern[str]
    of: re.Pattern[str] | None  # some statement of the same transaction
    left: int
    every: int = 1
    replacement: str = ""
    seen: int = 0

    def takes(self, statement: str, before: deque[str]) -> bool:
        if self.left <= 0 or not self.when.search(statement):
            return False
        if self.of is not None and not any(map(self.of.search, (*before, statement))):
            return False
        self.seen += 1
        if self.seen % self.every:
            return False
        self.left -= 1
        return True


@dataclass
class Counts:
    """What has passed, and what was done to it."""

    connections: int = 0
    cancels: int = 0
    round_trips: int = 0
    commits: int = 0
    replies_dropped: int = 0
    cut_before: int = 0
    errors_injected: int = 0


@dataclass
class Orders:
    """What a proxy has been told to do, and what came of it: shared by its connections."""

    rules: list[Rule] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    statements: Counter[str] | None = None

    def rule_for(self, statement: str, before: deque[str]) -> Rule | None:
        return next((rule for rule in self.rules if rule.takes(statement, before)), None)


@dataclass
class _Expected:
    """Something that the server will answer.

    Before a statement of ours in place of the client's come two replies that the client did not ask
    for (`unasked`); they follow those to the `asked` parsings and bindings sent by then.
    """

    kind: Literal["start", "query", "execute", "sync"]
    rule: Rule | None = None
    unasked: int = 0
    asked: int = 0


class Traffic:
    """One connection's messages. Knows the protocol's state; does no input or output."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._expected: deque[_Expected] = deque([_Expected("start")])
        self._passing_over = False
        self._asked = 0
        self._answered = 0
        self._prepared: dict[str, str] = {}
        self._portals: dict[str, str] = {}
        self._transaction: deque[str] = deque(maxlen=_REMEMBERED)
        self._held: list[bytes] | None = None
        self._holder: Rule | None = None

    def request(self, message: Message) -> bytes:
        """What goes to the server in place of a client's message."""
        if message.kind in b"QE":
            return self._statement(message)
        if message.kind == b"P":
            self._asked += 1
            name, rest = wire.text(message.body)
            self._prepared[name] = wire.text(rest)[0]
        elif message.kind == b"B":
            self._asked += 1
            portal, rest = wire.text(message.body)
            self._portals[portal] = self._prepared.get(wire.text(rest)[0], "")
        elif message.kind == b"S":
            self._passing_over = False
            self._expected.append(_Expected("sync", asked=self._asked))
        elif message.kind == b"F":
            self._expected.append(_Expected("query", asked=self._asked))
        return message.pack()

    def _statement(self, message: Message) -> bytes:
        first, _ = wire.text(message.body)
        extended = message.kind == b"E"
        if extended and self._passing_over:
            return message.pack()
        statement = self._portals.get(first, "") if extended else first
        rule = self._noted(statement)
        expected = _Expected("execute" if extended else "query", rule, asked=self._asked)
        self._expected.append(expected)
        if rule is None or rule.action == "drop reply":
            return message.pack()
        if rule.action == "cut before":
            self._orders.counts.cut_before += 1
            raise Cut
        if not extended:
            return wire.query(rule.replacement).pack()
        expected.unasked = 2
        return wire.parse_bind_execute(rule.replacement)

    def _noted(self, statement: str) -> Rule | None:
        if self._orders.statements is not None:
            self._orders.statements[" ".join(statement.split())] += 1
        if _BEGIN.match(statement):
            self._transaction.clear()
        rule = self._orders.rule_for(statement, self._transaction)
        self._transaction.append(statement)
        if _END.match(statement):
            self._transaction.clear()
        return rule

    def reply(self, message: Message) -> bytes:
        """What goes to the client in place of a server's message."""
        expected = self._expected[0] if self._expected else None
        if message.kind in b"12":
            if expected and expected.unasked and self._answered >= expected.asked:
                expected.unasked -= 1
                return b""
            self._answered += 1
        if expected and expected.rule and expected.rule.action == "drop reply":
            self._held, self._holder = [], expected.rule
            expected.rule = None
        packed = message.pack()
        if self._held is not None:
            self._held.append(packed)
            packed = b""
        if message.kind == b"E":
            return self._failed(expected) or packed
        if message.kind in b"CIs":
            return self._completed(expected, message) or packed
        if message.kind == b"Z":
            self._answered = self._expected.popleft().asked
            self._orders.counts.round_trips += 1
            if self._held is not None:
                self._drop()
        return packed

    def _failed(self, expected: _Expected | None) -> bytes:
        """After an error, executions up to the next synchronisation will not be answered."""
        if expected and expected.rule and expected.rule.action == "fail":
            self._orders.counts.errors_injected += 1
            expected.rule = None
        if expected is None or expected.kind in ("execute", "sync"):
            while self._expected and self._expected[0].kind == "execute":
                self._give_back(self._expected.popleft().rule)
            self._passing_over = not self._expected
        return self._let_go()

    def _completed(self, expected: _Expected | None, message: Message) -> bytes:
        if expected and expected.kind == "execute":
            self._expected.popleft()
        tag = message.body.rstrip(b"\0") if message.kind == b"C" else b""
        if tag == b"COMMIT":
            self._orders.counts.commits += 1
            if self._held is not None:
                self._drop()
        return self._let_go() if tag == b"ROLLBACK" else b""

    def _drop(self) -> None:
        self._orders.counts.replies_dropped += 1
        raise Cut

    def _let_go(self) -> bytes:
        """Pass on what was held: the statement failed, or did not commit."""
        self._give_back(self._holder)
        held, self._held, self._holder = self._held, None, None
        return b"".join(held or ())

    @staticmethod
    def _give_back(rule: Rule | None) -> None:
        if rule is not None:
            rule.left += 1
            rule.seen -= 1

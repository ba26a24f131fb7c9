# SPDX-License-Identifier: Apache-2.0
"""Does the proxy know whose a reply is, message by message?"""

from __future__ import annotations

import re
import struct

import pytest

from tests.postgres import wire
from tests.postgres.traffic import COMMIT, Cut, Orders, Rule, Traffic
from tests.postgres.wire import Message, Splitter

PARSED, BOUND = Message(b"1", b""), Message(b"2", b"")
NO_DATA = Message(b"n", b"")
READY, IN_TRANSACTION = Message(b"Z", b"I"), Message(b"Z", b"T")
SYNC = Message(b"S", b"")
FAILED = wire.error("40001", "injected", "ERROR")


def started(*rules: Rule) -> Traffic:
    traffic = Traffic(Orders(rules=list(rules)))
    traffic.reply(READY)
    return traffic


def rule(action: str, when: str, **more: object) -> Rule:
    values = {"of": None, "left": 1, **more}
    return Rule(action, re.compile(when), **values)  # type: ignore[arg-type]


def execution(statement: str) -> list[Message]:
    return [
        Message(b"P", b"\0" + statement.encode() + b"\0\0\0"),
        Message(b"B", b"\0\0" + struct.pack("!hhh", 0, 0, 0)),
        Message(b"D", b"P\0"),
        Message(b"E", b"\0" + struct.pack("!i", 0)),
    ]


def completed(tag: str) -> Message:
    return Message(b"C", tag.encode() + b"\0")


def passed(traffic: Traffic, replies: list[Message]) -> list[Message]:
    return list(Splitter().feed(b"".join(map(traffic.reply, replies))))


def test_replies_to_a_statement_of_ours_are_kept_from_the_client() -> None:
    traffic = started(rule("fail", "insert", replacement="do"))
    for message in [*execution("select"), *execution("insert"), SYNC]:
        traffic.request(message)
    theirs = [PARSED, BOUND, NO_DATA, completed("SELECT 1"), PARSED, BOUND, NO_DATA]

    seen = passed(traffic, [*theirs, PARSED, BOUND, FAILED, READY])

    assert seen == [*theirs, FAILED, READY]
    assert traffic.reply(PARSED) != b""


def test_statements_after_an_error_get_no_reply() -> None:
    commits = rule("drop reply", COMMIT)
    traffic = started(commits)
    for message in [*execution("insert"), *execution("commit"), SYNC]:
        traffic.request(message)

    seen = passed(traffic, [PARSED, FAILED, READY])

    assert seen == [PARSED, FAILED, READY]
    assert commits.left == 1
    traffic.request(wire.query("commit"))
    with pytest.raises(Cut):
        traffic.reply(completed("COMMIT"))


def test_earlier_replies_of_a_pipeline_are_passed_before_the_cut() -> None:
    traffic = started(rule("drop reply", COMMIT))
    for message in [*execution("insert"), *execution("commit"), SYNC]:
        traffic.request(message)
    first = [PARSED, BOUND, NO_DATA, completed("INSERT 0 1")]

    assert passed(traffic, [*first, PARSED, BOUND, NO_DATA]) == first
    with pytest.raises(Cut):
        traffic.reply(completed("COMMIT"))


def test_lone_statement_before_a_transaction_is_not_of_it() -> None:
    traffic = started(rule("cut before", COMMIT, of=re.compile("insert")))

    for statement in ("insert", "begin", "select", "commit", "begin", "insert"):
        traffic.request(wire.query(statement))

    with pytest.raises(Cut):
        traffic.request(wire.query("commit"))


def test_messages_are_found_in_pieces() -> None:
    splitter = Splitter()
    packed = completed("SELECT 1").pack() + READY.pack()

    found = [message for at in range(len(packed)) for message in splitter.feed(packed[at : at + 1])]

    assert found == [completed("SELECT 1"), READY]

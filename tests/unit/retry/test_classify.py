# SPDX-License-Identifier: Apache-2.0
"""Whose failure is it: the network's, the other side's, or the task's own?"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import subprocess
import sys
import urllib.error
from collections.abc import Callable, Iterator
from datetime import timedelta
from email.message import Message

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.retry.classify import (
    LOOK_THROUGH_MAX,
    Classified,
    FailureClass,
    TimeLimitError,
    classify,
)

NOW = 1_772_366_400.0  # Sun, 01 Mar 2026 12:00:00 GMT

NODE = Classified(FailureClass.NODE)
SERVICE = Classified(FailureClass.SERVICE)
UNKNOWN = Classified(FailureClass.UNKNOWN)

LOST = socket.gaierror(socket.EAI_AGAIN, "no DNS")


class Response:
    def __init__(self, status_code: object, headers: object = None) -> None:
        self.status_code = status_code
        self.headers = headers


class HttpError(Exception):
    """As httpx and requests do it: the answer hangs on the error."""

    def __init__(self, status_code: object, headers: object = None) -> None:
        super().__init__(f"answered {status_code}")
        self.response = Response(status_code, headers)


class Repeating:
    """Headers that keep each repetition, as those of aiohttp do."""

    def __init__(self, *items: tuple[str, str]) -> None:
        self._items = items

    def items(self) -> Iterator[tuple[str, str]]:
        return iter(self._items)


def foreign(module: str, *names: str, base: type[Exception] = Exception) -> Exception:
    """Make an error of a library that is not installed; the last name is its own class."""
    cls = base
    for name in names:
        cls = type(name, (cls,), {"__module__": module})
    return cls("boom")


def with_cause(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError(),
        ConnectionResetError(errno.ECONNRESET, "reset"),
        ConnectionRefusedError(),
        BrokenPipeError(),
        socket.gaierror(socket.EAI_AGAIN, "no DNS"),
        ssl.SSLError(ssl.SSL_ERROR_SSL, "handshake"),
        ssl.SSLCertVerificationError("expired"),
        asyncio.IncompleteReadError(b"", 10),
        *(
            OSError(number, os.strerror(number))
            for number in (
                errno.ECONNRESET,
                errno.EPIPE,
                errno.ENETUNREACH,
                errno.EHOSTUNREACH,
                errno.ETIMEDOUT,
                errno.ECONNREFUSED,
                errno.ENETDOWN,
                errno.EADDRNOTAVAIL,
            )
        ),
    ],
    ids=repr,
)
def test_transport_errors_are_the_nodes(error: BaseException) -> None:
    assert classify(error, now=NOW) == NODE


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad"),
        KeyError("x"),
        OSError("no number"),
        TimeoutError(),
        EOFError(),
        ssl.SSLError("no cipher"),
        FileNotFoundError(errno.ENOENT, "missing"),
        PermissionError(errno.EACCES, "denied"),
        OSError(errno.ENOSPC, "disk full"),
        OSError(errno.EMFILE, "too many files"),
        MemoryError(),
        AssertionError(),
        KeyboardInterrupt(),
        SystemExit(1),
        asyncio.CancelledError(),
        TimeLimitError("ran for 60 s"),
    ],
    ids=repr,
)
def test_everything_else_is_unknown(error: BaseException) -> None:
    assert classify(error, now=NOW) == UNKNOWN


def test_asyncios_time_out_is_the_builtin_one() -> None:
    assert asyncio.TimeoutError is TimeoutError is socket.timeout


def test_our_own_time_limit_is_never_a_transport_time_out() -> None:
    limit = with_cause(TimeLimitError("ran for 60 s"), TimeoutError())

    assert not isinstance(limit, TimeoutError)
    assert classify(limit, now=NOW, classifiers=[lambda _e: FailureClass.NODE]) == UNKNOWN


@pytest.mark.parametrize(
    "error",
    [
        foreign("httpx", "ConnectError"),
        foreign("httpx", "TimeoutException", "ReadTimeout"),
        foreign("httpx._exceptions", "PoolTimeout"),
        foreign("httpx2", "RemoteProtocolError"),
        foreign("httpx", "WriteError"),
        foreign("requests.exceptions", "RequestException", "ConnectionError", base=OSError),
        foreign("requests.exceptions", "ChunkedEncodingError"),
        foreign("aiohttp.client_exceptions", "ClientConnectionError", "ServerDisconnectedError"),
        foreign("aiohttp.client_exceptions", "ClientPayloadError"),
        foreign("openai", "APIConnectionError"),
        foreign("openai", "APIConnectionError", "APITimeoutError"),
        foreign("anthropic._exceptions", "APIConnectionError"),
        type("Mine", (type(foreign("httpx", "ConnectError")),), {})("a subclass of theirs"),
    ],
    ids=lambda error: f"{type(error).__module__}.{type(error).__name__}",
)
def test_transport_errors_of_known_libraries_are_recognised_by_name(error: Exception) -> None:
    assert classify(error, now=NOW) == NODE


@pytest.mark.parametrize(
    "error",
    [
        foreign("myapp", "ConnectError"),
        foreign("myapp.httpx", "ReadTimeout"),
        foreign("httpxy", "ConnectError"),
        foreign("httpx", "UnsupportedProtocol"),
        foreign("httpx", "LocalProtocolError"),
        foreign("httpx", "InvalidURL"),
        foreign("requests.exceptions", "InvalidJSONError", base=OSError),
        foreign("openai", "BadRequestError"),
        foreign("aiohttp", "ConnectError"),
    ],
    ids=lambda error: f"{type(error).__module__}.{type(error).__name__}",
)
def test_same_names_elsewhere_and_other_names_there_are_unknown(error: Exception) -> None:
    assert classify(error, now=NOW) == UNKNOWN


@pytest.mark.parametrize("status", [408, 425, 429, 500, 501, 502, 503, 504, 529, 599])
def test_statuses_that_ask_for_patience_are_the_services(status: int) -> None:
    assert classify(HttpError(status), now=NOW) == SERVICE


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 418, 422, 451, 499])
def test_other_refusals_are_the_jobs_own_fault_even_with_a_transport_cause(status: int) -> None:
    error = with_cause(HttpError(status, {"Retry-After": "5"}), ConnectionError())

    assert classify(error, now=NOW) == UNKNOWN


@pytest.mark.parametrize("status", [None, "429", 429.0, True, 0, 200, 302, 600, -1])
def test_what_is_no_failure_status_says_nothing(status: object) -> None:
    assert classify(HttpError(status), now=NOW) == UNKNOWN
    assert classify(with_cause(HttpError(status), ConnectionError()), now=NOW) == NODE


def test_status_code_of_the_error_itself_counts() -> None:
    error = foreign("openai", "RateLimitError")
    error.status_code = 429  # type: ignore[attr-defined]
    error.headers = {"retry-after": "9"}  # type: ignore[attr-defined]

    assert classify(error, now=NOW) == Classified(FailureClass.SERVICE, 9.0)


def test_status_of_aiohttp_and_code_of_urllib_count_and_no_one_elses() -> None:
    answer = foreign("aiohttp.client_exceptions", "ClientResponseError")
    answer.status = 503  # type: ignore[attr-defined]
    answer.headers = Repeating(("Retry-After", "7"))  # type: ignore[attr-defined]
    headers = Message()
    headers["Retry-After"] = "8"
    other = foreign("myapp", "ProcessError")
    other.status = 503  # type: ignore[attr-defined]
    other.code = 503  # type: ignore[attr-defined]

    with urllib.error.HTTPError("http://x", 503, "busy", headers, None) as refused:
        assert classify(refused, now=NOW) == Classified(FailureClass.SERVICE, 8.0)
    assert classify(answer, now=NOW) == Classified(FailureClass.SERVICE, 7.0)
    assert classify(other, now=NOW) == UNKNOWN


def test_urllib_is_judged_by_its_reason() -> None:
    assert classify(urllib.error.URLError(socket.gaierror(-3, "DNS")), now=NOW) == NODE
    assert classify(urllib.error.URLError("unknown url type: foo"), now=NOW) == UNKNOWN


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Retry-After": "30"}, 30.0),
        ({"RETRY-AFTER": "30"}, 30.0),
        ({"Retry-After": "Sun, 01 Mar 2026 12:01:00 GMT"}, 60.0),
        ({"Retry-After": "99999999999"}, 900.0),
        ({"Retry-After": "20000"}, 20_000.0),
        ({"Retry-After": "-5"}, 900.0),
        ({"Retry-After": "NaN"}, 900.0),
        ({"Retry-After": 30}, None),
        ({"Retry-After": "1, 2"}, 900.0),
        ({"Retry-After": "1", "retry-after": "1"}, 1.0),
        (Repeating(("Retry-After", "1"), ("X", "2"), ("Retry-After", "4")), 4.0),
        (Repeating(("X", "2"), ("Retry-After", "3")), 3.0),
        ({}, None),
        (None, None),
        ("Retry-After: 3", None),
        ([("Retry-After", "3")], None),
    ],
)
def test_retry_after_of_the_answer_is_read_strictly(
    headers: object, expected: float | None
) -> None:
    assert classify(HttpError(503, headers), now=NOW) == Classified(FailureClass.SERVICE, expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, Classified(FailureClass.SERVICE, 0.0)),
        (12.5, Classified(FailureClass.SERVICE, 12.5)),
        (timedelta(minutes=1), Classified(FailureClass.SERVICE, 60.0)),
        (10**400, Classified(FailureClass.SERVICE, 900.0)),
        (1e300, Classified(FailureClass.SERVICE, 900.0)),
        (None, UNKNOWN),
        (True, UNKNOWN),
        (-1, UNKNOWN),
        (float("nan"), UNKNOWN),
        (float("inf"), Classified(FailureClass.SERVICE, 900.0)),
        (86_400, Classified(FailureClass.SERVICE, 86_400.0)),
        ("30", Classified(FailureClass.SERVICE, 30.0)),
        ("soon", Classified(FailureClass.SERVICE, 900.0)),
        ("", UNKNOWN),
    ],
)
def test_attribute_retry_after_makes_it_the_services(value: object, expected: Classified) -> None:
    error = ValueError("slow down")
    error.retry_after = value  # type: ignore[attr-defined]

    assert classify(error, now=NOW) == expected


def test_properties_that_raise_are_read_as_missing() -> None:
    class Prickly(Exception):
        @property
        def response(self) -> object:
            raise RuntimeError("the request has not been set")

        @property
        def retry_after(self) -> float:
            raise KeyError("no")

    class BadHeaders:
        def items(self) -> object:
            raise RuntimeError("closed")

    assert classify(Prickly(), now=NOW) == UNKNOWN
    assert classify(HttpError(503, BadHeaders()), now=NOW) == SERVICE


def test_causes_are_looked_through_and_contexts_are_not() -> None:
    wrapped = with_cause(ValueError(), with_cause(KeyError(), ConnectionError()))
    try:
        try:
            raise ConnectionError
        except ConnectionError:
            raise ValueError("while handling")  # noqa: B904 (a context without a cause)
    except ValueError as caught:
        in_passing = caught

    assert classify(wrapped, now=NOW) == NODE
    assert classify(with_cause(ValueError(), HttpError(503, {"Retry-After": "4"})), now=NOW) == (
        Classified(FailureClass.SERVICE, 4.0)
    )
    assert classify(in_passing, now=NOW) == UNKNOWN
    assert classify(with_cause(SystemExit(1), ConnectionError()), now=NOW) == UNKNOWN


def test_circles_and_deep_chains_of_causes_end() -> None:
    first, second = ValueError(1), ValueError(2)
    first.__cause__, second.__cause__ = second, first
    error: BaseException = ConnectionError()
    for _ in range(LOOK_THROUGH_MAX):
        error = with_cause(ValueError(), error)

    assert classify(first, now=NOW) == UNKNOWN
    assert classify(error, now=NOW) == NODE
    assert classify(with_cause(ValueError(), error), now=NOW) == UNKNOWN


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([ConnectionError(), ConnectionResetError()], NODE),
        ([ConnectionError(), ValueError()], UNKNOWN),
        ([HttpError(503), HttpError(404)], UNKNOWN),
        ([ConnectionError(), HttpError(503)], SERVICE),
        (
            [HttpError(503, {"Retry-After": "3"}), HttpError(429, {"Retry-After": "7"})],
            Classified(FailureClass.SERVICE, 7.0),
        ),
        ([ConnectionError(), ExceptionGroup("inner", [LOST, ConnectionError()])], NODE),
        ([ConnectionError(), ExceptionGroup("inner", [LOST, KeyError()])], UNKNOWN),
        ([with_cause(KeyError(), ConnectionError()), LOST], NODE),
        ([ConnectionError(), TimeLimitError()], UNKNOWN),
    ],
)
def test_group_is_what_all_its_members_are(parts: list[Exception], expected: Classified) -> None:
    assert classify(ExceptionGroup("several", parts), now=NOW) == expected


def test_group_with_a_cancellation_is_unknown() -> None:
    group = BaseExceptionGroup("several", [ConnectionError(), asyncio.CancelledError()])

    assert classify(group, now=NOW) == UNKNOWN


def test_user_classifiers_are_asked_in_order_before_ours() -> None:
    asked: list[str] = []

    def passes(_error: BaseException) -> None:
        asked.append("passes")

    def knows(error: BaseException) -> Classified | None:
        asked.append("knows")
        return Classified(FailureClass.SERVICE, 3.5) if isinstance(error, KeyError) else None

    def bare(_error: BaseException) -> FailureClass:
        asked.append("bare")
        return FailureClass.UNKNOWN

    chain = [passes, knows, bare]

    assert classify(KeyError(), now=NOW, classifiers=chain) == Classified(FailureClass.SERVICE, 3.5)
    assert asked == ["passes", "knows"]
    assert classify(ConnectionError(), now=NOW, classifiers=chain) == UNKNOWN
    assert classify(ConnectionError(), now=NOW, classifiers=chain[:2]) == NODE


def test_user_classifiers_see_members_of_groups_and_causes() -> None:
    def knows(error: BaseException) -> FailureClass | None:
        return FailureClass.NODE if isinstance(error, KeyError) else None

    group = BaseExceptionGroup("several", [KeyError(), with_cause(ValueError(), KeyError())])

    assert classify(group, now=NOW, classifiers=[knows]) == NODE


@pytest.mark.parametrize("bad", [lambda _e: 1 / 0, lambda _e: "nobody", lambda _e: Response(1)])
def test_classifier_that_fails_is_passed_over_with_a_note(bad: object) -> None:
    error = ConnectionError()

    assert classify(error, now=NOW, classifiers=[bad]) == NODE  # type: ignore[list-item]
    assert "raised" in error.__notes__[0]


@pytest.mark.parametrize("wait", [-1.0, float("nan"), float("inf")])
def test_classified_refuses_a_wait_that_is_none(wait: float) -> None:
    with pytest.raises(ValueError, match="wait_seconds"):
        Classified(FailureClass.SERVICE, wait)


@given(
    st.none() | st.text() | st.integers() | st.floats() | st.binary(),
    st.dictionaries(st.sampled_from(["Retry-After", "retry-after"]), st.text() | st.integers()),
)
def test_no_answer_breaks_classification(status: object, headers: object) -> None:
    wait = classify(HttpError(status, headers), now=NOW).wait_seconds

    assert wait is None or 0.0 <= wait <= 86_400.0


def test_classify_imports_no_client_library() -> None:
    """Goal: recognising a client costs no import of it. Method: look at a fresh interpreter."""
    code = (
        "import sys, penstock.retry.classify; "
        "print([m for m in sys.modules if m.partition('.')[0] in "
        "('httpx', 'httpx2', 'requests', 'aiohttp', 'openai', 'anthropic')])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def _raised(call: Callable[[], object]) -> BaseException:
    """What a call raises when it is told often enough that nobody listens."""
    for _ in range(3):
        try:
            call()
        except OSError as error:
            return error
    raise AssertionError("somebody listens")


def test_f62_a_broken_pipe_of_the_jobs_own_is_not_the_networks() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", closefd=False) as nobody:
        printing = _raised(lambda: print("x", file=nobody, flush=True))
        with pytest.raises(BrokenPipeError):
            nobody.close()
    unbuffered = _raised(lambda: os.write(writing, b"x"))
    os.close(writing)
    child = subprocess.Popen(["true"], stdin=subprocess.PIPE, bufsize=0)
    child.wait()
    assert child.stdin is not None
    feeding = _raised(lambda: child.stdin.write(b"x"))  # type: ignore[union-attr]
    child.stdin.close()

    for error in (printing, unbuffered, feeding):
        assert isinstance(error, BrokenPipeError)
        assert classify(error, now=NOW) == UNKNOWN
        assert classify(with_cause(RuntimeError("wrapped"), error), now=NOW) == UNKNOWN


def test_f62_a_broken_pipe_of_a_connection_is_the_networks() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, ours.makefile("wb", buffering=0) as file:
        sending = _raised(lambda: ours.send(b"x"))
        writing = _raised(lambda: file.write(b"x"))

    async def drains() -> None:
        near, far = socket.socketpair()
        _, writer = await asyncio.open_connection(sock=near)
        far.close()
        try:
            for _ in range(100):
                writer.write(b"x" * 10_000)
                await writer.drain()
        finally:
            writer.close()

    for error in (sending, writing, _raised(lambda: asyncio.run(drains()))):
        assert classify(error, now=NOW) == NODE


def test_f55_a_group_that_holds_groups_without_end_is_judged_at_once() -> None:
    group: ExceptionGroup[Exception] = ExceptionGroup("leaf", [ConnectionError()] * 10)
    for _ in range(15):
        group = ExceptionGroup("more", [group] * 10)

    assert classify(group, now=NOW) == UNKNOWN

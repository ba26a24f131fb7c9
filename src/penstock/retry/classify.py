# SPDX-License-Identifier: Apache-2.0
"""Classifies errors for retries: network, service or unknown, with Retry-After.

Libraries are recognised by the names of their classes and by a few attributes, never by importing
them: what is not installed costs nothing, and errors need not inherit from us.
"""

from __future__ import annotations

import errno
import math
import re
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import count
from typing import Any, Literal
from urllib.parse import urlsplit

from penstock.errors import (
    PenstockError,
    ProviderThrottled,
    ProviderUnavailable,
    RequestAdmissionError,
    UsageError,
)

WAIT_SECONDS_MAX = 900.0  # a longer wait is cut to this
DATE_LENGTH_MAX = 40  # characters; the longest HTTP-date has 33
SECONDS_DIGITS_MAX = 9  # more digits than this need no arithmetic: they exceed the maximum

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTH = f"(?P<month>{'|'.join(_MONTHS)})"
_TIME = "(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})"
_SHORT_DAY = "(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_LONG_DAY = "(?:Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday)"

_DIGITS = re.compile("[0-9]+")
_DATES = (
    # Sun, 06 Nov 1994 08:49:37 GMT
    re.compile(f"{_SHORT_DAY}, (?P<day>[0-9]{{2}}) {_MONTH} (?P<year>[0-9]{{4}}) {_TIME} GMT"),
    # Sunday, 06-Nov-94 08:49:37 GMT
    re.compile(f"{_LONG_DAY}, (?P<day>[0-9]{{2}})-{_MONTH}-(?P<year>[0-9]{{2}}) {_TIME} GMT"),
    # Sun Nov  6 08:49:37 1994
    re.compile(f"{_SHORT_DAY} {_MONTH} (?P<day>[0-9]{{2}}| [0-9]) {_TIME} (?P<year>[0-9]{{4}})"),
)


def parse_retry_after(values: Sequence[str], now: float) -> float | None:
    """Return the seconds to wait, within 0 and WAIT_SECONDS_MAX.

    Args:
        values: the header's value, once per time it was sent; two contradict each other.
        now: seconds since 1970 UTC.

    Returns:
        None if there is not exactly one value or it is not what RFC 9110 allows; 0 for a past date.
    """
    if len(values) != 1:
        return None
    value = values[0].strip(" \t")
    if _DIGITS.fullmatch(value):
        digits = value.lstrip("0") or "0"
        return WAIT_SECONDS_MAX if len(digits) > SECONDS_DIGITS_MAX else clamp(float(digits))
    at = _parse_date(value, now)
    return None if at is None else clamp(at - now)


def clamp(seconds: float) -> float:
    """Cut a wait to 0…WAIT_SECONDS_MAX."""
    return min(max(0.0, seconds), WAIT_SECONDS_MAX)


def _parse_date(value: str, now: float) -> float | None:
    if len(value) > DATE_LENGTH_MAX:
        return None
    for form in _DATES:
        if found := form.fullmatch(value):
            break
    else:
        return None
    year = int(found["year"])
    if len(found["year"]) == 2:
        year = _full_year(year, now)
    second = 59 if found["second"] == "60" else int(found["second"])  # a leap second
    try:
        return datetime(
            year,
            _MONTHS.index(found["month"]) + 1,
            int(found["day"]),
            int(found["hour"]),
            int(found["minute"]),
            second,
            tzinfo=UTC,
        ).timestamp()
    except ValueError:  # a day, hour or year that does not exist
        return None


def _full_year(two_digits: int, now: float) -> int:
    # RFC 9110: a year that seems to be more than 50 years ahead is the latest past one that fits.
    this_year = datetime.fromtimestamp(now, UTC).year
    year = this_year - this_year % 100 + two_digits
    return year - 100 if year > this_year + 50 else year


def format_connection_detail(error: BaseException, message: str) -> str:
    """Return host and cause that the message of a connection error leaves out, else nothing."""
    parts = []
    try:
        cause = error.__cause__
        reason = "" if cause is None else str(cause)
        if reason and reason not in message:
            parts.append(f"{type(cause).__name__}: {reason}")
        address = _address(error)
        if address and address not in message:
            parts.append(f"to {address}")
    except Exception:  # of somebody else's classes
        return ""
    return f" [{', '.join(parts)}]" if parts else ""


def _address(error: BaseException) -> str:
    """Return host and port of its request, without path, query and credentials."""
    # The `request` of an error of httpx that was raised without one is a property that raises.
    url = str(getattr(getattr(error, "request", None), "url", ""))
    return urlsplit(url).netloc.rpartition("@")[2]


LOOK_THROUGH_MAX = 16  # causes and groups inside each other; deeper ones are not looked at
LOOK_AT_MAX = 1_000  # errors in all; a group that holds the same group ten times may have no end

PATIENCE_STATUSES = frozenset({408, 425, 429, *range(500, 600)})

_NETWORK_ERRNOS = frozenset(
    getattr(errno, name)
    for name in (
        "EADDRNOTAVAIL",  # no local port is left
        "ECONNABORTED",
        "ECONNREFUSED",
        "ECONNRESET",
        "EHOSTDOWN",
        "EHOSTUNREACH",
        "ENETDOWN",
        "ENETRESET",
        "ENETUNREACH",
        "ENOTCONN",
        "EPIPE",
        "ESHUTDOWN",
        "ETIMEDOUT",
    )
    if hasattr(errno, name)
)

#: Built in: connection lost, time-out, DNS, TLS, end of stream (asyncio's IncompleteReadError too).
_NODE_TYPES = (
    ConnectionError,
    TimeoutError,
    socket.gaierror,
    socket.herror,
    ssl.SSLError,
    EOFError,
)

_HTTPX_NAMES = frozenset(
    {
        "TimeoutException",
        "ConnectTimeout",
        "ReadTimeout",
        "WriteTimeout",
        "PoolTimeout",
        "NetworkError",
        "ConnectError",
        "ReadError",
        "WriteError",
        "CloseError",
        "ProxyError",
        "RemoteProtocolError",
    }
)
_SDK_NAMES = frozenset({"APIConnectionError", "APITimeoutError"})
_SDKS = {"openai": _SDK_NAMES, "anthropic": _SDK_NAMES}

#: Packages whose broken pipes are connections, and calls that others make on sockets themselves.
_NETWORK_PACKAGES = frozenset(
    {
        *("aiohttp", "anyio", "asyncio", "ftplib", "h11", "h2", "http", "httpcore", "httplib2"),
        *("httpx", "httpx2", "imaplib", "poplib", "requests", "smtplib", "socket", "ssl", "trio"),
        *("urllib", "urllib3", "uvloop", "websockets"),
    }
)
_SOCKET_CALLS = frozenset(
    {"send", "sendall", "sendfile", "sendmsg", "sendto", "sock_sendall", "sock_sendfile"}
)

#: top package of the module that defines a class → names of its transport errors. Subclasses count.
_NODE_NAMES: dict[str, frozenset[str]] = {
    "httpx": _HTTPX_NAMES,
    "httpx2": _HTTPX_NAMES,
    "requests": frozenset(
        {
            "ConnectionError",
            "Timeout",
            "ConnectTimeout",
            "ReadTimeout",
            "SSLError",
            "ProxyError",
            "ChunkedEncodingError",  # the connection broke inside the body
        }
    ),
    "aiohttp": frozenset(
        {
            "ClientConnectionError",
            "ClientConnectorError",
            "ClientOSError",
            "ClientPayloadError",  # the connection broke inside the body
            "ServerConnectionError",
            "ServerDisconnectedError",
            "ServerTimeoutError",
        }
    ),
    **_SDKS,
    "http": frozenset({"IncompleteRead"}),
}

#: top package, class, the attribute that holds the HTTP status: libraries that name it otherwise.
_STATUS_NAMES = (
    ("aiohttp", "ClientResponseError", "status"),
    ("urllib", "HTTPError", "code"),
)


class FailureClass(StrEnum):
    """Whose failure it was."""

    NODE = "node"  # transport: DNS, TCP, TLS, time-out, reset, end of stream
    SERVICE = "service"  # the other side asks for patience
    UNKNOWN = "unknown"  # nobody recognised it
    MISTAKE = "mistake"  # our own UsageError: another try would meet it again


#: Faults of the work itself, not of the way or of the other side.
OWN_CLASSES = frozenset({FailureClass.UNKNOWN, FailureClass.MISTAKE})


@dataclass(frozen=True, slots=True)
class Classified:
    """The result of classifying an error."""

    category: FailureClass
    wait_seconds: float | None = None  # exact; None leaves it to the back-off
    #: of HTTP, that the other side has answered with: for sentences
    status: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        wait = self.wait_seconds
        if wait is not None and not (math.isfinite(wait) and wait >= 0):
            raise ValueError(f"wait_seconds must be a finite number >= 0, got {wait!r}.")


#: What a classifier may say: a category, or a pair of a category and an exact wait. None passes the
#: error on to the next classifier.
Category = FailureClass | Literal["node", "service", "unknown"]
Opinion = Classified | Category | tuple[Category, float | timedelta | None] | None
Classifier = Callable[[BaseException], Opinion]

_NODE = Classified(FailureClass.NODE)
_UNKNOWN = Classified(FailureClass.UNKNOWN)
_MISTAKE = Classified(FailureClass.MISTAKE)


class TimeLimitError(Exception):
    """A task ran past its own time limit. Made by the runtime; never a transport's time-out."""


class RemoteError(Exception):
    """An error that was raised in another process, as it was seen there."""

    def __init__(self, kind: str, message: str, where: str | None, classified: Classified) -> None:
        super().__init__(message)
        self.kind = kind
        self.where = where
        self.classified = classified


def classify(
    error: BaseException, *, now: float, classifiers: Sequence[Classifier] = ()
) -> Classified:
    """Classify an error: whose failure it was, and how long the other side asks to wait.

    Looks through causes (`raise … from …`) and exception groups; a group is node or service only
    if all its members are.

    Args:
        error: how the attempt ended.
        now: seconds since 1970 UTC; a `Retry-After` may hold a date.
        classifiers: asked first, in order, about the error and what it contains. One that raises
            passes the error on and leaves a note on it.
    """
    return _classify(error, now, classifiers, 0, count(1))


def _classify(
    error: BaseException,
    now: float,
    classifiers: Sequence[Classifier],
    depth: int,
    looks: Iterator[int],
) -> Classified:
    if isinstance(error, RemoteError):
        return error.classified
    too_far = depth > LOOK_THROUGH_MAX or next(looks) > LOOK_AT_MAX
    if isinstance(error, TimeLimitError) or too_far:
        return _UNKNOWN
    opinion = _ask(classifiers, error)
    if opinion is None:
        opinion = _recognise(error, now)
    if opinion is not None:
        return opinion
    if isinstance(error, BaseExceptionGroup):
        return _together(
            _classify(part, now, classifiers, depth + 1, looks) for part in error.exceptions
        )
    inner = _inner(error)
    found = _UNKNOWN if inner is None else _classify(inner, now, classifiers, depth + 1, looks)
    is_mistake = found is _UNKNOWN and depth == 0 and type(error) is UsageError
    return _MISTAKE if is_mistake else found


def _ask(classifiers: Sequence[Classifier], error: BaseException) -> Classified | None:
    for classifier in classifiers:
        try:
            opinion = classifier(error)
            if opinion is not None:
                return _parse_opinion(opinion)
        except Exception as problem:
            # A mistake in a classifier must not stop a worker, nor stay unseen.
            name = getattr(classifier, "__qualname__", repr(classifier))
            error.add_note(f"The classifier {name} raised {problem!r}; it was passed over.")
    return None


def _parse_opinion(opinion: Any) -> Classified:  # noqa: ANN401 (whatever a user's function returns)
    """Convert what a classifier returned; ValueError if it is no opinion."""
    if isinstance(opinion, Classified):
        return opinion
    if not isinstance(opinion, tuple):
        return Classified(FailureClass(opinion))
    category, wait = opinion
    if isinstance(wait, timedelta):
        wait = wait.total_seconds()
    return Classified(FailureClass(category), wait)


def _recognise(error: BaseException, now: float) -> Classified | None:
    """Classify one error by itself; None: its causes may tell more."""
    # 1. An exit, a cancellation or the like is never a failure, whatever caused it.
    if not isinstance(error, Exception | BaseExceptionGroup):
        return _UNKNOWN
    # 2. A request was not sent, or our own client says that the provider needs patience.
    if isinstance(error, RequestAdmissionError):
        return Classified(FailureClass.SERVICE, _seconds(error.retry_after_seconds))
    if isinstance(error, ProviderThrottled | ProviderUnavailable):
        return Classified(FailureClass.SERVICE, _seconds(error.retry_after), error.status_code)
    # 3. The error says itself how long to wait.
    wait_seconds = _seconds(_peek(error, "retry_after"))
    if wait_seconds is not None:
        return Classified(FailureClass.SERVICE, wait_seconds)
    # 4. The other side has answered; a refusal is final, whatever caused the error.
    response = _peek(error, "response")
    status = _status(error, response)
    if status is not None and status >= 400:
        if status not in PATIENCE_STATUSES:
            return _UNKNOWN
        values = _header_values(response) or _header_values(error)
        return Classified(FailureClass.SERVICE, parse_retry_after(values, now), status)
    # 5. The way there is broken; but a pipe of the job's own is no way to anybody.
    if isinstance(error, OSError) and error.errno == errno.EPIPE and _is_own_pipe(error):
        return _UNKNOWN
    # An SDK takes whatever its transport raised for a broken connection; we know better.
    if isinstance(error.__cause__, PenstockError) and _has_name(error, _SDKS):
        return None
    if isinstance(error, _NODE_TYPES) or _has_name(error, _NODE_NAMES):
        return _NODE
    if isinstance(error, OSError) and error.errno in _NETWORK_ERRNOS:
        return _NODE
    return None


def _is_own_pipe(error: OSError) -> bool:
    """Return whether the broken pipe is one of the job itself: stdout, or the input of a program.

    The number is the same as that of a broken connection, so the function that made the failing
    call must tell: code of a networking package, or one that names a call of sockets, has lost a
    connection. An error without a traceback is what a library has made up; it is the network's.
    """
    step = error.__traceback__
    if step is None:
        return False
    while step.tb_next is not None:
        step = step.tb_next
    frame = step.tb_frame
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package not in _NETWORK_PACKAGES and _SOCKET_CALLS.isdisjoint(frame.f_code.co_names)


def _together(parts: Iterable[Classified]) -> Classified:
    category, waits = FailureClass.NODE, []
    for part in parts:
        if part.category in OWN_CLASSES:
            return _UNKNOWN  # whatever the others are
        if part.category is FailureClass.SERVICE:
            category = FailureClass.SERVICE
        if part.wait_seconds is not None:
            waits.append(part.wait_seconds)
    return Classified(category, max(waits, default=None))


def _inner(error: BaseException) -> BaseException | None:
    if error.__cause__ is not None:
        return error.__cause__
    # urllib keeps the transport's error in `reason`.
    reason = _peek(error, "reason") if _has_name(error, {"urllib": {"URLError"}}) else None
    return reason if isinstance(reason, BaseException) else None


def _status(error: BaseException, response: object) -> int | None:
    candidates = [_peek(response, "status_code"), _peek(error, "status_code")]
    candidates += [
        _peek(error, attribute)
        for package, name, attribute in _STATUS_NAMES
        if _has_name(error, {package: {name}})
    ]
    for status in candidates:
        if isinstance(status, int) and not isinstance(status, bool) and 100 <= status <= 599:
            return int(status)
    return None


def _header_values(holder: object) -> list[str]:
    """Every `Retry-After` of a response or an error that keeps headers, however it is spelt."""
    return [
        value
        for name, value in _header_items(_peek(holder, "headers"))
        if isinstance(name, str) and name.lower() == "retry-after" and isinstance(value, str)
    ]


def _header_items(headers: object) -> Iterator[tuple[object, object]]:
    # The header classes of httpx, requests, aiohttp and email all have `items()`; those that keep
    # repeated headers yield each of them, the others join them into a text that is no wait.
    items = _peek(headers, "items")
    if not callable(items):
        return
    try:
        for item in items():
            if isinstance(item, tuple) and len(item) == 2:
                yield item
    except BaseException:  # foreign code, reading an answer that has failed already
        return


def _seconds(value: object) -> float | None:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return None if value < 0 else clamp(value)


def _has_name(error: BaseException, names: Mapping[str, frozenset[str] | set[str]]) -> bool:
    return any(
        cls.__name__ in names.get(str(cls.__module__).partition(".")[0], ())
        for cls in type(error).__mro__
    )


def _peek(holder: object, name: str) -> object:
    """Read an attribute that may not exist, or whose property may raise; None then."""
    try:
        return getattr(holder, name, None)
    except BaseException:  # foreign code; an exit in it is no exit of ours
        return None

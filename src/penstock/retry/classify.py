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
from itertools import count, islice
from types import FrameType
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from penstock.errors import (
    AccountClosed,
    DatasetsLocked,
    PayloadError,
    PenstockError,
    ProviderNotAvailableHere,
    ProviderThrottled,
    ProviderUnavailable,
    ReplyOverdue,
    RequestAdmissionError,
    StrictJsonError,
    TableStopped,
    TooManyFailures,
    UnknownTask,
    UsageError,
)

WAIT_SECONDS_MAX = 86_400.0  # a wait up to this is obeyed exactly
DOUBTED_SECONDS = 900.0  # in place of a longer wait, and of one that cannot be read
DATE_LENGTH_MAX = 40  # characters; the longest HTTP-date has 33
SECONDS_DIGITS_MAX = 9  # more digits than this need no arithmetic: they exceed the maximum

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTH = f"(?P<month>{'|'.join(_MONTHS)})"
_TIME = "(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})"
_SHORT_DAY = "(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_LONG_DAY = "(?:Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday)"

_SECONDS = re.compile("[0-9]+(?P<fraction>[.][0-9]{1,9})?")
_DATES = (
    # Sun, 06 Nov 1994 08:49:37 GMT
    re.compile(f"{_SHORT_DAY}, (?P<day>[0-9]{{2}}) {_MONTH} (?P<year>[0-9]{{4}}) {_TIME} GMT"),
    # Sunday, 06-Nov-94 08:49:37 GMT
    re.compile(f"{_LONG_DAY}, (?P<day>[0-9]{{2}})-{_MONTH}-(?P<year>[0-9]{{2}}) {_TIME} GMT"),
    # Sun Nov  6 08:49:37 1994
    re.compile(f"{_SHORT_DAY} {_MONTH} (?P<day>[0-9]{{2}}| [0-9]) {_TIME} (?P<year>[0-9]{{4}})"),
)


class AskedWait(NamedTuple):
    """How long the other side asks to wait, as far as it is believed."""

    seconds: float
    doubt: str = ""  # why these are not the seconds that it asks for; a clause for people


UNREADABLE = AskedWait(
    DOUBTED_SECONDS,
    "its Retry-After is neither seconds nor an HTTP date and is treated as 15 min",
)


def parse_retry_after(values: Sequence[str], now: float) -> AskedWait | None:
    """Parse a Retry-After header: the wait that it asks for.

    Args:
        values: the header's value, once per time it was sent; the longest wait counts.
        now: seconds since 1970 UTC.

    Returns:
        None if nothing was sent; `UNREADABLE` if it is not what RFC 9110 allows, save that seconds
        may have a fraction; 0 seconds for a past date.
    """
    waits = [_parse_value(value.strip(" \t"), now) for value in values if value.strip(" \t")]
    if not waits:
        return None
    known = [seconds for seconds in waits if seconds is not None]
    return believed_wait(max(known)) if len(known) == len(waits) else UNREADABLE


def believed_wait(seconds: float) -> AskedWait:
    """A wait of so many seconds: exactly that up to a day, else a quarter of an hour."""
    if seconds <= WAIT_SECONDS_MAX:
        return AskedWait(max(0.0, float(seconds)))
    asked = f"{seconds / 86_400:,.0f} days" if seconds < 1e9 else "for ever"
    return AskedWait(
        DOUBTED_SECONDS, f"it asks to wait {asked}, which is over 24 h and is treated as 15 min"
    )


def _parse_value(value: str, now: float) -> float | None:
    """Return the seconds of one header's value; None if it cannot be read."""
    if found := _SECONDS.fullmatch(value):
        fraction = found["fraction"] or ""
        digits = value.removesuffix(fraction).lstrip("0") or "0"
        return math.inf if len(digits) > SECONDS_DIGITS_MAX else float(digits + fraction)
    at = _parse_date(value, now)
    return None if at is None else max(0.0, at - now)


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


def refused_address(error: BaseException) -> str | None:
    """Return host and port that have refused the connection whose failure this is.

    None: it was not refused. Empty: nothing in the error says where.
    """
    links = list(islice(_links(error), LOOK_AT_MAX))
    if not any(isinstance(one, OSError) and one.errno == errno.ECONNREFUSED for one in links):
        return next(filter(None, map(_refused_by_text, links)), None)
    try:
        return next(filter(None, map(_refused_at, links)), "")
    except Exception:  # of somebody else's classes
        return ""


def _links(error: BaseException, depth: int = 0) -> Iterator[BaseException]:
    """An error, what it contains, and what has caused it."""
    yield error
    if depth >= LOOK_THROUGH_MAX:
        return
    parts = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    reason = _peek(error, "reason")
    args = error.args if reason is None else (reason,)
    inner = (error.__cause__, error.__context__, *args, *parts)
    for one in inner:
        if isinstance(one, BaseException):
            yield from _links(one, depth + 1)


def _refused_at(error: BaseException) -> str:
    if address := _address(error):
        return address
    if address := _format_address(_peek(error, "host"), _peek(error, "port")):
        return address
    if found := _CALL_FAILED.search(str(error)):
        return _format_address(found["host"], int(found["port"]))
    if address := _refused_by_text(error):
        return address
    for frame in reversed(_frames(error)):
        if _is_of(frame, _NETWORK_MODULES):
            named = frame.f_locals
            pair = named.get("address")
            if not (isinstance(pair, tuple) and len(pair) >= 2):
                pair = (named.get("host"), named.get("port"))
            if address := _format_address(pair[0], pair[1]):
                return address
    return ""


def _refused_by_text(error: BaseException) -> str:
    """Host and port of a client that says in its text alone who has refused; empty: it does not."""
    try:
        text = str(error)
    except Exception:  # of somebody else's classes
        return ""
    found = next(filter(None, (one.search(text) for one in _REFUSED_TEXTS)), None)
    return "" if found is None else _format_address(found["host"], int(found["port"]))


def _format_address(host: object, port: object) -> str:
    """Format host and port; empty if they are none."""
    if not (isinstance(host, str) and isinstance(port, int)):
        return ""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


#: asyncio says where: [Errno 111] Connect call failed ('127.0.0.1', 9).
_CALL_FAILED = re.compile(r"Connect call failed \('(?P<host>[^']{1,255})', (?P<port>[0-9]{1,5})")


#: libpq (psycopg, psycopg2) and redis.
_REFUSED_TEXTS = (
    re.compile(
        r'server at "(?P<host>[^"]{1,255})"(?: \([^)]{1,99}\))?, port (?P<port>[0-9]{1,5}) failed: '
        "Connection refused"
    ),
    re.compile(
        r"connecting to (?P<host>[^ ]{1,255}):(?P<port>[0-9]{1,5})\. Connection refused",
        re.IGNORECASE,
    ),
)


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

#: Built in: their classes alone tell that a connection was lost or could not be made.
_NODE_TYPES = (ConnectionError, socket.gaierror, socket.herror, ReplyOverdue)
#: What OpenSSL says of a connection; a context that cannot be set up has other numbers, or none.
_TLS_ERRNOS = frozenset(ssl.SSLErrorNumber)

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

#: Modules and packages that talk to others: what they raise is a connection's. Of asyncio only
#: those parts: its time limits, locks and futures are tools of the task's own code.
_NETWORK_MODULES = frozenset(
    {
        *("aiohttp", "ftplib", "h11", "h2", "http", "httpcore", "httpcore2", "httplib2", "httpx"),
        *("httpx2", "imaplib", "nntplib", "poplib", "requests", "smtplib", "socket", "ssl"),
        *("telnetlib", "trio", "urllib", "urllib3", "uvloop", "websockets"),
        *("asyncio.base_events", "asyncio.proactor_events", "asyncio.selector_events"),
        *("asyncio.sslproto", "asyncio.streams", "asyncio.unix_events"),
    }
)
#: What a client wraps around its own calls: whoever called these has set the limit.
_TIME_LIMITS = frozenset({"anyio", "async_timeout", "asyncio", "contextlib"})
#: Calls on sockets that code makes itself, by the errors that they end in.
_SEND_CALLS = frozenset(
    {"send", "sendall", "sendfile", "sendmsg", "sendto", "sock_sendall", "sock_sendfile"}
)
_SOCKET_CALLS = _SEND_CALLS | {"accept", "connect", "recv", "recv_into", "recvfrom", "recvmsg"}

#: top package of the module that defines a class → names of its transport errors. Subclasses count.
_NODE_NAMES: dict[str, frozenset[str]] = {
    "httpx": _HTTPX_NAMES,
    "httpx2": _HTTPX_NAMES,
    "httpcore": _HTTPX_NAMES,
    "httpcore2": _HTTPX_NAMES,
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
    "urllib3": frozenset(
        {
            "ConnectTimeoutError",
            "IncompleteRead",
            "NewConnectionError",
            "ProtocolError",
            "ProxyError",
            "ReadTimeoutError",
            "SSLError",
        }
    ),
    "botocore": frozenset(
        {"ConnectTimeoutError", "ConnectionError", "ReadTimeoutError", "ConnectionClosedError"}
    ),
    "websockets": frozenset({"ConnectionClosed"}),
    "asyncio": frozenset({"IncompleteReadError"}),
    "http": frozenset({"IncompleteRead"}),
    "imaplib": frozenset({"abort"}),
    "smtplib": frozenset({"SMTPConnectError", "SMTPServerDisconnected"}),
    **_SDKS,
}

#: Of databases: top package, class, the attribute that holds the SQLSTATE of the server's answer.
_SQLSTATE_NAMES = (
    ("psycopg", "OperationalError", "sqlstate"),
    ("psycopg2", "OperationalError", "pgcode"),
)
_LOST_SQLSTATES = ("08", "57P01", "57P02", "57P03")  # beginnings: no connection, or a restart

#: top package → classes that keep the transport's error in `reason`.
_REASON_NAMES = {"urllib": {"URLError"}, "urllib3": {"MaxRetryError"}}

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
    MISTAKE = "mistake"  # a call of ours was wrong: another try would meet it again


#: Faults of the work itself, not of the way or of the other side.
OWN_CLASSES = frozenset({FailureClass.UNKNOWN, FailureClass.MISTAKE})


@dataclass(frozen=True, slots=True)
class Classified:
    """The result of classifying an error."""

    category: FailureClass
    wait_seconds: float | None = None  # exact; None leaves it to the back-off
    #: of HTTP, that the other side has answered with: for sentences
    status: int | None = field(default=None, compare=False)
    #: why the wait is not the one that was asked for: for sentences
    doubt: str = field(default="", compare=False)
    #: host and port that have refused a connection, as far as is known; None: none has
    refused_at: str | None = field(default=None, compare=False)

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
_SERVICE = Classified(FailureClass.SERVICE)
_UNKNOWN = Classified(FailureClass.UNKNOWN)
_MISTAKE = Classified(FailureClass.MISTAKE)

#: Of these themselves, not of what inherits from them: a refused batch may be accepted later.
_MISTAKES = frozenset(
    {
        *(UsageError, PayloadError, StrictJsonError, UnknownTask, ProviderNotAvailableHere),
        *(TableStopped, TooManyFailures),  # a row group has tried its cells again itself
    }
)


class TimeLimitError(Exception):
    """A task ran past its own time limit. Made by the runtime; never a transport's time-out."""


class RemoteError(Exception):
    """An error as it was seen where it was raised, in a thread or a process: a plain one."""

    def __init__(
        self,
        kind: str,
        message: str,
        where: str | None,
        classified: Classified,
        traceback: str | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.where = where
        self.traceback = traceback
        self.classified = classified
        self.is_bad_answer = False  # the task says so of an answer, or could not read it
        self.call: object = None  # the answer's, where the task has named it


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
    is_mistake = found is _UNKNOWN and depth == 0 and type(error) in _MISTAKES
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
        return _asks(_asked_wait(error.retry_after_seconds, now))
    if isinstance(error, AccountClosed | ProviderThrottled | ProviderUnavailable):
        return _asks(_asked_wait(error.retry_after, now), error.status_code)
    if isinstance(error, DatasetsLocked):
        return _SERVICE
    # 3. The error says itself how long to wait.
    asked = _asked_wait(_peek(error, "retry_after"), now)
    if asked is not None:
        return _asks(asked)
    # 4. The other side has answered; a refusal is final, whatever caused the error.
    response = _peek(error, "response")
    status = _status(error, response)
    if status is not None and status >= 400:
        values = _header_values(response) or _header_values(error)
        asked = parse_retry_after(values, now)
        is_pause = status == 402 and asked is not None
        if status not in PATIENCE_STATUSES and not is_pause:
            return _UNKNOWN
        return _asks(asked, status)
    # 5. An SDK takes whatever its transport raised for a broken connection; we know better.
    if isinstance(error.__cause__, PenstockError) and _has_name(error, _SDKS):
        return None
    # 6. The way there is broken, or something of the task's own that looks like it.
    if _is_own_stream(error):
        return _UNKNOWN
    return _NODE if _is_transport(error) else None


def _is_transport(error: BaseException) -> bool:
    """Return whether a connection has failed: by class, by number, or by who raised it."""
    if isinstance(error, ssl.SSLError):
        return type(error) is not ssl.SSLError or error.errno in _TLS_ERRNOS
    if isinstance(error, _NODE_TYPES) or _has_name(error, _NODE_NAMES):
        return True
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _NETWORK_ERRNOS
    if isinstance(error, EOFError | TimeoutError) or type(error) is OSError:
        return _is_raised_by_network(error)
    return _is_lost_database(error)


def _is_raised_by_network(error: BaseException) -> bool:
    """Return whether an error whose class says nothing was raised by code that talks to others.

    `socket.timeout` is `TimeoutError`, as are the ends of `asyncio.timeout` and `Future.result`;
    `EOFError` is raised by ftplib, and by gzip. The innermost function tells them apart; a limit of
    time belongs to whoever has set it. An error without a traceback is nobody's but the task's.
    """
    frames = _frames(error)
    for frame in reversed(frames):
        if _is_of(frame, _NETWORK_MODULES):
            return True
        if not _is_of(frame, _TIME_LIMITS):
            break
    # Methods of a socket leave no frame: then it is their message and the names in their caller.
    own_call = bool(frames) and not _SOCKET_CALLS.isdisjoint(frames[-1].f_code.co_names)
    return own_call and type(error) is TimeoutError and error.args == ("timed out",)


def _is_own_stream(error: BaseException) -> bool:
    """Return whether it is a pipe of the job itself: stdout, or to and from a program it started.

    Numbers and classes are those of a broken connection, so the function that made the failing
    call must tell: networking code, or one that names a call of sockets, has lost a connection. An
    error without a traceback is what a library has made up; it is the network's.
    """
    if not isinstance(error, ConnectionError | EOFError):
        return False
    frames = _frames(error)
    if any(_is_of(frame, _STREAMS) and _is_pipe(frame.f_locals.get("self")) for frame in frames):
        return True
    if not isinstance(error, OSError) or error.errno != errno.EPIPE or not frames:
        return False
    last = frames[-1]
    known = _is_of(last, _NETWORK_MODULES) or _is_of(last, _TIME_LIMITS)
    return not known and _SEND_CALLS.isdisjoint(last.f_code.co_names)


_STREAMS = frozenset({"asyncio.streams"})


def _is_pipe(stream: object) -> bool:
    """Return whether a stream of asyncio is one to or from a program, not a socket's."""
    transport = _peek(stream, "transport") or _peek(stream, "_transport")
    ask = _peek(transport, "get_extra_info")
    return callable(ask) and ask("pipe") is not None


def _is_lost_database(error: BaseException) -> bool:
    for package, name, attribute in _SQLSTATE_NAMES:
        if _has_name(error, {package: {name}}):
            sqlstate = _peek(error, attribute)
            if isinstance(sqlstate, str):
                return sqlstate.startswith(_LOST_SQLSTATES)
            return "FATAL:" not in str(error)  # a server that has answered is there
    return False


def _frames(error: BaseException) -> list[FrameType]:
    """Return the functions that an error came through, the one that raised it last."""
    frames, step = [], error.__traceback__
    while step is not None:
        frames.append(step.tb_frame)
        step = step.tb_next
    return frames


def _is_of(frame: FrameType, modules: frozenset[str]) -> bool:
    """Return whether a function is of one of these modules, or of a module inside one."""
    module = str(frame.f_globals.get("__name__", ""))
    while module and module not in modules:
        module = module.rpartition(".")[0]
    return bool(module)


def _together(parts: Iterable[Classified]) -> Classified:
    category, asked = FailureClass.NODE, None
    for part in parts:
        if part.category in OWN_CLASSES:
            return _UNKNOWN  # whatever the others are
        if part.category is FailureClass.SERVICE:
            category = FailureClass.SERVICE
        if part.wait_seconds is not None:
            wait = AskedWait(part.wait_seconds, part.doubt)
            asked = wait if asked is None else max(asked, wait)
    if asked is None:
        return Classified(category)
    return Classified(category, asked.seconds, doubt=asked.doubt)


def _inner(error: BaseException) -> BaseException | None:
    if error.__cause__ is not None:
        return error.__cause__
    reason = _peek(error, "reason") if _has_name(error, _REASON_NAMES) else None
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


def _asks(asked: AskedWait | None, status: int | None = None) -> Classified:
    """The service's failure, with the wait that it asks for."""
    if asked is None:
        return Classified(FailureClass.SERVICE, status=status)
    return Classified(FailureClass.SERVICE, asked.seconds, status, asked.doubt)


def _asked_wait(value: object, now: float) -> AskedWait | None:
    """Return the wait that an attribute asks for; None: it asks for none."""
    if isinstance(value, str):
        return parse_retry_after([value], now)  # a header's value that was handed on
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return believed_wait(value) if value >= 0 else None  # nor a NaN


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

# SPDX-License-Identifier: Apache-2.0
"""One request in flight: holds its lease from the grant until the reply's body is closed.

One exchange is one attempt on the wire. It counts what comes in, ends it at its deadline, and gives
the lease back exactly once, with what is known then. Giving back is synchronous: no cancellation
can come between.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from asyncio import current_task
from collections.abc import Callable, Coroutine, Iterator, Sequence
from itertools import chain
from types import TracebackType
from typing import Any

import msgspec

from penstock.admission.requests.decisions import RequestAdmissionLease
from penstock.clock import Clock
from penstock.errors import AttemptOver, ReplyOverdue, ReplyRefused, RequestError
from penstock.model.request import RequestOutcome, RequestReleaseOutcome
from penstock.redaction.content_guard import GuardedBody
from penstock.requests.admission import RequestAdmissionController
from penstock.requests.headers import NOTHING, HeadReading, asked_wait, read_headers
from penstock.requests.usage import NO_USAGE, ReportedUsage, UsageReader
from penstock.retry.classify import OWN_CLASSES, classify
from penstock.timers import Deadlines

PIECE_BYTES = 256 * 1024  # decoded at once
ACCEPTED = "gzip, deflate"
_LAYERS_MAX = 2  # encodings over each other
_GZIP_MAGIC = b"\x1f\x8b"


class CannotDecode(RequestError):
    """A body is not what its Content-Encoding says: broken on the way, or by the provider."""


class BodyDecoder:
    """Decompresses one body: gzip, zlib or raw deflate, and the encoding inside of it if any."""

    def __init__(self, *, is_gzip: bool, inner: BodyDecoder | None = None) -> None:
        self._is_gzip = is_gzip
        self._inner = inner
        self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 16 if is_gzip else zlib.MAX_WBITS)
        self._began = False

    def decode(self, chunk: bytes) -> Iterator[bytes]:
        """Yield what comes out, in pieces of bounded size."""
        while chunk:
            if self._inflate.eof:
                if not (self._is_gzip and chunk.startswith(_GZIP_MAGIC)):
                    return  # whatever follows belongs to nothing
                self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 16)  # another member
            try:
                piece = self._inflate.decompress(chunk, PIECE_BYTES)
            except zlib.error as error:
                if self._began or self._is_gzip:
                    raise CannotDecode(f"A reply's body cannot be decompressed: {error}.") from None
                self._began = True  # some servers send deflate without its header
                self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
                continue
            self._began = True
            chunk = self._inflate.unconsumed_tail or self._inflate.unused_data
            while piece:
                if self._inner is None:
                    yield piece
                else:
                    yield from self._inner.decode(piece)
                # All of the input may be taken while some of the output is still held back.
                full = len(piece) == PIECE_BYTES and not chunk
                piece = self._inflate.decompress(b"", PIECE_BYTES) if full else b""

    def finish(self) -> None:
        """Check that the body is whole; CannotDecode if it is not."""
        if self._began and not self._inflate.eof:
            raise CannotDecode("A reply's compressed body ends in the middle.")
        if self._inner is not None:
            self._inner.finish()


def decoder_for(encoding: str) -> BodyDecoder | None:
    """Return the decoder of this Content-Encoding; None: the body stays as it is.

    Raises:
        ReplyRefused: libraries would decode it without a limit, and we had not asked for it.
    """
    names = [name.strip() for name in encoding.lower().split(",")]
    names = [name for name in names if name not in ("", "identity")]
    if any(name in ("br", "zstd") for name in names) or len(names) > _LAYERS_MAX:
        raise ReplyRefused(
            f"A reply came as {encoding[:40]!r} although {ACCEPTED!r} was asked for; its provider "
            "must honour Accept-Encoding."
        )
    decoder: BodyDecoder | None = None
    for name in names:  # the last one was applied last
        if name not in ("gzip", "x-gzip", "deflate"):
            return None
        decoder = BodyDecoder(is_gzip=name != "deflate", inner=decoder)
    return decoder


PEEK_BYTES = 65_536  # of a body, for a classifier

_UNHEALTHY = frozenset({408, 425})


def outcome_of_status(status: int, head: HeadReading) -> RequestOutcome:
    """Return the outcome of a reply's status; other 4xx are answers like any other."""
    if status < 400:
        return RequestOutcome.SUCCESS
    if status == 429 or (status == 503 and head.retry_after is not None):
        return RequestOutcome.RATE_LIMITED
    if status == 402 and head.retry_after is not None:
        return RequestOutcome.RATE_LIMITED
    # GitHub refuses with 403: either it says how long, or a bucket is empty.
    if status == 403 and (
        head.retry_after is not None or any(reading.remaining == 0 for reading in head.readings)
    ):
        return RequestOutcome.RATE_LIMITED
    if status >= 500 or status in _UNHEALTHY:
        return RequestOutcome.PROVIDER_FAILURE
    return RequestOutcome.SUCCESS


def outcome_of_error(error: BaseException, now: float) -> RequestOutcome:
    """Return the outcome of an error while sending or reading; `now` is seconds since 1970 UTC."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit | AttemptOver):
        return RequestOutcome.LOCAL_CANCELLED
    if isinstance(error, CannotDecode | ReplyRefused):
        return RequestOutcome.PROVIDER_FAILURE
    name = type(error).__name__
    if name == "PoolTimeout":
        return RequestOutcome.LOCAL_TIMEOUT
    if isinstance(error, TimeoutError | ReplyOverdue) or "Timeout" in name:
        return RequestOutcome.PROVIDER_TIMEOUT
    if classify(error, now=now).category in OWN_CLASSES:
        return RequestOutcome.UNEXPECTED_EXCEPTION
    return RequestOutcome.PROVIDER_FAILURE


log = logging.getLogger("penstock.outbound")

_SUCCESS = RequestReleaseOutcome(RequestOutcome.SUCCESS)


class ReplyLimits(msgspec.Struct, frozen=True):
    """Limits of one reply: time and bytes."""

    deadline_seconds: float = 600.0  # from the permit to the end of the body
    body_bytes_max: int = 64 * 1024 * 1024  # on the wire, and decoded
    header_bytes_max: int = 128 * 1024


class Exchange:
    """Owns one lease, the time and the bytes of one reply. Belongs to one loop.

    As a context manager it surrounds every await on the wire: at the deadline that await ends with
    `ReplyOverdue`.
    """

    # Most exchanges change few of these, so they stand in the class until they do.
    status = 0
    head: HeadReading = NOTHING
    ending: RequestReleaseOutcome | None = None  # as the head, or a classifier, says
    is_over = False  # the lease is given back
    _usage: UsageReader | None = None
    _decoder: BodyDecoder | None = None
    guarded_body: GuardedBody | None = None  # remembers an answer for its attempt
    _wire_bytes = _decoded_bytes = 0
    is_complete = False  # the body has come to its end
    _close_connection: Callable[[], Coroutine[Any, Any, None]] | None = None
    _task: asyncio.Task[Any] | None = None
    _cancelling_before = 0
    _interrupted = False
    _entered_at = _waited_seconds = 0.0
    _background: asyncio.Task[None] | None = None

    def __init__(
        self,
        admission: RequestAdmissionController,
        lease: RequestAdmissionLease,
        limits: ReplyLimits,
        clock: Clock,
        deadlines: Deadlines[Exchange, None],
        on_used: Callable[[int], None] | None = None,
    ) -> None:
        self._admission = admission
        self.lease = lease
        self._limits = limits
        self._clock = clock
        self._deadlines = deadlines
        self._loop = asyncio.get_running_loop()
        if on_used is not None:  # else the reply's usage is of no interest
            self._usage = UsageReader()
        self._on_used = on_used
        deadlines.add(self, None)
        if admission.events.is_on:
            admission.events.sent(lease)

    def __repr__(self) -> str:
        return f"<Exchange with {self.where}: status {self.status}, over: {self.is_over}>"

    @property
    def where(self) -> str:
        """PROVIDER/MODEL, for messages."""
        resource = self.lease.item.resource
        return f"{resource.provider}/{resource.model}"

    # ── Its deadline ──────────────────────────────────────────────────────────────────────────

    def __enter__(self) -> None:
        if self.is_over:
            raise self._overdue_error()
        loop = self._loop
        self._task = task = current_task(loop)
        self._entered_at = loop.time()
        if task is not None:
            self._cancelling_before = task.cancelling()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        task, self._task = self._task, None
        self._waited_seconds += self._loop.time() - self._entered_at
        if self._interrupted and task is not None:
            self._interrupted = False
            is_ours = task.uncancel() <= self._cancelling_before
            if is_ours and kind is not None and issubclass(kind, asyncio.CancelledError):
                raise self._overdue_error() from error

    def expire(self) -> None:
        """End it at its deadline."""
        if self.is_over:
            return
        is_read = self._task is not None
        if self._task is not None:
            self._interrupted = True
            self._task.cancel()
            self._waited_seconds += self._loop.time() - self._entered_at
        # Who took most of the time: the provider, or a reader that left the body open?
        if self._waited_seconds >= self._limits.deadline_seconds / 2:
            outcome = RequestOutcome.PROVIDER_TIMEOUT
        else:
            outcome = RequestOutcome.LOCAL_TIMEOUT
        if outcome is RequestOutcome.LOCAL_TIMEOUT and not self.is_complete:
            log.warning(
                "A reply of %s was not read and closed within %g s; its connection is closed. "
                "Close every stream, or use `async with`.",
                self.where,
                self._limits.deadline_seconds,
            )
        self._end(self._refusal() or RequestReleaseOutcome(outcome))
        if not is_read:
            self.close_connection()

    def _overdue_error(self) -> ReplyOverdue:
        return ReplyOverdue(
            f"The reply of {self.where} was not complete within "
            f"{self._limits.deadline_seconds:g} s; its connection was closed."
        )

    @property
    def counts_tokens(self) -> bool:
        """True if the reply's usage is wanted."""
        return self._usage is not None

    @property
    def used(self) -> ReportedUsage:
        """The token usage that the reply reports."""
        return NO_USAGE if self._usage is None else self._usage.used()

    @property
    def is_success(self) -> bool:
        """True if its head is that of an answer."""
        return self.ending is not None and self.ending.outcome is RequestOutcome.SUCCESS

    # ── What comes in ─────────────────────────────────────────────────────────────────────────

    def read_head(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Take in the status and the headers."""
        self.status = status
        size = sum(map(len, chain.from_iterable(headers)))
        if size > self._limits.header_bytes_max:
            raise ReplyRefused(
                f"The reply of {self.where} has {size:,} bytes of headers, more than the "
                f"{self._limits.header_bytes_max:,} that are allowed."
            )
        head = read_headers(headers, self._clock.now())
        if head is NOTHING and status < 400:
            self.ending = _SUCCESS
            return
        self.head = head
        outcome = outcome_of_status(status, head)
        refused = outcome is RequestOutcome.RATE_LIMITED
        wait = asked_wait(head) if refused else head.retry_after
        self.ending = RequestReleaseOutcome(
            outcome,
            None if wait is None else wait.seconds,
            head.readings,
            is_error=status >= 400,
            doubt="" if wait is None else wait.doubt,
        )

    def decodes(self) -> bool:
        """Return whether the body is decoded here, so that its reader gets it plain."""
        if self.head.encoding:
            self._decoder = decoder_for(self.head.encoding)
        return self._decoder is not None

    def received(self, chunk: bytes) -> Iterator[bytes] | None:
        """Count a chunk from the wire; return its decoded pieces, or None if it is plain.

        Raises:
            ReplyRefused: it is too much, now or while it is decoded.
        """
        self._wire_bytes = count = self._wire_bytes + len(chunk)
        if count > self._limits.body_bytes_max:
            raise self._too_large()
        if self._decoder is not None:
            return self._decoded(self._decoder, chunk)
        self._observe(chunk)
        return None

    def _decoded(self, decoder: BodyDecoder, chunk: bytes) -> Iterator[bytes]:
        for piece in decoder.decode(chunk):
            self._decoded_bytes += len(piece)
            if self._decoded_bytes > self._limits.body_bytes_max:
                raise self._too_large()
            self._observe(piece)
            yield piece

    def _observe(self, piece: bytes) -> None:
        if self._usage is not None:
            self._usage.feed(piece)
        if self.guarded_body is not None:
            self.guarded_body.add(piece)

    def complete(self) -> None:
        """Note that the body has come to its end."""
        if self._decoder is not None:
            self._decoder.finish()
        self.is_complete = True

    def _too_large(self) -> ReplyRefused:
        return ReplyRefused(
            f"The reply of {self.where} is larger than the {self._limits.body_bytes_max:,} bytes "
            "that are allowed."
        )

    # ── Its end ───────────────────────────────────────────────────────────────────────────────

    def on_close(self, close_connection: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Set what closes the connection if nobody reads to the end."""
        self._close_connection = close_connection

    def fail(self, error: BaseException) -> None:
        """Release the lease: sending or reading raised. The error is the caller's."""
        if not self.is_over:
            self._end(self._refusal() or self._failure(error))

    def close(self) -> None:
        """Release the lease: the body was closed, read to its end or not."""
        if self.is_over:
            return
        ending = self.ending or RequestReleaseOutcome(RequestOutcome.LOCAL_CANCELLED)
        if ending.outcome is RequestOutcome.SUCCESS and not self.is_complete:
            task = current_task(self._loop)
            if task is not None and task.cancelling():
                ending = RequestReleaseOutcome(RequestOutcome.LOCAL_CANCELLED)
        used = None if self._usage is None else self._usage.tokens()
        if used is not None:
            ending = msgspec.structs.replace(ending, tokens_used=used)
            if self._on_used is not None:
                self._on_used(used)
        self._end(ending)

    def abandon(self) -> None:
        """Release the lease of a body that was garbage collected; for any thread."""
        if not self.is_over and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._abandoned)

    def _abandoned(self) -> None:
        if self.is_over:
            return
        log.warning(
            "A reply of %s was discarded before its body was closed; close every stream, or use "
            "`async with`.",
            self.where,
        )
        self.close()
        self.close_connection()

    def close_connection(self) -> None:
        """Close the connection in the background."""
        close_connection, self._close_connection = self._close_connection, None
        if close_connection is not None:
            self._background = self._loop.create_task(_quietly(close_connection))

    def _refusal(self) -> RequestReleaseOutcome | None:
        """Return the outcome of the head if it was no success: then the body does not matter."""
        ending = self.ending
        return None if ending is None or ending.outcome is RequestOutcome.SUCCESS else ending

    def _failure(self, error: BaseException) -> RequestReleaseOutcome:
        return RequestReleaseOutcome(outcome_of_error(error, self._clock.now()))

    def _end(self, ending: RequestReleaseOutcome) -> None:
        if self.is_over:
            return
        self.is_over = True
        self._deadlines.drop(self)
        events = self._admission.events
        if events.is_on:
            seconds = self._clock.monotonic() - self.lease.acquired_at
            facts = {"seconds": seconds, "bytes": float(self._wire_bytes)}
            if self.status:
                facts["status"] = float(self.status)
            events.ended(self.lease, ending, facts)
        self._admission.release(self.lease, ending)


async def _quietly(close_connection: Callable[[], Coroutine[Any, Any, None]]) -> None:
    try:
        await close_connection()
    except Exception as error:  # a connection that is given up
        log.debug("Closing a connection raised %r.", error)

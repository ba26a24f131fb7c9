# SPDX-License-Identifier: Apache-2.0
"""Asks the model of a column: a prompt made of a row, an answer checked, asked for again if wrong.

A call leaves through the provider's own client, so that it is admitted, journaled and retried as
every other; who asks runs inside the attempt context of its cell.
"""

from __future__ import annotations

import asyncio
import base64
import mimetypes
from pathlib import Path
from typing import Any

import msgspec

from penstock.clock import Clock
from penstock.definitions.column import JudgeColumn, LlmColumn
from penstock.definitions.provider import Model
from penstock.model.table import CellFigures, Row
from penstock.redaction.content_guard import redact_content
from penstock.redaction.secrets import redacted
from penstock.requests import attempt_context
from penstock.requests.account_errors import said
from penstock.requests.attempt_context import AttemptContext
from penstock.requests.credentials import ANTHROPIC_VERSION
from penstock.tables.chat import (
    ANTHROPIC,
    AnswerRejected,
    Attached,
    ChatReply,
    Endpoint,
    Message,
    chat_request,
    read_reply,
)
from penstock.tables.structured import AnswerType, RubricType, structured_type

_UNKNOWN = (None, None, None)  # tokens of a cell that was never answered
FILE_BYTES_MAX = 32 * 1024 * 1024  # of one image or document

#: By dialect; keys come from the provider's credentials.
_HEADERS = {
    None: {"content-type": "application/json"},
    ANTHROPIC: {"content-type": "application/json", "anthropic-version": ANTHROPIC_VERSION},
}


class ModelRefused(Exception):
    """A provider has answered with an error; a retry policy reads its response."""

    def __init__(self, message: str, response: Any) -> None:  # noqa: ANN401 (of httpx2)
        super().__init__(message)
        self.response = response


class FileUnreadable(Exception):
    """A file that a column names cannot go with its prompt."""


class CellTally:
    """Owns what one cell has asked and been answered so far. Belongs to one loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.monotonic()
        self._model: str | None = None
        self._tokens: list[tuple[int | None, int | None, int | None]] = []
        self.attempts = 0
        self.verdict: str | None = None

    def add(self, reply: ChatReply) -> None:
        self._model = reply.model or self._model
        self._tokens.append((reply.input_tokens, reply.cached_tokens, reply.output_tokens))

    def figures(self, context: AttemptContext | None) -> CellFigures:
        """Return what it has cost, answered or not; what nobody has told is None."""
        now = self._clock.monotonic()
        waited = 0.0 if context is None else context.waited_seconds(now)
        calls = None if context is None or context.calls is None else context.calls.delivered
        found = calls or []
        is_free = calls is not None and not found and not self._tokens  # nothing was answered
        untold = (0, 0, 0) if is_free else _UNKNOWN
        read, cached, written = (
            map(_sum, zip(*self._tokens, strict=True)) if self._tokens else untold
        )
        is_known = bool(found) and all(
            one.is_priced and not one.answer.is_estimated for one in found
        )
        return CellFigures(
            model=self._model,
            fingerprint=found[-1].answer.key.fingerprint if found else None,
            attempts=self.attempts,
            input_tokens=read,
            cached_tokens=cached,
            output_tokens=written,
            micros=sum(one.answer.used.micros for one in found) if is_known or is_free else None,
            calls=len(found),
            reused=sum(one.is_reused for one in found),
            waited_seconds=waited,
            served_seconds=max(0.0, now - self._began - waited),
            verdict=self.verdict,
        )


class ModelColumn:
    """Makes the cells of one column by asking its model."""

    def __init__(self, column: LlmColumn | JudgeColumn) -> None:
        self.column = column
        self._type: AnswerType | None = None
        if isinstance(column, JudgeColumn):
            self._type = RubricType(column.rubric)
        elif column.schema is not None:
            self._type = structured_type(column.schema)

    def __repr__(self) -> str:
        return f"<ModelColumn {self.column.name!r} of {self.column.model!r}>"

    def messages(self, row: Row) -> list[Message]:
        """Return what the model is told for a row.

        Raises:
            TemplateFailed: the row has not what the prompt asks for.
            FileUnreadable: a file is not there, is no file of that kind, or is too large.
        """
        column = self.column
        hint = "" if self._type is None else f"\n\n{self._type.prompt_hint}"
        if isinstance(column, LlmColumn):
            files = [_attached(row[name], "image/") for name in column.images]
            files += [_attached(row[name], "") for name in column.documents]
            return [Message("user", column.prompt.render(row) + hint, files)]
        parts = [] if column.prompt is None else [column.prompt.render(row)]
        parts += [f"{name}:\n{_text(row[name])}" for name in column.of]
        return [Message("user", "\n\n".join(parts) + hint)]

    async def answer(self, row: Row, tally: CellTally) -> Any:  # noqa: ANN401 (JSON)
        """Return the value of a cell: a text, or plain JSON.

        Raises:
            AnswerRejected: the last answer was not what was asked for, either.
            ModelRefused: the provider says that the request is wrong.
        """
        column = self.column
        has_files = isinstance(column, LlmColumn) and (column.images or column.documents)
        messages = await asyncio.to_thread(self.messages, row) if has_files else self.messages(row)
        system = None if column.system is None else column.system.render(row)
        while True:
            tally.attempts += 1
            reply: ChatReply | None = None
            try:
                reply = read_reply(await self._ask(messages, system))
                tally.add(reply)
                value = reply.text if self._type is None else self._type.parse(reply.text)
            except AnswerRejected as error:
                rejected = error if reply is None else _completed(error, reply)
                tally.verdict = rejected.reason
                if tally.attempts >= column.attempts:
                    raise rejected from None
                if reply is not None:
                    messages = [*messages[:1], *_correction(reply.text, rejected.reason)]
            else:
                tally.verdict = "cut off" if reply.is_cut_off else None
                return value

    async def _ask(self, messages: list[Message], system: str | None) -> bytes:
        """Send one request; the reply's body, if its status says that it is an answer."""
        model = self.column.model
        clients = model.provider.clients
        path, body = chat_request(
            Endpoint(clients.base_url, clients.dialect),
            model.name,
            messages,
            system=system,
            parameters={**model.parameters, **self.column.parameters},
            schema=None if self._type is None else self._type.json_schema,
        )
        headers = _HEADERS.get(clients.dialect, _HEADERS[None])
        reply = await clients.http.post(path, content=msgspec.json.encode(body), headers=headers)
        content: bytes = reply.content
        if reply.status_code >= 300:
            raise ModelRefused(_told(model, reply.status_code, content), reply)
        return content


def _completed(rejected: AnswerRejected, reply: ChatReply) -> AnswerRejected:
    if not reply.is_cut_off:
        return rejected
    return AnswerRejected("cut off", f"{rejected.reason}; it was cut off at its longest")


def _correction(answer: str, reason: str) -> list[Message]:
    """Ask for the same again; of earlier tries only the last one is shown."""
    asked = f"This was not accepted: {reason}. Answer again, with nothing but the JSON."
    return [Message("assistant", answer), Message("user", asked)]


def _told(model: Model, status: int, body: bytes) -> str:
    """Say what a provider has against a request, without a quote of it."""
    text = redacted(said(body))
    attempt = attempt_context.current.get()
    if attempt is not None:
        text = redact_content(text, attempt.content_guard.texts())
    return f"{model.provider.name}/{model.name} answers {status}" + (f": {text}" if text else "")


def _attached(value: object, wanted: str) -> Attached:
    """A file that goes with a prompt."""
    if not isinstance(value, str | Path):
        raise FileUnreadable(
            f"a file is named by a text, and this is of type {type(value).__name__}"
        )
    path = Path(value)
    kind = mimetypes.guess_type(path.name)[0]
    if kind is None or not kind.startswith(wanted):
        what = "an image" if wanted else "a document of a known type"
        raise FileUnreadable(f"the file is not {what} by its name ({path.suffix or 'no suffix'})")
    try:
        size = path.stat().st_size
        content = path.read_bytes() if size <= FILE_BYTES_MAX else b""
    except OSError as error:
        raise FileUnreadable(
            f"the file cannot be read ({error.strerror or type(error).__name__})"
        ) from None
    if size > FILE_BYTES_MAX:
        raise FileUnreadable(f"the file has {size:,} bytes, more than {FILE_BYTES_MAX:,}")
    return Attached(path.name, kind, base64.b64encode(content).decode("ascii"))


def _text(value: object) -> str:
    """A value as a judge reads it."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _sum(counts: tuple[int | None, ...]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None

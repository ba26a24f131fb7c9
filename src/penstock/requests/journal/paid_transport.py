# SPDX-License-Identifier: Apache-2.0
"""How does a request that costs money pass: from the journal, or to the provider?"""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.model.journal import Answer
from penstock.requests import attempt_context
from penstock.requests.clients.httpx import AdmittedTransport
from penstock.requests.executor import ModelRequestExecutor
from penstock.requests.journal.bodies import played_reply, whole_body
from penstock.requests.journal.call import PaidCall
from penstock.requests.journal.calls import PaidCalls, PaidRequest


class PaidTransport(AdmittedTransport):
    """Sends what a client gives it, unless its answer is there already."""

    def __init__(
        self,
        library: Any,  # noqa: ANN401 (httpx2 or httpx)
        executor: ModelRequestExecutor,
        wire: Any,  # noqa: ANN401 (a transport of the library)
        paid: PaidCalls,
        *,
        sends_again: bool,
    ) -> None:
        super().__init__(library, executor, wire, sends_again=sends_again)
        self._paid = paid

    async def handle_async_request(
        self,
        request: Any,  # noqa: ANN401
        call: PaidCall | None = None,
    ) -> Any:  # noqa: ANN401
        if asyncio.get_running_loop() is not self._loop:
            return await super().handle_async_request(request)  # which refuses it
        paid = self._paid
        body = await whole_body(self.library, request)
        kind = request.headers.get("content-type", "")
        begun = await paid.begin(PaidRequest(request.method, str(request.url), body, kind))
        if isinstance(begun, Answer):
            if (attempt := attempt_context.current.get()) is not None:
                attempt.heard.body(body)
                attempt.heard.body(begun.body)
            return played_reply(self.library, begun)
        header = paid.rules.idempotency_header
        if header is not None and header not in request.headers:
            request.headers[header] = paid.idempotency_key(begun)
        try:
            reply = await super().handle_async_request(request, begun)
        except BaseException as error:
            begun.failed(error)
            raise
        if not begun.is_answer:
            begun.refused()
        return reply

# SPDX-License-Identifier: Apache-2.0
"""The app of the journal campaign: each job asks a provider that costs money, some at once."""

from __future__ import annotations

import asyncio
import hashlib
import os

from penstock import Context, Penstock

app = Penstock("journal")
api = app.provider("api", base_url=os.environ["PENSTOCK_TEST_PROVIDER"], paid=True)


@app.task(uses=api, timeout=60)
async def ask(ctx: Context, number: int, calls: int) -> str:
    """One call first, then the others at once; the result shows every answer."""
    answers = [await _answer(f"{number}/0")]
    others = (_answer(f"{number}/{index}") for index in range(1, calls))
    answers += await asyncio.gather(*others)
    return hashlib.sha256(" ".join(answers).encode()).hexdigest()


async def _answer(prompt: str) -> str:
    if prompt.endswith("/1"):  # as a stream
        pieces = []
        async with api.http.stream("POST", "/ask", json={"prompt": prompt}) as reply:
            reply.raise_for_status()
            pieces = [piece async for piece in reply.aiter_text()]
        return "".join(pieces)
    reply = await api.http.post("/ask", json={"prompt": prompt})
    reply.raise_for_status()
    return str(reply.text)

# SPDX-License-Identifier: Apache-2.0
"""Fetch documents from an archive whose limits nobody has told us."""

import os

from penstock import Context, Penstock

app = Penstock("harvest")

archive = app.provider("archive", base_url=os.environ.get("HARVEST_URL", "http://127.0.0.1:8080"))


@app.task(uses=archive, max_attempts=5, timeout=60)
async def fetch(ctx: Context, number: int) -> dict[str, int]:
    reply = await archive.http.get(f"/documents/{number}")  # admitted; refusals are waited out
    reply.raise_for_status()
    return {"number": number, "bytes": len(reply.content)}

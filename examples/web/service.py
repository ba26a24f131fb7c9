# SPDX-License-Identifier: Apache-2.0
"""A web service that accepts work by HTTP and does it in the same process, crash-safely.

`POST /works` answers when the job is durable; `GET /works/KEY` tells its state and its result.
The first SIGTERM ends both the server and the run in good order; the next start goes on.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Response
from pydantic import BaseModel

from penstock import Context, JobView, Penstock
from penstock.errors import UnknownJob

app = Penstock("web")
crossref = app.provider("crossref", base_url="https://api.crossref.org", max_parallel=8)


class Work(BaseModel):
    """What a client asks for."""

    doi: str


@app.task(key="work:{doi}", uses=crossref, timeout="5m")
async def fetch(ctx: Context, doi: str) -> dict[str, Any]:
    """Fetch the title of a work."""
    reply = await crossref.http.get(f"/works/{doi}")
    reply.raise_for_status()
    return {"doi": doi, "title": reply.json()["message"]["title"]}


@asynccontextmanager
async def lifespan(api: FastAPI) -> AsyncIterator[None]:
    """Work on the queue for as long as the server serves."""
    app.load()  # a mistake in the settings ends the start, and not the run behind it
    api.state.run = run = asyncio.create_task(app.run_async())
    try:
        yield
    finally:
        run.cancel()  # gracefully: what runs has runtime.grace_seconds to end
        print("The run is being stopped.", flush=True)
        with suppress(asyncio.CancelledError):
            await run
        app.close()


api = FastAPI(lifespan=lifespan)


@api.post("/works", status_code=202)
async def accept(work: Work, response: Response) -> dict[str, Any]:
    """Accept a job; when this answers, the job survives a crash."""
    accepted = await app.enqueue_async(fetch.job(doi=work.doi))
    if not accepted.created:
        response.status_code = 200  # it was known before
    return {"key": accepted.key, "created": accepted.created}


@api.get("/works/{key:path}")
async def look(key: str) -> dict[str, Any]:
    """Say what became of a job."""
    try:
        job: JobView = await app.job_async(key)
    except UnknownJob:
        raise HTTPException(404, f"There is no job {key!r}.") from None
    return {"key": key, "state": job.state, "result": job.result, "error": job.error}


@api.get("/health")
async def health() -> dict[str, str]:
    """Say whether the run goes on: it ends by itself when the store fails, or a budget is used."""
    if api.state.run.done():
        raise HTTPException(503, "The run has ended; the log says why.")
    return {"run": "works"}


if __name__ == "__main__":
    # uvicorn stops in good order, and then raises the signal again: this is what it finds.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    uvicorn.run(api, host="127.0.0.1", port=int(os.environ.get("PORT", "8000")))

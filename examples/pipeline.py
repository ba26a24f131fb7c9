# SPDX-License-Identifier: Apache-2.0
"""A first pipeline: documents are fetched (here: pretended), then counted by host."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from penstock import Context, Penstock, Skip

app = Penstock("demo")


@app.task(limits={"host": lambda url: urlsplit(url).hostname or "none"}, timeout=10)
async def fetch(ctx: Context, url: str) -> dict[str, int]:
    await asyncio.sleep(0.05)  # stands for a call to a slow service
    if url.endswith("7"):
        raise Skip("gone")
    return {"bytes": len(url)}


if __name__ == "__main__":
    urls = [f"https://host-{n % 5}.example/doc/{n}" for n in range(400)]
    print(app.enqueue_many(fetch.job(url=url).with_options(key=url) for url in urls))

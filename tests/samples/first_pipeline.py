# SPDX-License-Identifier: Apache-2.0
"""A first pipeline: an async task with a keyed limit, and one job."""

from typing import Any

from penstock import Context, Penstock, Skip

app = Penstock("harvest")

TITLES = {"10.1/x": "On Computable Numbers"}


@app.task(limits={"resolver": "crossref"}, max_attempts=5, timeout=60)
async def fetch(ctx: Context, doi: str) -> dict[str, Any]:
    if doi not in TITLES:
        raise Skip("unknown DOI")
    return {"title": TITLES[doi]}


if __name__ == "__main__":
    app.enqueue(fetch.job(doi="10.1/x"), key="doi:10.1/x")

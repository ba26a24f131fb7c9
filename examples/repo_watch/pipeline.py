# SPDX-License-Identifier: Apache-2.0
"""Watch repositories: keep their issues, and look at each new one once."""

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from penstock import Context, Partitions, Penstock, TickContext

app = Penstock("repo_watch")

forge = app.provider(
    "forge", base_url=os.environ.get("FORGE_URL", "http://127.0.0.1:8080"), max_parallel=16
)


@dataclass(frozen=True)
class Repo:
    owner: str
    name: str

    @property
    def path(self) -> str:
        return f"/repos/{self.owner}/{self.name}"


repos: Partitions[Repo] = app.partitions("repo", of=Repo)  # from [partitions] in penstock.toml


@app.preflight(over=repos, uses=forge, hint="Does it exist, and may you read it?")
async def repository_exists(ctx: Context, repo: Repo) -> dict[str, Any]:
    reply = await forge.http.get(repo.path)
    reply.raise_for_status()
    return {"full_name": reply.json()["full_name"]}


@app.every(timedelta(seconds=2), over=repos, uses=forge, timeout=30)
async def poll_issues(ctx: TickContext, repo: Repo) -> None:
    """Ask for the issues after the last one that was seen; enqueue a job for each."""
    seen = ctx.cursor or {"number": 0, "etag": None}
    headers = {"If-None-Match": seen["etag"]} if seen["etag"] else {}
    url: str | None = f"{repo.path}/issues?since={seen['number']}"
    found: list[dict[str, Any]] = []
    etag = None
    while url is not None:
        reply = await forge.http.get(url, headers=headers)
        if reply.status_code == 304:
            return  # nothing is new
        reply.raise_for_status()
        etag = etag or reply.headers.get("ETag")
        found += reply.json()
        url, headers = reply.links.get("next", {}).get("url"), {}
    for issue in found:
        name = ctx.preflight["repository_exists"]["full_name"]
        job = look_at.job(repository=name, number=issue["number"], title=issue["title"])
        ctx.enqueue(job, key=f"issue:{name}#{issue['number']}")
    if found:
        ctx.cursor = {"number": found[-1]["number"], "etag": None}
    else:
        ctx.cursor = {**seen, "etag": etag}


@app.task()
async def look_at(ctx: Context, repository: str, number: int, title: str) -> str:
    ctx.log.info("%s#%d: %s", repository, number, title)
    return f"{repository}#{number} {title}"

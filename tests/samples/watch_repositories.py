# SPDX-License-Identifier: Apache-2.0
"""What recurs, over what, and what must hold before: all of it typed."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from penstock import Context, Partitions, Penstock, TickContext

app = Penstock("watch")


@dataclass(frozen=True)
class Repo:
    owner: str
    name: str


repos: Partitions[Repo] = app.partitions(
    "repo", [Repo("thumbrise", "autosolve"), Repo("thumbrise", "otelext")]
)
regions = app.partitions("region", lambda: ["eu", "us"], key=str.lower)
shards = app.partitions("shard", of=int)


app.baseline(
    classify=lambda error: ("service", 30.0) if "later" in str(error) else None,
    node=(1, 60),
    degraded=(timedelta(seconds=10), timedelta(minutes=2)),
)


@app.preflight(over=repos, recheck=True, hint="is the name right?")
async def repository_exists(ctx: Context, repo: Repo) -> dict[str, int]:
    return {"id": len(repo.name)}


@app.preflight()
def token_works(ctx: Context) -> None: ...


@app.preflight((repos, regions))
def mirrored(ctx: Context, repo: Repo, region: str) -> bool:
    return bool(repo.name and region)


@app.task()
async def triage(ctx: Context, number: int) -> Any:
    return ctx.preflight["repository_exists"]


@app.every(timedelta(seconds=10), over=repos)
async def poll_issues(ctx: TickContext, repo: Repo) -> None:
    since: int = ctx.cursor or 0
    due: datetime = ctx.due_at
    ctx.log.info("%s of %s, %d missed", due, ctx.partition, ctx.missed)
    ctx.enqueue(triage.job(number=since + 1))
    ctx.cursor = since + 1


@app.every("0 3 * * 1-5", (repos, regions), tz="Europe/Berlin", max_attempts=5, timeout=60)
def mirror(ctx: TickContext, repo: Repo, region: str) -> int:
    return len(repo.name) + len(region)


@app.every(60.0, over=(repos, regions, shards), name="deep")
async def deep_mirror(ctx: TickContext, repo: Repo, region: str, shard: int) -> None: ...


@app.every(timedelta(seconds=2))
async def explain_issues(ctx: TickContext) -> None: ...

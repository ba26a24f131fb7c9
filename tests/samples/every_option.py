# SPDX-License-Identifier: Apache-2.0
"""What a task and a job can say, all of it typed."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlsplit

from penstock import Context, Enqueued, JobRequest, Penstock, SchedulingMetadata, finished

app = Penstock("crawl", store="sqlite:///.penstock/crawl.db")


@dataclass(frozen=True)
class Page:
    url: str
    depth: int = 0


def host_of(page: Page) -> str:
    return urlsplit(page.url).hostname or "nowhere"


@app.task(
    name="visit-page",
    limits={"host": host_of, "kind": "page"},
    group="pages",
    priority=1,
    max_attempts=3,
    timeout=timedelta(minutes=1),
)
async def visit(ctx: Context, page: Page) -> list[str]:
    ctx.log.info("visiting %s, attempt %d", page.url, ctx.job.attempt)
    if page.depth < 2:
        child: str = ctx.enqueue(visit.job(page=Page(f"{page.url}/a", page.depth + 1)))
        ctx.log.debug("found %s", child)
    ctx.progress(1, 1)
    return [page.url]


class Site:
    """Says itself how its tasks share with others."""

    def get_scheduling_metadata(self) -> SchedulingMetadata:
        return SchedulingMetadata.custom_model("crawl", "summary", "1", weight=2)


@app.task(metadata=SchedulingMetadata.model("local", "embedder", "embedding", weight=4))
async def embed(ctx: Context, text: str) -> list[float]:
    return [float(len(text))]


@app.task(timeout=None, executor="process", metadata=Site())
def summarise(ctx: Context, site: str) -> int:
    return 0 if ctx.cancelled else len(site)


def requests() -> Iterator[JobRequest[int]]:
    for number in range(10):
        yield summarise.job(f"site-{number}").with_options(key=f"sum:{number}", delay=1.5)


async def later() -> bool:
    accepted = await app.enqueue_async(summarise.job(site="s"), delay=timedelta(hours=1))
    return accepted.created


if __name__ == "__main__":
    first: Enqueued = app.enqueue(visit.job(Page("https://example.org")), key="root")
    app.enqueue(summarise.job(site="s"), after=[first.key, finished("other")], priority=5)
    print(app.enqueue_many(requests()).created)
    print(app.run(drain=True, slots=8).errors)

# SPDX-License-Identifier: Apache-2.0
"""Jobs that do nothing, accepted and drained by one worker; on either store."""

from __future__ import annotations

from pathlib import Path

from benchmarks.measuring import Answer, stopwatch
from benchmarks.paired.figures import rate_and_cpu, to_answer
from penstock import Context, Penstock

GROUPS = 8
HOSTS = 32
SETTINGS = "[limits.host]\n'*' = 4\n"  # of all together fewer than slots


def measure(store: str, many: int, few: int) -> Answer:
    """Probe: accept jobs in bulk and one by one; drain plain jobs, limited ones, and threads'.

    Args:
        store: an empty one.
        many: jobs at once, which are drained then.
        few: of the dearer kinds: one by one, limited, in threads.
    """
    Path("penstock.toml").write_text(SETTINGS)
    app = Penstock("bench", store=store)

    @app.task()
    async def noop(ctx: Context, n: int) -> int:
        return n

    @app.task(limits={"host": lambda host: host})
    async def visit(ctx: Context, host: str, n: int) -> None: ...

    @app.task()
    def compute(ctx: Context, n: int) -> int:
        return n

    app.enqueue(noop.job(many))
    _drain(app, 1)  # opens the store and imports what a run needs, before the clock runs
    with stopwatch() as bulk:
        app.enqueue_many(noop.job(n).with_options(group=f"g{n % GROUPS}") for n in range(many))
    with stopwatch() as single:
        for n in range(few):
            app.enqueue(noop.job(n), key=f"single-{n}")
    with stopwatch() as plain:
        _drain(app, many + few)
    app.enqueue_many(
        visit.job(f"h{n % HOSTS}", n).with_options(group=f"g{n % GROUPS}") for n in range(few)
    )
    with stopwatch() as limited:
        _drain(app, few)
    app.enqueue_many(compute.job(n) for n in range(few))
    with stopwatch() as threads:
        _drain(app, few)
    app.close()
    return to_answer(
        rate_and_cpu("enqueue_many", "job", many, bulk),
        rate_and_cpu("enqueue, one by one", "job", few, single),
        rate_and_cpu(f"drain, {GROUPS} groups", "job", many + few, plain),
        rate_and_cpu(f"drain, limits of {HOSTS} hosts", "job", few, limited),
        rate_and_cpu("drain, in threads", "job", few, threads),
    )


def _drain(app: Penstock, jobs: int) -> None:
    report = app.run(drain=True)
    if report.done != jobs or report.errors:
        raise RuntimeError(f"{jobs} jobs should be done: {report}")

# SPDX-License-Identifier: Apache-2.0
"""Does each mistake of a new user in Python get an answer with its cause first, and a remedy?"""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

HEAD = dedent("""
    import asyncio
    from datetime import timedelta
    from typing import Any
    from penstock import Context, Partitions, Penstock, Secret, TickContext

    app = Penstock("a")

    @app.task(key="k:{name}")
    async def greet(ctx: Context, name: str) -> str:
        return f"hello {name}"
""")
TASK = "\nasync def f(ctx: Context) -> int: return 1"
TICK = "\nasync def f(ctx: TickContext) -> None: ..."
URL = 'base_url="https://x.org"'
#: what somebody writes → how the answer begins
MISTAKES = {
    # Enqueueing
    'app.enqueue(greet("x"))': "Task 'greet' was called like a function; write greet.job(...)",
    "app.enqueue(greet)": "enqueue takes a job, got Task; write app.enqueue(task.job(...)).",
    'app.enqueue("greet", name="x")': "enqueue takes a job, got str; write app.enqueue(task.job",
    'greet.delay(name="x")': "A task has no attribute 'delay'; write app.enqueue(greet.job(...)).",
    'greet.send("x")': "A task has no attribute 'send'; write app.enqueue(greet.job(...)).",
    "greet.job()": "Task 'greet' is missing the argument 'name'.",
    'greet.job(nam="x")': "Task 'greet' has no argument 'nam'; it takes: 'name'.",
    "greet.job(name=5)": "Task 'greet', argument 'name': expected `str`, got `int`.",
    'app.enqueue(greet.job("x"), countdown=5)': "app.enqueue has no countdown=; here it is delay=.",
    'app.enqueue(greet.job("x"), job_id="a")': "app.enqueue has no job_id=; here it is key=.",
    'app.enqueue(greet.job("x"), key=5)': "A key is text, got 5; write key='5'.",
    'app.enqueue(greet.job("x"), key="a\\0b")': "A key cannot hold control characters: 'a\\x00b'.",
    'app.enqueue(greet.job("x"), after="b")': "`after` takes a list of keys; write after=['b'].",
    'app.enqueue(greet.job("x"), after=greet.job("y"))': "`after` takes a list of keys, or of what",
    'app.enqueue(greet.job("x"), after=[greet.job("y")])': "`after` takes jobs that are",
    "import numpy; greet.job(numpy.int64(5))": "Task 'greet', argument 'name': a value of type "
    "int64, which JSON does not have; give its .item()",
    'app.enqueue(greet.job("x"), after=["b"])': "Job 'b' does not exist, but job 'k:x' is to run",
    'app.enqueue(greet.job("x"), delay="5 minutes")': "A duration is a number of seconds, a",
    'app.enqueue_many(greet.job("x"))': "enqueue_many takes many jobs; for one, write app.enqueue",
    'app.enqueue_many([{"name": "x"}])': "enqueue takes a job, got dict; write app.enqueue(task",
    'Penstock("b", store="x.db").enqueue(greet.job("x"))': "The store 'x.db' is not known; write",
    # Results
    'greet.result("nokey")': "There is no job 'nokey' in the store sqlite:///",
    'greet.result(greet.job("x"))': "A job is asked for by its key, got JobRequest; write 'k:x'.",
    "app.job(5)": "A key is text, got 5; write '5'.",
    'app.enqueue(greet.job("x")); greet.result("k:x")': "Job 'k:x' of task 'greet' has not ended:",
    "app.purge()": "app.purge takes keys of jobs or task=, one of the two: app.purge(",
    # Definitions
    f"@app.task{TASK}": "Write @app.task() with parentheses.",
    f"@app.task(retries=3){TASK}": "@app.task has no retries=; here it is max_attempts=",
    f"@app.task(rate_limit='5/s'){TASK}": "@app.task has no rate_limit=; here it is rpm= of a",
    f"@app.task(wings=2){TASK}": "@app.task has no argument 'wings'.",
    f"@app.task(timeout='soon'){TASK}": "A duration is a number of seconds, a timedelta, or a",
    f"@app.task(retry=3){TASK}": "@app.task: retry= is such as Retry(delay=5, max_delay=600), got",
    f"@app.task(name='greet'){TASK}": "The app 'a' has two tasks named 'greet'; rename one,",
    "@app.task()\nasync def f(x: int) -> int: ...": "The first parameter of task 'f' is 'x: int'",
    "@app.task()\ndef f(ctx: Context) -> Any: yield 1": "Task 'f' is a generator; a task returns",
    'app.provider("x", base_url="api.x.org")': "base_url of provider 'x' must begin with http://",
    f'app.provider("x", {URL}, rps=5)': "app.provider has no rps=; here it is rpm=, a minute's",
    f'app.provider("x", {URL}, api_key="sk-1")': "api_key of provider 'x' is a penstock.Secret: wr",
    f'app.provider("x", {URL}, max_parallel=0)': "max_parallel of provider 'x' is a whole number",
    'asyncio.run(app.provider("x").http.get("/"))': "Provider 'x' is used where no run admits its",
    f"@app.every('@daily'){TICK}": "'@daily' is no interval and no cron expression here; write",
    f"@app.every('1 2 3'){TICK}": "The cron expression '1 2 3' must have five fields (minute hour",
    f"@app.every(0){TICK}": "An interval must be above 0 seconds, got 0.",
    'app.partitions("repo", "abc")': "Partitions 'repo': their values are a list or another iter",
    # Runs
    "app.run(workers=4)": "app.run has no workers=; here it is slots=.",
    "app.run(wings=4)": "app.run has no argument 'wings'.",
    "app.run(max_jobs=0)": "max_jobs must be a whole number from 1 to 1,000,000,000, got 0; leave",
    "async def m(): app.run(drain=True)\nasyncio.run(m())": "app.run() cannot be called on a runn",
}


@pytest.mark.parametrize("written", MISTAKES, ids=lambda written: written.partition("\n")[0][:60])
def test_a_mistake_is_answered_with_its_cause_and_a_remedy(
    written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module: dict[str, object] = {"__name__": "script"}

    with pytest.raises(Exception) as caught:  # noqa: PT011 (the text is what is tested)
        exec(compile(HEAD + written, "script.py", "exec", dont_inherit=True), module)

    assert str(caught.value).startswith(MISTAKES[written]), str(caught.value)
    assert "\n" not in str(caught.value)

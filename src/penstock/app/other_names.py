# SPDX-License-Identifier: Apache-2.0
"""Names that other tools have for our options in Python, told with the mistake."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.errors import UsageError

TASK = {
    "attempts": "max_attempts=",
    "autoretry_for": "no option: a task that raises is tried again, up to max_attempts=",
    "bind": "no option: every task has its context as its first parameter",
    "concurrency": 'limits={"name": "value"}, whose number is set by [limits.name]',
    "default_retry_delay": "retry=Retry(delay=...)",
    "job_timeout": "timeout=",
    "max_retries": "max_attempts=, which counts the first one as well",
    "queue": "group=",
    "rate_limit": "rpm= of a provider that it uses=",
    "retries": "max_attempts=, which counts the first one as well",
    "retry_backoff": "retry=Retry(delay=..., max_delay=...)",
    "retry_delay": "retry=Retry(delay=...)",
    "soft_time_limit": "timeout=",
    "task_id": "key=",
    "time_limit": "timeout=",
}
PROVIDER = {
    "concurrency": "max_parallel=",
    "key": "api_key=Secret.env('NAME')",
    "max_concurrency": "max_parallel=",
    "max_retries": "no option: refusals are waited out, and errors tried again",
    "model": "models=",
    "requests_per_minute": "rpm=",
    "rps": "rpm=, a minute's worth",
    "timeout": "reply_deadline_seconds=",
    "token": "api_key=Secret.env('NAME')",
    "tokens_per_minute": "tpm=",
    "url": "base_url=",
}
ENQUEUE = {
    "args": "task.job(...), which takes the task's own arguments",
    "countdown": "delay=",
    "depends_on": "after=",
    "eta": "delay=",
    "id": "key=",
    "job_id": "key=",
    "kwargs": "task.job(...), which takes the task's own arguments",
    "queue": "group=",
    "run_at": "delay=",
    "task_id": "key=",
    "timeout": "timeout= of @app.task",
}
RUN = {
    "burst": "drain=True",
    "concurrency": "slots=",
    "max_tasks": "max_jobs=",
    "num_workers": "slots=",
    "once": "drain=True",
    "processes": "slots=, or process_slots= for tasks in processes; several workers are started by "
    "'penstock queue run --processes N'",
    "threads": "thread_slots=",
    "workers": "slots=",
}


def refuse(what: str, others: Mapping[str, object], names: Mapping[str, str]) -> None:
    """Raise if there are arguments that we have not: UsageError where we have another name."""
    if not others:
        return
    name = next((one for one in others if one in names), min(others))
    if name in names:
        raise UsageError(f"{what} has no {name}=; here it is {names[name]}.")
    raise TypeError(f"{what} has no argument {name!r}.")

# SPDX-License-Identifier: Apache-2.0
"""What does a user define? The tasks and the providers of one app."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from penstock.clock import Duration, to_seconds
from penstock.definitions.provider import ModelOptions, Provider, ProviderOptions, Uses, models_of
from penstock.definitions.request import check_name
from penstock.definitions.task import (
    CONFIGURED,
    LimitValue,
    Task,
    TaskDecorator,
    TaskOptions,
    check_attempts,
    checked_limits,
    limit_seconds,
)
from penstock.errors import UnknownTask, UsageError
from penstock.model.dataset import SLICE
from penstock.model.reply import ReplyClassifier
from penstock.model.schedule import PREFLIGHT, SCHEDULE
from penstock.model.scheduling import MetadataSource


class Definitions:
    """What one application consists of; each kind of thing by name."""

    def __init__(self, name: str, *, store: str | None = None) -> None:
        check_name("app name", name)
        if "/" in name or name.startswith("."):
            raise UsageError(f"The app name {name!r} must be usable as a file name.")
        self.name = name
        self._code_settings: dict[str, Any] = {} if store is None else {"store": store}
        self.tasks: dict[str, Task[..., Any]] = {}
        self.providers: dict[str, Provider] = {}

    @property
    def code_settings(self) -> dict[str, Any]:
        """What the app says in code, as it would stand in a file of settings."""
        tables = {name: provider.options.table() for name, provider in self.providers.items()}
        return {**self._code_settings, "providers": tables}

    def provider(
        self,
        name: str,
        *,
        base_url: str | None = None,
        max_parallel: int | None = None,
        rpm: float | None = None,
        tpm: float | None = None,
        algorithm: Literal["adaptive", "aimd"] | None = None,
        paid: bool | None = None,
        in_doubt: Literal["resend", "hold"] | None = None,
        idempotency_header: str | None = None,
        models: Mapping[str, ModelOptions | Mapping[str, Any]] | None = None,
        reply_deadline_seconds: Duration | None = None,
        reply_body_bytes_max: int | None = None,
        reply_header_bytes_max: int | None = None,
        classify: ReplyClassifier | None = None,
    ) -> Provider:
        """Define a rate-limited service. Settings (`[providers.NAME]`) override what is said here.

        Args:
            name: how tasks, settings and `penstock providers` call it.
            base_url: what the paths of its requests are added to.
            max_parallel: requests that may be in flight at once, over all its models.
            rpm: requests per minute, over all its models.
            tpm: tokens per minute, over all its models.
            algorithm: how its limit is found: "adaptive" (the default) or "aimd".
            paid: whether its calls cost money: then each is journaled, and an answer that a crash
                would lose is bought once. Off by default.
            in_doubt: what becomes of a paid call that began and of which nobody knows the end:
                "resend" (the default), or "hold" until a person has looked.
            idempotency_header: the header by which it knows a call again, such as
                "Idempotency-Key"; "" for none. Known for OpenAI and Anthropic.
            models: caps and prices of single models, such as `{"gpt-5": {"rpm": 5000,
                "usd_per_million_tokens": {"input": 1.25, "output": 10}}}`.
            reply_deadline_seconds: from the permit to the end of a reply's body.
            reply_body_bytes_max: of a reply's body, on the wire and decoded.
            reply_header_bytes_max: of all headers of a reply.
            classify: says what a reply really is ("rate_limited", "provider_failure", "success"),
                where its status does not; None leaves it to its status.
        """
        deadline = reply_deadline_seconds
        provider = Provider(
            name,
            ProviderOptions(
                base_url=base_url,
                max_parallel=max_parallel,
                rpm=rpm,
                tpm=tpm,
                algorithm=algorithm,
                paid=paid,
                in_doubt=in_doubt,
                idempotency_header=idempotency_header,
                reply_deadline_seconds=None if deadline is None else to_seconds(deadline),
                reply_body_bytes_max=reply_body_bytes_max,
                reply_header_bytes_max=reply_header_bytes_max,
                models=models_of(name, models or {}),
                classify=classify,
            ),
        )
        if name in self.providers:
            raise UsageError(f"The app {self.name!r} has two providers named {name!r}; rename one.")
        self.providers[name] = provider
        return provider

    def task(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        uses: Uses | tuple[Uses, ...] | list[Uses] = (),
        limits: Mapping[str, LimitValue] | None = None,
        group: str | None = None,
        priority: int = 0,
        max_attempts: int | None = None,
        timeout: Duration | None = CONFIGURED,
        executor: Literal["process"] | None = None,
        metadata: MetadataSource | None = None,
    ) -> TaskDecorator:
        """Make a function a task. A task is an `async def` (on the loop) or a `def` (in a thread).

        Args:
            name: what its jobs are called; the function's name otherwise.
            uses: the providers that it calls, or their names: its jobs start only while these can
                serve them. `"NAME/MODEL"` says which model.
            limits: keyed concurrency limits; a value is a constant or a function of the arguments.
            group: the unit of fairness; the task's name otherwise.
            priority: higher goes first, inside a group.
            max_attempts: how many of its own faults a job may have.
            timeout: of one attempt; None for no limit.
            executor: "process" runs either kind in another process, which can be killed: for work
                that holds the GIL, may crash, or does not stop. Only its JSON crosses.
            metadata: how its jobs share with others: the weight of their group.
        """
        if function is not None:
            raise UsageError("Write @app.task() with parentheses.")
        options = TaskOptions(
            group=group,
            priority=priority,
            max_attempts=max_attempts,
            timeout_seconds=limit_seconds(timeout),
            has_timeout=timeout is not None,
            limits=checked_limits(limits),
            executor=executor,
            metadata=metadata,
            uses=uses,
        )

        def decorate(function: Callable[..., Any]) -> Task[..., Any]:
            check_attempts(f"Task {function.__name__!r}", max_attempts)
            own_name = name or function.__name__
            if own_name.startswith((SCHEDULE, PREFLIGHT, SLICE)):
                raise UsageError(
                    f"Task {own_name!r}: names that begin with {SCHEDULE!r}, {PREFLIGHT!r} or "
                    f"{SLICE!r} belong to schedules, preflights and datasets; rename it."
                )
            task: Task[..., Any] = Task(own_name, function, options)
            if task.name in self.tasks:
                raise UsageError(
                    f"The app {self.name!r} has two tasks named {task.name!r}; rename one, or "
                    f"give it a name=."
                )
            self.tasks[task.name] = task
            return task

        return decorate  # type: ignore[return-value]  # the decorator's two overloads

    def find_task(self, name: str) -> Task[..., Any]:
        """The task of this name; UnknownTask with the nearest ones."""
        task = self.tasks.get(name)
        if task is None:
            from difflib import get_close_matches

            near = get_close_matches(name, self.tasks, 1)
            hint = f"; closest: {near[0]!r}" if near else ""
            raise UnknownTask(
                f"No task named {name!r} is registered in app {self.name!r} ({len(self.tasks)} "
                f"are{hint}). Correct the name, or define the task."
            )
        return task

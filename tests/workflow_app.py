# SPDX-License-Identifier: Apache-2.0
"""How is a real workflow run as datasets? One dataset a task, each with one slice."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock import Context, Penstock
from penstock.calendars import Custom
from tests.list_schedule import WorkflowTask

AT = datetime(2024, 1, 1, tzinfo=UTC)
END = AT + timedelta(days=1)


def workflow_app(
    tasks: Sequence[WorkflowTask], note: Callable[[str], None], store: str | None = None
) -> Penstock:
    """An app whose bodies sleep as long as the tasks of a workflow take, and note their names."""
    app = Penstock("workflow", store=store)
    calendar = Custom([AT])
    for task in tasks:
        needs = [tasks[parent].name for parent in task.parents]
        options = {"calendar": calendar, "needs": needs, "name": task.name, "max_attempts": 1}
        app.dataset(**options, timeout=None)(_body(task, needs, note))  # type: ignore[arg-type]
    return app


def last_tasks(tasks: Sequence[WorkflowTask]) -> list[str]:
    """What nobody needs: with it everything is built."""
    needed = {parent for task in tasks for parent in task.parents}
    return [task.name for index, task in enumerate(tasks) if index not in needed]


def _body(task: WorkflowTask, needs: Sequence[str], note: Callable[[str], None]) -> Any:
    async def body(ctx: Context, at: datetime, **slices: object) -> bytes:
        if set(slices) != set(needs):
            raise ValueError(f"{task.name} was given {sorted(slices)[:5]}")
        await asyncio.sleep(task.seconds)
        note(task.name)
        return task.name.encode()

    own = list(inspect.signature(body).parameters.values())[:2]
    kind = inspect.Parameter.KEYWORD_ONLY
    given = [inspect.Parameter(name, kind) for name in needs]
    body.__signature__ = inspect.Signature([*own, *given])  # type: ignore[attr-defined]
    return body

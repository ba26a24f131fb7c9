# SPDX-License-Identifier: Apache-2.0
"""Names that other tools have for our options and commands, told with a mistake."""

from __future__ import annotations

from collections.abc import Collection

#: An option of Celery, RQ, Huey, Dramatiq, Airflow, … → ours, the first that a command has.
_OPTIONS: dict[str, tuple[str, ...]] = {
    "--autoscale": ("--processes",),
    "--burst": ("--drain",),
    "--concurrency": ("--slots",),
    "--database": ("--store",),
    "--db": ("--store",),
    "--debug-level": ("--log-level",),
    "--dry": ("--dry-run",),
    "--end": ("--to",),
    "--end-date": ("--to",),
    "--file": ("--out", "--app"),
    "--format": ("--to", "--json"),
    "--from-date": ("--from",),
    "--jobs": ("--max-jobs", "--processes"),
    "--loglevel": ("--log-level",),
    "--max-tasks": ("--max-jobs",),
    "--module": ("--app",),
    "--num-workers": ("--processes",),
    "--once": ("--drain",),
    "--output": ("--out", "--json"),
    "--parallel": ("--slots",),
    "--port": ("--health",),
    "--retries": ("--max-attempts",),
    "--since": ("--from", "--older-than"),
    "--start": ("--from",),
    "--start-date": ("--from",),
    "--status": ("--state",),
    "--threads-per-worker": ("--threads",),
    "--until": ("--to",),
    "--until-empty": ("--drain",),
    "--verbose": ("--log-level",),
    "--worker-count": ("--processes",),
    "--workers": ("--processes",),
    "-A": ("--app",),
    "-c": ("--slots",),
    "-j": ("--processes",),
    "-l": ("--log-level",),
    "-n": ("--processes", "--limit"),
    "-o": ("--out",),
    "-p": ("--processes",),
    "-v": ("--log-level",),
    "-w": ("--processes",),
    "-y": ("--yes",),
}

#: A command of theirs → ours. What `penstock queue` has is found by its own name.
_COMMANDS = {
    "beat": "run",
    "clear": "queue purge",
    "consume": "queue run",
    "consumer": "queue run",
    "cron": "schedule list",
    "daemon": "run",
    "empty": "queue purge",
    "export": "results",
    "flush": "queue purge",
    "history": "runs",
    "info": "queue stats",
    "inspect": "queue stats",
    "jobs": "queue list",
    "list-jobs": "queue list",
    "ls": "queue list",
    "monitor": "queue stats",
    "new": "init",
    "ps": "queue stats",
    "schedules": "schedule list",
    "scheduler": "run",
    "serve": "run",
    "settings": "config show",
    "start": "run",
    "startproject": "init",
    "status": "queue stats",
    "submit": "queue enqueue",
    "tasks": "queue list",
    "work": "queue run",
    "worker": "queue run",
    "workers": "queue stats",
}


def own_option(typed: str, options: Collection[str]) -> str | None:
    """What an option is called here, among those that a command has; None if nobody knows."""
    name = typed.partition("=")[0]
    return next((own for own in _OPTIONS.get(name, ()) if own in options), None)


def own_command(typed: str, below: str, queue: Collection[str]) -> str | None:
    """What a command is called here, without `penstock`; None if nobody knows.

    Args:
        typed: its name.
        below: the group where it was looked for, such as "queue"; "" for none.
        queue: the commands of `penstock queue`.
    """
    if below != "queue" and typed in queue:
        return f"queue {typed}"
    return _COMMANDS.get(typed)

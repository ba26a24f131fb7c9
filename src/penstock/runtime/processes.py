# SPDX-License-Identifier: Apache-2.0
"""Who runs the bodies of tasks with `executor="process"`?

Processes that are made when needed and wait for more, each with a thread of the worker that talks
to it. One body at a time, so whatever ends a process is that body's own doing. A process can be
killed at any moment; the next body gets a fresh one.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol

import msgspec

from penstock.definitions.context import JobInfo
from penstock.errors import PayloadError, Skip
from penstock.model.job import NewJob
from penstock.retry.classify import Classified, RemoteError
from penstock.runtime import remote
from penstock.runtime.attempt import Encoded, ProcessDied
from penstock.runtime.exits import describe_exit
from penstock.runtime.threads import Done

DEATH_SECONDS = 5.0  # a process whose socket has ended is gone by then, or is killed

#: How a task process is started; a test launcher may put itself in front.
task_command: list[str] = [sys.executable, "-m", "penstock.cli.task_process"]


class RemoteValue(msgspec.Struct, frozen=True):
    """What came back from a body that has returned."""

    encoded: Encoded
    enqueued: tuple[NewJob, ...]


class ProcessRunner(Protocol):
    """Runs a body in another process and reports its end on the loop."""

    def submit(
        self, job: JobInfo, payload: str, began: Callable[[], None], done: Done
    ) -> Callable[[], None]:
        """Start a body; the answer kills it. `began`: its process is there, its time counts."""
        ...

    def close(self) -> None: ...


class TaskProcess:
    """Owns one process and the socket to it. Used by one thread; `kill` by anyone."""

    def __init__(self, order: remote.TaskOrder) -> None:
        self._channel, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                [*task_command, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                cwd=order.folder,
            )
        except BaseException:
            self._channel.close()
            raise
        finally:
            theirs.close()
        with contextlib.suppress(OSError):  # it is dead already: the answer will say so
            remote.send(self._channel, order)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def run(self, call: remote.RunJob, began: Callable[[], None]) -> RemoteValue:
        """Run one body; raises what it raised, or ProcessDied."""
        with contextlib.suppress(OSError):
            remote.send(self._channel, call)
        answer = self._hear()
        if isinstance(answer, remote.Began):
            began()
            answer = self._hear()
        match answer:
            case remote.Returned(result, problem, enqueued):
                return RemoteValue(Encoded(result, problem), enqueued)
            case remote.Raised(kind, message, where, category, wait_seconds):
                raise RemoteError(kind, message, where, Classified(category, wait_seconds))
            case remote.Skipped(reason):
                raise Skip(reason)
            case remote.BadPayload(message):
                raise PayloadError(message)
            case remote.NotLoaded(message):
                raise RuntimeError(f"its process could not load the app: {message}")
        raise RuntimeError("its process began twice")

    def _hear(self) -> remote.FromTask:
        data = remote.receive(self._channel)
        if data is None:
            raise ProcessDied(self._death())
        answer: remote.FromTask = remote.decode_from_task(data)
        return answer

    def _death(self) -> str:
        try:
            self._process.wait(DEATH_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
            return "it closed its connection and did not end"
        return describe_exit(self._process.returncode)

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self.kill()
        self._process.wait()
        self._channel.close()


class _Work:
    """One body on its way: where it runs, and whether it still may."""

    def __init__(self, call: remote.RunJob, began: Callable[[], None], done: Done) -> None:
        self.call = call
        self.began = began
        self.done = done
        self._lock = threading.Lock()
        self._process: TaskProcess | None = None
        self._killed = False

    def begin(self, process: TaskProcess) -> None:
        with self._lock:
            if self._killed:
                raise ProcessDied("it was stopped before it began")
            self._process = process

    def end(self) -> None:
        """From here on the process is somebody else's."""
        with self._lock:
            self._process = None

    def kill(self) -> None:
        with self._lock:
            self._killed = True
            if self._process is not None:
                self._process.kill()


class ProcessPool:
    """Owns the task processes of one worker."""

    def __init__(self, order: remote.TaskOrder, loop: asyncio.AbstractEventLoop) -> None:
        self._order = order
        self._loop = loop
        self._inbox: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._idle = 0
        self._count = 0
        self._lock = threading.Lock()
        self._working: set[_Work] = set()

    def submit(
        self, job: JobInfo, payload: str, began: Callable[[], None], done: Done
    ) -> Callable[[], None]:
        work = _Work(remote.RunJob(job, payload), began, done)
        with self._lock:
            self._working.add(work)
            if self._idle:
                self._idle -= 1
            else:
                self._count += 1
                name = f"penstock-process-{self._count}"
                threading.Thread(target=self._talk, name=name, daemon=True).start()
        self._inbox.put(work)
        return work.kill

    def _talk(self) -> None:
        """Keep one process; hand bodies to it, one at a time."""
        process: TaskProcess | None = None
        try:
            while (work := self._inbox.get()) is not None:
                value, error = None, None
                try:
                    if process is None or not process.alive:
                        process = self._fresh(process)
                    work.begin(process)
                    value = process.run(work.call, partial(self._tell, work.began))
                except BaseException as raised:
                    error = raised
                work.end()
                with self._lock:
                    self._idle += 1
                    self._working.discard(work)
                self._tell(work.done, value, error)
        finally:
            if process is not None:
                process.close()

    def _tell(self, what: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody listens any more
            self._loop.call_soon_threadsafe(what, *arguments)

    def _fresh(self, former: TaskProcess | None) -> TaskProcess:
        if former is not None:
            former.close()
        return TaskProcess(self._order)

    def close(self) -> None:
        """Kill what runs, and let the others go."""
        with self._lock:
            working = list(self._working)
        for work in working:
            work.kill()
        for _ in range(self._count):
            self._inbox.put(None)

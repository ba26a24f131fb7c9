# SPDX-License-Identifier: Apache-2.0
"""The process executor runs the bodies of tasks with `executor="process"`.

Its processes are made when needed and wait for more, each with a thread of the worker that talks
to it. One body at a time, so whatever ends a process is that body's own doing. A process can be
killed at any moment; the next body gets a fresh one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial

import msgspec

from penstock.errors import PayloadError, Skip
from penstock.model.job import NewJob
from penstock.process_identity import describe_exit
from penstock.retry.classify import Classified, FailureClass, RemoteError
from penstock.worker import task_protocol
from penstock.worker.attempt import Encoded, ProcessDied
from penstock.worker.process_guard import end_guarded
from penstock.worker.thread_executor import Done

DEATH_SECONDS = 2.0  # a process whose socket has ended is gone by then, or is killed
GUARD_SECONDS = 10.0  # a guard that was told to kill has ended by then, or is killed itself

#: How a task process is started; a test launcher may put itself in front.
task_command: list[str] = [sys.executable, "-P", "-m", "penstock.processes.task"]


class RemoteValue(msgspec.Struct, frozen=True):
    """What came back from a body that has returned."""

    encoded: Encoded
    enqueued: tuple[NewJob, ...]


def not_started(error: BaseException) -> RemoteError:
    """What a job is told that got no thread or process: the machine has none left, for now."""
    message = f"it could not be started: {error}"
    return RemoteError(type(error).__name__, message, None, Classified(FailureClass.NODE))


class TaskProcess:
    """Owns one process and the socket to it. Used by one thread; `kill` by anyone."""

    def __init__(self, order: task_protocol.TaskOrder) -> None:
        self._channel, theirs = socket.socketpair()
        self._number = 0
        self.fit = True  # another body may run in it
        try:
            self._process = subprocess.Popen(
                [*task_command, str(theirs.fileno()), str(os.getpid())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                cwd=order.folder,
            )
        except BaseException as error:
            self._channel.close()
            raise not_started(error) from error
        finally:
            theirs.close()
        self._pidfd = os.pidfd_open(self._process.pid) if hasattr(os, "pidfd_open") else -1
        with contextlib.suppress(OSError):  # it is dead already: the answer will say so
            task_protocol.send(self._channel, order)

    def run(self, call: task_protocol.RunJob, began: Callable[[], None]) -> RemoteValue:
        """Run one body; raises what it raised, or ProcessDied."""
        self._number += 1
        with contextlib.suppress(OSError):
            task_protocol.send(self._channel, msgspec.structs.replace(call, number=self._number))
        answer = self._hear()
        if isinstance(answer, task_protocol.Began):
            began()
            answer = self._hear()
        match answer:
            case task_protocol.Returned(result, problem, enqueued):
                return RemoteValue(Encoded(result, problem), enqueued)
            case task_protocol.Raised() as raised:
                classified = Classified(
                    raised.category, raised.wait_seconds, refused_at=raised.refused_at
                )
                raise RemoteError(
                    raised.kind, raised.message, raised.where, classified, raised.traceback
                )
            case task_protocol.Skipped(reason):
                raise Skip(reason)
            case task_protocol.BadPayload(message):
                raise PayloadError(message)
            case task_protocol.NotLoaded(message, category):
                message = f"its process could not load the app: {message}"
                raise RemoteError("AppNotFound", message, None, Classified(category))
        self.fit = False
        raise ProcessDied("it began twice")

    def _hear(self) -> task_protocol.FromTask:
        """The next answer to the present body; ProcessDied if there will be none."""
        data = task_protocol.receive(self._channel, self._is_there)
        if data is None:
            self.fit = False
            raise ProcessDied(self._death())
        try:
            said: task_protocol.Answer = task_protocol.decode_from_task(data)
        except msgspec.DecodeError:
            said = task_protocol.Answer(0, task_protocol.Began())
        if said.number != self._number and not isinstance(said.what, task_protocol.NotLoaded):
            self.fit = False
            raise ProcessDied("it answered for another job")
        if said.recycle is not None or isinstance(said.what, task_protocol.NotLoaded):
            self.fit = False
        return said.what

    def _is_there(self) -> bool:
        """Wait for something to read; False if the process is gone, whoever holds its socket."""
        if self._pidfd < 0:
            return True
        waiting = select.poll()
        waiting.register(self._channel, select.POLLIN)
        waiting.register(self._pidfd, select.POLLIN)
        return self._channel.fileno() in {fd for fd, _ in waiting.poll()}

    def _death(self) -> str:
        try:
            self._process.wait(DEATH_SECONDS)
        except subprocess.TimeoutExpired:
            self._end()
            return "it closed its connection and did not end"
        return describe_exit(self._process.returncode)

    def kill(self) -> None:
        end_guarded(self._process)

    def _end(self) -> None:
        """Kill it with all that it has started, and wait until they are gone."""
        self.kill()
        try:
            self._process.wait(GUARD_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        self._end()
        self._channel.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


class _Work:
    """One body on its way: where it runs, and whether it still may."""

    def __init__(self, call: task_protocol.RunJob, began: Callable[[], None], done: Done) -> None:
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

    def end(self) -> bool:
        """From here on the process is somebody else's; False if it was killed."""
        with self._lock:
            self._process = None
            return not self._killed

    def kill(self) -> None:
        with self._lock:
            self._killed = True
            if self._process is not None:
                self._process.kill()


class ProcessPool:
    """Owns the task processes of one worker, and reports the ends of bodies on its loop."""

    def __init__(self, order: task_protocol.TaskOrder, loop: asyncio.AbstractEventLoop) -> None:
        self._order = order
        self._loop = loop
        self._inbox: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._idle = 0
        self._count = 0
        self._lock = threading.Lock()
        self._working: set[_Work] = set()

    def submit(
        self, call: task_protocol.RunJob, began: Callable[[], None], done: Done
    ) -> Callable[[], None]:
        """Start a body; the answer kills it. `began`: its process is there, its time counts."""
        work = _Work(call, began, done)
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                name = f"penstock-process-{self._count + 1}"
                threading.Thread(target=self._talk, name=name, daemon=True).start()
                self._count += 1
            self._working.add(work)
        self._inbox.put(work)
        return work.kill

    def _talk(self) -> None:
        """Keep one process; hand bodies to it, one at a time."""
        process: TaskProcess | None = None
        try:
            while (work := self._inbox.get()) is not None:
                value, error = None, None
                try:
                    if process is None:
                        process = TaskProcess(self._order)
                    work.begin(process)
                    value = process.run(work.call, partial(self._report, work.began))
                except BaseException as raised:
                    error = raised
                if process is not None and not (work.end() and process.fit):
                    process.close()  # whatever comes next starts afresh
                    process = None
                with self._lock:
                    self._idle += 1
                    self._working.discard(work)
                self._report(work.done, value, error)
        finally:
            if process is not None:
                process.close()

    def _report(self, what: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody listens any more
            self._loop.call_soon_threadsafe(what, *arguments)

    def close(self) -> None:
        """Kill what runs, and let the others go."""
        with self._lock:
            working = list(self._working)
        for work in working:
            work.kill()
        for _ in range(self._count):
            self._inbox.put(None)

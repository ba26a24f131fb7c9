# SPDX-License-Identifier: Apache-2.0
"""Entry point of the process of a task with `executor="process"`.

Started by a worker, never by a person. It imports the user's app and runs one body after another,
until its worker is gone or kills it.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import msgspec

from penstock.app.app import Penstock
from penstock.builds.slice import run_remote
from penstock.clock import SystemClock
from penstock.config.find_app import find_app
from penstock.definitions.context import Context
from penstock.errors import AppNotFound, InternalError, PayloadError, Skip
from penstock.logs import set_up_logging
from penstock.model.job import SLICE, JobKind, kind_of_name
from penstock.model.plan import SlicePayload
from penstock.model.views import UpstreamRow
from penstock.output_queue import settle_output
from penstock.process_identity import process_state
from penstock.redaction.secrets import storable_text
from penstock.retry.classify import FailureClass, RemoteError
from penstock.stores.store_future import Reply
from penstock.terminal_text import queue_output
from penstock.worker import task_protocol
from penstock.worker.attempt import encode, message_of, plain_error
from penstock.worker.event_loop import run_on_new_loop
from penstock.worker.process_guard import be_guarded, programs

HIGH_FD = 64  # our own descriptor is out of the way of bodies that close low ones

log = logging.getLogger("penstock.worker")
_decode_upstream = msgspec.json.Decoder(list[UpstreamRow]).decode


def main() -> None:
    """Run what the worker sends until it sends no more."""
    try:
        be_guarded(int(sys.argv[2]))
    except OSError as error:
        said = task_protocol.NotLoaded(
            f"no process is left for its guard: {error}", FailureClass.NODE
        )
        task_protocol.send(_channel(int(sys.argv[1])), task_protocol.Answer(0, said))
        return
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    channel = _channel(int(sys.argv[1]))
    os.register_at_fork(after_in_child=channel.close)  # a double must not answer for us
    with contextlib.suppress(OSError):  # our worker is gone: nobody wants to know
        _serve(channel)


def _serve(channel: socket.socket) -> None:
    data = task_protocol.receive(channel)
    order = None if data is None else task_protocol.decode_to_task(data)
    if not isinstance(order, task_protocol.TaskOrder):
        return
    set_up_logging(order.log_level, order.log_format)
    queue_output()
    try:
        app = _load(order)
    except BaseException as error:
        task_protocol.send(channel, task_protocol.Answer(0, _not_loaded(error)))
        return
    fresh, known, pid = _shared(), programs(), os.getpid()
    while (data := task_protocol.receive(channel)) is not None:
        call = task_protocol.decode_to_task(data)
        if isinstance(call, task_protocol.RunJob):
            task_protocol.send(channel, task_protocol.Answer(call.number, task_protocol.Began()))
            end = _run(app, call)
            settle_output()  # whoever hears of the end may kill us
            if os.getpid() != pid:
                os._exit(0)  # a forked child came back from a body: it is not this process
            recycle = None if _shared() == fresh else "it has changed state that other jobs share"
            if programs() - known - _trackers():
                recycle = "programs that it has started still run"
                log.warning("Job %r has ended; %s, and are ended now.", call.job.key, recycle)
            task_protocol.send(channel, task_protocol.Answer(call.number, end, recycle))


def _shared() -> dict[str, object]:
    """What one body may spoil for the next."""
    return {**process_state(), "streams": [_is_open(fd) for fd in range(3)]}


def _trackers() -> set[int]:
    """A helper that Python itself starts beside its processes, and which ends with this one."""
    module = sys.modules.get("multiprocessing.resource_tracker")
    return {getattr(getattr(module, "_resource_tracker", None), "_pid", None) or 0}


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _channel(fd: int) -> socket.socket:
    high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH_FD)
    os.close(fd)
    return socket.socket(fileno=high)


def _load(order: task_protocol.TaskOrder) -> Penstock:
    for place in order.path:
        if place not in sys.path:
            sys.path.append(place)
    return find_app(order.app, Path(order.folder), Penstock)


def _not_loaded(error: BaseException) -> task_protocol.NotLoaded:
    """Why no body can run here, and whether another process may fare better.

    An app that cannot be imported is half deployed, perhaps: its jobs wait and are not charged. One
    that is not in what was imported, where the worker had it, is defined there only.
    """
    is_mistake = isinstance(error, AppNotFound) and error.__cause__ is None
    category = FailureClass.MISTAKE if is_mistake else FailureClass.NODE
    return task_protocol.NotLoaded(storable_text(message_of(error)), category)


def _run(app: Penstock, call: task_protocol.RunJob) -> task_protocol.FromTask:
    """Run one body, whatever it does."""
    context = Context(
        call.job, call.preflight, lambda: Reply.of(_decode_upstream(call.order or "[]"))
    )
    try:
        encoded = encode(_body(app, call, context))
    except BaseException as error:
        return _raised(plain_error(error, SystemClock().now(), app.registry.retry_policy))
    problem = None if encoded.problem is None else storable_text(encoded.problem)
    return task_protocol.Returned(encoded.text, problem, tuple(context._enqueued or ()))


def _raised(error: BaseException) -> task_protocol.FromTask:
    """Texts that can be sent, and hold no secret of this process."""
    message = storable_text(str(error))
    if isinstance(error, Skip):
        return task_protocol.Skipped(message)
    if isinstance(error, PayloadError):
        return task_protocol.BadPayload(message)
    if not isinstance(error, RemoteError):
        raise InternalError(f"An error was not told: {type(error).__name__}.")
    found = error.classified
    return task_protocol.Raised(
        error.kind,
        message,
        error.where,
        error.traceback,
        found.category,
        found.wait_seconds,
        found.refused_at,
    )


def _body(app: Penstock, call: task_protocol.RunJob, context: Context) -> Any:  # noqa: ANN401 (user's)
    if kind_of_name(call.job.task) is JobKind.SLICE:
        dataset = app.registry.find_dataset(call.job.task.removeprefix(SLICE))
        at = msgspec.json.decode(call.payload, type=SlicePayload).at
        return run_remote(dataset, context, list(at), call.order or "", run_on_new_loop)
    task = app.registry.find_task(call.job.task)
    args, kwargs = task.codec.call_arguments(call.payload)
    if not task.is_async:
        return task.function(context, *args, **kwargs)
    return run_on_new_loop(task.function(context, *args, **kwargs))


if __name__ == "__main__":
    main()

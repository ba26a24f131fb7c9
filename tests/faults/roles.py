# SPDX-License-Identifier: Apache-2.0
"""What can a forked process of a fault test be?"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Callable
from pathlib import Path

from penstock import failpoints
from penstock.clock import MICROSECONDS, BootTime, SystemBootClock
from penstock.definitions.request import to_new_job
from penstock.ids import SystemIds
from penstock.model.job import WorkerId
from penstock.model.lease import ConfiguredCaps, LeaseRequest, WorkerInfo
from penstock.stores.sqlite.store import SqliteStore
from tests.faults import fault_app

STORE = "faults.db"
NOT_HERE = 77  # exit code: this kernel or user may not do it
CLONE_NEWUTS, CLONE_NEWUSER, CLONE_NEWPID = 0x04000000, 0x10000000, 0x20000000


class LaterBootClock:
    """The boot-time clock of this machine some seconds from now."""

    def __init__(self, seconds: float) -> None:
        self._clock = SystemBootClock()
        self.seconds = seconds

    def boot_time(self) -> BootTime:
        now = self._clock.boot_time()
        return BootTime(now.boot_id, now.at + round(self.seconds * MICROSECONDS))


def produce(*keys: str) -> None:
    """Enqueue one job after the other, and note each that was accepted."""
    app = fault_app.app
    for key in keys:
        app.enqueue(fault_app.works.job(), key=key)
        fault_app.write_line("accepted.log", key)
    app.close()


def run() -> None:
    """Work until nothing is left, without a supervisor."""
    fault_app.app.run(drain=True)


def run_on() -> None:
    """Work until stopped."""
    fault_app.app.run()


def sweep(seconds: str) -> None:
    """Take back what has expired some seconds from now, and lease nothing."""
    store = SqliteStore.open(
        Path(STORE), boot_clock=LaterBootClock(float(seconds)), durability="normal"
    )
    sweep_all(store, SystemIds().new_id("sweeper"))
    store.close()


def sweep_all(store: SqliteStore, name: str) -> int:
    """Lease for no task at all until there is nothing left to take back; how many calls it took."""
    worker = WorkerId(name)
    store.register(WorkerInfo(id=worker, run_id="sweep", tasks=()), 60).result()
    request = LeaseRequest(worker=worker, tasks=(), limit=1, caps=ConfiguredCaps())
    calls = 1
    while store.lease(request).result().more:
        calls += 1
    store.retire(worker).result()
    return calls


def be_a_clone() -> None:
    """Be a worker in namespaces of its own, where every clone has the same host name and pid.

    It ends like a crash after its registration. Exit code NOT_HERE if the kernel does not allow it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWPID | CLONE_NEWUTS) and libc.unshare(
        CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWUTS
    ):
        os._exit(NOT_HERE)
    socket.sethostname("clone")
    pid = os.fork()
    if pid:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    failpoints.arm(lambda point: os._exit(0) if point == "lease.in_tx" else None)
    run()
    os._exit(1)


def add_works(store: SqliteStore, *keys: str, seconds: float = 0.0, delay: float = 0.0) -> None:
    requests = [
        fault_app.works.job(seconds=seconds).with_options(key=key, delay=delay) for key in keys
    ]
    store.enqueue([to_new_job(request) for request in requests]).result()


ROLES: dict[str, Callable[..., None]] = {
    "produce": produce,
    "run": run,
    "run_on": run_on,
    "sweep": sweep,
    "be_a_clone": be_a_clone,
}

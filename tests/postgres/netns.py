# SPDX-License-Identifier: Apache-2.0
"""How does a test put a real network between a program and a server, and take it away?

Three network namespaces in a row: the program's, a router's and the server's. The router drops both
ends' packets without a word when told, which is what a partition looks like from either side. The
server itself stays where it is: a socket keeps the namespace in which it was made, so
something of this process (a `Proxy`) listens in the server's namespace.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_CLIENT, _SERVER = "10.83.1.2", "10.83.2.2"
_CLIENT_GATE, _SERVER_GATE = "10.83.1.1", "10.83.2.1"
_CLONE_NEWNET = 0x4000_0000


class NotPermitted(Exception):
    """Network namespaces cannot be made here."""


class Partition:
    """A network of two hosts that can be parted and healed. Goes with this process."""

    def __init__(self) -> None:
        if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
            raise NotPermitted("Network namespaces need root, and ip, unshare and nsenter.")
        self._holders: list[subprocess.Popen[bytes]] = []
        self.parted = False
        try:
            self._client, self._router, self._server = (self._hold() for _ in range(3))
            self._lay(self._client, _CLIENT, _CLIENT_GATE, "client")
            self._lay(self._server, _SERVER, _SERVER_GATE, "server")
            forward = "echo 1 > /proc/sys/net/ipv4/ip_forward"
            self._run(self._router, "sh", "-c", forward)
        except subprocess.CalledProcessError as error:
            self.close()
            said = (error.stderr or b"").decode(errors="replace").strip()
            raise NotPermitted(f"Network namespaces cannot be made here: {said}") from error

    def command(self, command: Sequence[str]) -> list[str]:
        """What to run in place of a command so that it runs in the program's namespace."""
        return [*_inside(self._client), *command]

    def listener(self) -> socket.socket:
        """A bound socket in the server's namespace, for a `Proxy` or a `Pooler`."""
        with _entered(self._server):
            made = socket.socket()
        made.bind((_SERVER, 0))
        return made

    def part(self) -> None:
        """Drop every packet between the two, without a word."""
        for address in (_CLIENT, _SERVER):
            self._run(self._router, "ip", "route", "add", "blackhole", f"{address}/32")
        self.parted = True

    def heal(self) -> None:
        for address in (_CLIENT, _SERVER):
            self._run(self._router, "ip", "route", "del", "blackhole", f"{address}/32")
        self.parted = False

    def close(self) -> None:
        """The namespaces end with those who hold them."""
        for holder in self._holders:
            assert holder.stdin is not None
            holder.stdin.close()
        for holder in self._holders:
            holder.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _hold(self) -> int:
        """A process that keeps a new namespace until our end of its pipe is closed."""
        ready = ("sh", "-c", "ip link set lo up && echo && exec cat > /dev/null")
        holder = subprocess.Popen(
            ["unshare", "--net", *ready],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._holders.append(holder)
        assert holder.stdout is not None
        assert holder.stderr is not None
        with holder.stdout as said, holder.stderr as complained:
            if said.readline() != b"\n":
                raise subprocess.CalledProcessError(1, "unshare", stderr=complained.read())
        return holder.pid

    def _lay(self, host: int, address: str, gate: str, name: str) -> None:
        """A cable between a host and the router, and the host's way through it."""
        add = ("ip", "link", "add", name, "type", "veth", "peer", "name", "cable")
        self._run(self._router, *add, "netns", str(host))
        self._run(self._router, "ip", "address", "add", f"{gate}/24", "dev", name)
        self._run(self._router, "ip", "link", "set", name, "up")
        self._run(host, "ip", "address", "add", f"{address}/24", "dev", "cable")
        self._run(host, "ip", "link", "set", "cable", "up")
        self._run(host, "ip", "route", "add", "default", "via", gate)

    @staticmethod
    def _run(where: int, *command: str) -> None:
        subprocess.run([*_inside(where), *command], check=True, capture_output=True)


def _inside(pid: int) -> list[str]:
    return ["nsenter", "--target", str(pid), "--net", "--"]


@contextlib.contextmanager
def _entered(pid: int) -> Iterator[None]:
    """Be in the network namespace of a process for a moment, with this thread alone."""
    library = ctypes.CDLL(None, use_errno=True)
    here = Path(f"/proc/self/task/{threading.get_native_id()}/ns/net")
    with here.open() as home, Path(f"/proc/{pid}/ns/net").open() as there:
        _enter(library, there.fileno())
        try:
            yield
        finally:
            _enter(library, home.fileno())


def _enter(library: ctypes.CDLL, namespace: int) -> None:
    if library.setns(namespace, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))

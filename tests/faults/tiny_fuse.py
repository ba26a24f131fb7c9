# SPDX-License-Identifier: Apache-2.0
"""How is a FUSE file system mounted without a library? An empty folder, answered by a thread."""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LOOKUP, _FORGET, _GETATTR, _INIT = 1, 2, 3, 26
_ENOENT, _ENOSYS = 2, 38
_IN = struct.Struct("=IIQQIIII")  # length, opcode, unique, node, uid, gid, pid, padding
_OUT = struct.Struct("=IiQ")  # length, error, unique
_ATTR = struct.Struct("=6Q10I")  # ino size blocks atime mtime ctime, then nine numbers and flags


def _answer(opcode: int) -> tuple[int, bytes]:
    """Error and body for one request: the root is an empty folder."""
    if opcode == _INIT:
        return 0, struct.pack("=4I2H2I2H8I", 7, 31, 0, 0, 12, 10, 4096, 1, 0, 0, *([0] * 8))
    if opcode == _GETATTR:
        root = _ATTR.pack(1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40755, 2, 0, 0, 0, 4096, 0)
        return 0, struct.pack("=QII", 0, 0, 0) + root
    return (-_ENOENT if opcode == _LOOKUP else -_ENOSYS), b""


def _serve(device: int) -> None:
    with suppress(OSError):  # the mount is gone
        while True:
            request = os.read(device, 1 << 17)
            _, opcode, unique, *_ = _IN.unpack_from(request)
            if opcode == _FORGET:
                continue
            error, body = _answer(opcode)
            os.write(device, _OUT.pack(_OUT.size + len(body), error, unique) + body)


@contextmanager
def mount_fuse(folder: Path, subtype: str) -> Iterator[None]:
    """Mount it as `fuse.<subtype>`; needs root and mounts of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    kind = f"fuse.{subtype}".encode()
    if libc.mount(b"tiny", os.fsencode(folder), kind, 0, options):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    server = threading.Thread(target=_serve, args=(device,), daemon=True)
    server.start()
    try:
        yield
    finally:
        libc.umount2(os.fsencode(folder), 2)
        os.close(device)

# SPDX-License-Identifier: Apache-2.0
"""How does a test start our command line without paying for its imports each time?

An import of everything costs half a second of CPU, and the tests start hundreds of processes. So
one process imports it once, stays single-threaded, and clones itself on demand. A clone is a child
of the test like one that was started: with its own pid, streams, session, environment and death.
What cannot be cloned (another program, another interpreter's options) is started as usual.
A clone that is a supervisor, or an example, has a nursery of its own for its workers or commands:
a child of it that `tests.processes.children_of` does not tell.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import inspect
import os
import platform
import runpy
import signal
import socket
import subprocess
import sys
import threading
from io import TextIOWrapper
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TextIO

import msgspec

from tests.processes import NURSERY_NAME, REPOSITORY

ORDER_BYTES_MAX = 1 << 17  # an environment, and code
DESCRIPTORS_MAX = 16  # of one clone
OUT_OF_THE_WAY = 200  # descriptors from here on are free in a clone
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
SERVE = "from tests.forked import main; main()"
SAFE_PATH = "-P"  # the one option of an interpreter that a clone follows
STARTERS = {"run", "build", "tests.cloned_commands"}  # whose children are clones, too
CLONE_PARENT = 0x00008000
CLONE_NUMBER = {"x86_64": 56, "aarch64": 220}.get(platform.machine())
_PARAMETERS = tuple(inspect.signature(subprocess.Popen._execute_child).parameters)[1:]  # type: ignore[attr-defined]


class Order(msgspec.Struct):
    """What a clone shall be; its streams come beside it."""

    command: list[str]
    folder: str
    environment: dict[str, str]
    new_session: bool
    process_group: int
    passed: list[int]  # numbers of the descriptors that come after the streams


class Forked(subprocess.Popen[Any]):
    """Is what `subprocess.Popen` is, for `[sys.executable, ...]`; cloned where that is possible."""

    knows: tuple[str, ...] = ()  # modules that a clone need not import, although it does

    def _execute_child(self, *given: Any) -> None:
        named = dict(zip(_PARAMETERS, given, strict=True))
        command = [os.fspath(word) for word in named["args"]]
        environment = dict(os.environ if named["env"] is None else named["env"])
        if not _can_be_cloned(command, environment, named):
            super()._execute_child(*given)  # type: ignore[misc]
            return
        ends = (named["p2cread"], named["c2pwrite"], named["errwrite"])
        streams: list[int] = [own if end == -1 else end for own, end in enumerate(ends)]
        folder = os.fspath(named["cwd"] or os.getcwd())
        passed: list[int] = sorted(named["pass_fds"])
        order = Order(
            command[1:],
            folder,
            environment,
            named["start_new_session"],
            named["process_group"],
            passed,
        )
        self.pid = _nursery(self.knows).clone(order, [*streams, *passed])
        self._child_created = True
        self._close_pipe_fds(  # type: ignore[attr-defined]
            *(named[end] for end in _PARAMETERS if end.startswith(("p2c", "c2p", "err")))
        )


class ForkedWithOpenAI(Forked):
    """The same for what uses the SDK of OpenAI, whose import takes more than a second."""

    knows = ("openai",)


class ForkedWithArrow(Forked):
    """The same for what builds or reads datasets."""

    knows = ("pyarrow.parquet",)


class ForkedWithExchange(Forked):
    """The same for what builds datasets by the sessions of an exchange, which take two seconds."""

    knows = ("tests.known_exchange",)


def run_forked(
    command: list[str],
    *,
    popen: type[Forked] = Forked,
    input: str | bytes | None = None,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Is what `subprocess.run` is."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with popen(command, **options) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    ended = subprocess.CompletedProcess(command, process.returncode, out, err)
    if check:
        ended.check_returncode()
    return ended


def _can_be_cloned(command: list[str], environment: dict[str, str], named: dict[str, Any]) -> bool:
    if CLONE_NUMBER is None or sys.platform != "linux" or command[0] != sys.executable:
        return False
    options = ("preexec_fn", "shell")
    _, (first, *_) = _split(command[1:])
    return (
        (first in ("-m", "-c") or not first.startswith("-"))
        and _at_start(environment) == _at_start(dict(os.environ))
        and not any(named[option] for option in options)
    )


def _split(words: list[str]) -> tuple[bool, list[str]]:
    """Whether the path is kept safe from the folder, and what follows the option."""
    is_safe = words[0] == SAFE_PATH
    return is_safe, words[1:] if is_safe else words


def _at_start(environment: dict[str, str]) -> dict[str, str]:
    """What an interpreter, its libraries or the loader read only once."""
    read = ("PYTHON", "LD_", "LC_", "LANG", "TZ", "MALLOC_")
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(read) and name != "PYTHONPATH"
    }


class Nursery:
    """Knows the process that clones itself for us."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._lock = threading.Lock()

    def clone(self, order: Order, descriptors: list[int]) -> int:
        """Start a process with these streams and more descriptors; its pid."""
        with self._lock:
            socket.send_fds(self._channel, [msgspec.json.encode(order)], descriptors)
            return int(self._channel.recv(32))


_known: dict[tuple[str, ...], Nursery] = {}  # of this process, by what they know besides ours


def _nursery(knows: tuple[str, ...]) -> Nursery:
    if knows not in _known:
        _known[knows] = _start_nursery(knows)
    return _known[knows]


def _start_nursery(knows: tuple[str, ...]) -> Nursery:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(theirs.fileno()), *knows],
        cwd=REPOSITORY,
        env={
            **{name: text for name, text in os.environ.items() if name != "PYTHONPATH"},
            "OPENBLAS_NUM_THREADS": "1",  # so that numpy starts no thread
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=(theirs.fileno(),),
        start_new_session=True,  # a Ctrl-C is for the tests
    )
    theirs.close()
    atexit.register(process.wait)
    atexit.register(ours.close)
    return Nursery(ours)


# ── In the other process ─────────────────────────────────────────────────────────────────────────


def _clone() -> int:
    """As os.fork, but the new process is a child of our parent, who waits for it."""
    python, system = ctypes.pythonapi, ctypes.PyDLL(None)
    python.PyOS_BeforeFork()
    pid = system.syscall(CLONE_NUMBER, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    return int(pid)


def _serve(channel: socket.socket) -> Order | None:
    """Clone on demand; the order of a clone, in the clone."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(
            channel, ORDER_BYTES_MAX, DESCRIPTORS_MAX, socket.MSG_CMSG_CLOEXEC
        )
        if not message:
            return None
        pid = _clone()
        if pid == 0:
            channel.close()
            order = msgspec.json.decode(message, type=Order)
            _be_named(b"python")
            _take(descriptors, [0, 1, 2, *order.passed])
            if order.new_session:
                os.setsid()
            elif order.process_group >= 0:
                os.setpgid(0, order.process_group)
            return order
        for descriptor in descriptors:
            os.close(descriptor)
        channel.send(str(pid).encode())


def _be_named(name: bytes) -> None:
    ctypes.PyDLL(None).prctl(PR_SET_NAME, name, 0, 0, 0)


def _take(descriptors: list[int], numbers: list[int]) -> None:
    """Give descriptors their numbers."""
    for index, descriptor in enumerate(descriptors):
        descriptors[index] = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, OUT_OF_THE_WAY)
        os.close(descriptor)
    for descriptor, number in zip(descriptors, numbers, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)


def _with_own_nursery() -> Order | None:
    """Be a supervisor (None) beside a nursery for its workers, or one of these, with its order."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        _be_named(NURSERY_NAME)
        ctypes.PyDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):  # whoever reads them waits for the supervisor only
            os.dup2(nowhere, stream)
        os.close(nowhere)
        order = _serve(theirs)
        if order is None:
            os._exit(0)
        return order
    theirs.close()
    _known[Forked.knows] = Nursery(ours)
    subprocess.Popen = Forked  # type: ignore[misc]
    return None


def _writer(number: int, before: TextIO) -> TextIOWrapper:
    """A standard stream as an interpreter opens it."""
    at_once = bool(os.environ.get("PYTHONUNBUFFERED"))
    return TextIOWrapper(
        open(number, "wb", 0 if at_once else -1, closefd=False),
        encoding=before.encoding,
        errors=before.errors,
        line_buffering=not at_once and (number == 2 or os.isatty(number)),
        write_through=at_once,
    )


def _become(order: Order) -> None:
    """Be what was ordered, as a new interpreter would."""
    os.chdir(order.folder)
    os.environ.clear()
    os.environ.update(order.environment)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = _writer(1, sys.stdout)
    sys.stderr = _writer(2, sys.stderr)
    more = order.environment.get("PYTHONPATH", "")
    found = [*(more.split(os.pathsep) if more else []), *sys.path[1:]]
    sys.path[:] = dict.fromkeys(found)
    importlib.invalidate_caches()
    is_safe, (kind, *rest) = _split(order.command)
    if not is_safe:
        first = str(Path(kind).resolve().parent)
        sys.path.insert(0, {"-m": order.folder, "-c": ""}.get(kind, first))
    if kind == "-m":
        sys.argv = rest
        sys.modules.pop(rest[0], None)  # it is to be run, not imported
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.modules["__main__"] = main = ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    else:
        sys.argv = [kind, *rest]
        runpy.run_path(kind, run_name="__main__")


def _end(code: int) -> NoReturn:
    """End as an interpreter does, but leave alone what is shared: to take it apart is to copy it.

    Whoever raises something else than an exit ends as usual.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception:
            code = 120
    os._exit(code)


def main() -> None:
    import penstock.app.run
    import penstock.processes.worker
    import penstock.testing  # noqa: F401 (imported once, for all clones)
    from penstock.cli import main as command_line
    from penstock.cli.commands import queue
    from penstock.stores.sqlite import open as sqlite_open

    places = [place for place, _ in [*command_line.COMMANDS.values(), *queue.COMMANDS.values()]]
    for name in [*(place.partition(":")[0] for place in places), *sys.argv[2:]]:
        importlib.import_module(name)
    sqlite_open.statements()
    sqlite_open._sound_objects(sqlite_open.known_steps())  # what every opening of a store looks up
    gc.collect()
    gc.freeze()  # a clone that ends need not look at what it shares
    order = _serve(socket.socket(fileno=int(sys.argv[1])))
    if order is None:
        return
    while STARTERS & set(order.command):
        child = _with_own_nursery()
        if child is None:
            break
        order = child
    try:
        _become(order)
    except SystemExit as ending:
        if not isinstance(ending.code, int | None):
            raise
        _end(ending.code or 0)
    _end(0)

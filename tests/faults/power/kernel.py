# SPDX-License-Identifier: Apache-2.0
"""What did the kernel see of a recorded run, by strace?"""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

from tests.faults.power.log import (
    Create,
    Delete,
    Log,
    Rename,
    Sync,
    SyncFolder,
    Truncate,
    Write,
)

CALLS = (
    "pwrite64,pwritev,pwritev2,write,writev,fdatasync,fsync,sync_file_range,ftruncate,truncate,"
    "fallocate,unlink,unlinkat,rename,renameat,renameat2,mkdir,mkdirat"
)
STRACE = ("strace", "-f", "-y", "-xx", "-s", "1000000", "-e", f"trace={CALLS}")

_LINE = re.compile(r"^(\d+) +(.*)$")
_TEXT = re.compile(r"[<\"]((?:\\x[0-9a-f]{2})*)[>\"]")
_UNFINISHED = " <unfinished ...>"

#: What was done, to which path, and its numbers or the hash of its bytes.
Seen = tuple[str, str, str]


def seen_by_kernel(trace: Path, root: Path) -> list[Seen]:
    """Every successful change below the root, in the order in which the calls ended."""
    seen = []
    for call, arguments in _finished_calls(trace.read_text()):
        texts = [bytes.fromhex(text.replace("\\x", "")) for text in _TEXT.findall(arguments)]
        path = texts[0].decode(errors="replace") if texts else ""
        if not path.startswith(str(root)) or path.endswith("-shm"):
            continue
        name = path.removeprefix(str(root)).removeprefix("/") or "."
        if call == "pwrite64":
            offset = arguments.rpartition(", ")[2]
            seen.append(("write", name, f"{offset} {sha256(texts[1]).hexdigest()}"))
        elif call == "ftruncate":
            seen.append(("truncate", name, arguments.rpartition(", ")[2]))
        elif call in ("fdatasync", "fsync"):
            seen.append(("sync", name, ""))
        elif call in ("unlink", "mkdir"):
            seen.append((call, name, ""))
        elif call == "rename":
            seen.append((call, name, str(Path(texts[1].decode()).relative_to(root))))
        else:
            seen.append((call, name, arguments))  # the recorder knows no such thing
    return seen


def _finished_calls(trace: str) -> list[tuple[str, str]]:
    """Name and arguments of calls that succeeded, those in two parts put together."""
    begun: dict[str, str] = {}
    calls = []
    for line in trace.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        thread, text = match.groups()
        if text.endswith(_UNFINISHED):
            begun[thread] = text.removesuffix(_UNFINISHED)
            continue
        if text.startswith("<... "):
            text = begun.pop(thread) + text.partition(" resumed>")[2]
        name, _, rest = text.partition("(")
        arguments, _, result = rest.rpartition(") ")
        if result.lstrip(" =").partition(" ")[0].isdigit():
            calls.append((name, arguments))
    return calls


def seen_by_recorder(log: Log) -> list[Seen]:
    """The record in the same words; a file that `open` makes is no call of its own."""
    names: dict[int, str] = {}
    seen: list[Seen] = []
    for event in log.events:
        if isinstance(event, Create):
            names[event.file] = event.path
            if event.file == 0:
                seen.append(("mkdir", event.path, ""))
        elif isinstance(event, Write):
            digest = sha256(event.data).hexdigest()
            seen.append(("write", names[event.file], f"{event.offset} {digest}"))
        elif isinstance(event, Truncate):
            seen.append(("truncate", names[event.file], str(event.size)))
        elif isinstance(event, Sync):
            seen.append(("sync", names[event.file], ""))
        elif isinstance(event, SyncFolder):
            seen.append(("sync", event.path, ""))
        elif isinstance(event, Delete):
            seen.append(("unlink", event.path, ""))
        elif isinstance(event, Rename):
            seen.append(("rename", event.source, event.target))
            names = {n: event.target if name == event.source else name for n, name in names.items()}
    return seen

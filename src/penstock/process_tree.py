# SPDX-License-Identifier: Apache-2.0
"""The descendants of a process: which there are, and a signal to each of them.

Linux tells of them in /proc; where it does not, none are found.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from penstock.process_identity import parent_of


def children(pid: int) -> list[int]:
    """The processes that this one has started, or adopted, and not waited for."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):  # a thread that has ended
                text = Path(f"/proc/{pid}/task/{thread}/children").read_text()
                found += map(int, text.split())
    return found


def descendants(root: int) -> Iterator[int]:
    """Children before their own children, as they are found; some may be gone by then."""
    known, rest = {root}, [root]
    while rest:
        pid = rest.pop()
        for child in children(pid):
            if child not in known:
                known.add(child)
                rest.append(child)
                yield child


def signal_descendants(root: int, number: int, spared: str = "") -> int:
    """Send a signal to all of them, but for processes of this name; to how many.

    A number is held while its process is looked at once more: it may be somebody else's by now.
    """
    family, count = {root}, 0
    for pid in descendants(root):
        family.add(pid)
        try:
            held = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            if parent_of(pid) in family and not (spared and _name(pid) == spared):
                signal.pidfd_send_signal(held, number)
                count += 1
        except OSError:  # it has ended, or became somebody else's who may not be signalled
            continue
        finally:
            os.close(held)
    return count


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().rstrip("\n")

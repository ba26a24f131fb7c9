# SPDX-License-Identifier: Apache-2.0
"""Which preflight has killed its process, and what do the others say nevertheless?

A process that dies takes the results of all its checks along. So another one looks: first those
that did not run at the death, together; then those that did, one after another. Who runs alone when
a process dies is to blame, and runs no more.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.supervisor.protocol import Blamed, Check

DEATHS_MAX = 5  # processes that may die before nobody looks any more

BLOCKS = (
    "it had not ended by preflight_timeout and could not be stopped: it blocks the event loop; use "
    "`await`, or make it a `def` preflight, which runs in a thread"
)


class Blame:
    """Owns what is known of the deaths of one start."""

    def __init__(self) -> None:
        self.alone: tuple[str, ...] = ()  # suspects, as people are shown them
        self.blamed: tuple[Blamed, ...] = ()
        self._deaths = 0

    def died(
        self, cause: str, running: Sequence[str], ended: Sequence[Check], *, blocked: bool
    ) -> bool:
        """A process died while these ran; shall another one look?

        Args:
            cause: how it died, for people.
            running: checks that had not ended.
            ended: what is known of others.
            blocked: it was killed, since one of them could not be stopped.
        """
        self._deaths += 1
        passed = {check.unit for check in ended if check.passed}
        suspects = dict.fromkeys(name for name in self.alone if name not in passed)
        if len(running) == 1:
            problem = BLOCKS if blocked else f"the process died while it ran ({cause})"
            self.blamed += (Blamed(running[0], problem),)
            suspects.pop(running[0], None)
        else:
            suspects.update(dict.fromkeys(running))
        self.alone = tuple(suspects)
        return bool(running) and self._deaths < DEATHS_MAX

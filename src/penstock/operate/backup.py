# SPDX-License-Identifier: Apache-2.0
"""Backs up a store while it is in use, and restores one from a backup.

A file replaces a store in a file. A store on a server is backed up and brought back by the server's
own tools; what is left to do then is to void the leases of everybody from before.
"""

from __future__ import annotations

from pathlib import Path

from penstock.clock import Clock, to_micros
from penstock.errors import UsageError
from penstock.model.views import BackupReport, RestorePlan, RestoreReport
from penstock.operate.actions import answer, audit
from penstock.redaction.secrets import redacted_url
from penstock.sentences import command, counted
from penstock.stores.open import copy_of_store, restore_of_store
from penstock.stores.protocol import Store
from penstock.stores.url import is_server
from penstock.terminal_text import escaped


def back_up(url: str, file: Path, *, force: bool, folder: Path) -> BackupReport:
    """Write a consistent copy of an embedded store to a file; relative ones lie in `folder`.

    Args:
        url: of the store.
        file: where to; it must be new, unless
        force: says that it may be overwritten.
        folder: where relative files lie.
    """
    _refuse_server(url, "is backed up by PostgreSQL's own tools, such as pg_dump")
    return copy_of_store(url, file, force=force, folder=folder)


class Restore:
    """One restore of a file into the place of an embedded store. Nothing changes before `run`."""

    def __init__(self, url: str, file: Path, *, folder: Path) -> None:
        after = command("restore", "--after-pg-restore")
        _refuse_server(
            url,
            f"is restored by PostgreSQL's own tools, such as pg_restore; then run '{after}', "
            "which voids every lease from before the restore",
        )
        self._url = url
        self._file = file
        self._work = restore_of_store(url, file, folder=folder)

    def check(self) -> RestorePlan:
        """What it would do; refuses what cannot be restored, and a store that is in use."""
        return self._work.check()

    def run(self) -> RestoreReport:
        """Put the backup in the place of the store; what was there is kept beside it."""
        report = self._work.run()
        audit(self._url, "Restored %s from %r", counted(report.jobs, "job"), str(self._file))
        return report


def refuse_file(url: str) -> None:
    """Refuse to void leases by themselves in a store that is a file: a restore does it there."""
    if not is_server(url):
        raise UsageError(
            f"The store {escaped(url)} is a file: '{command('restore', 'FILE')}' voids its leases "
            "itself."
        )


def void_leases(store: Store, clock: Clock) -> int:
    """Void every lease after the server's tools have restored a store; how many there were.

    Nobody knows which tokens the lost store has handed out: those that follow are above all.
    """
    refuse_file(store.url)
    voided = answer(store.void_leases(to_micros(clock.now())), store)
    audit(store.url, "Voided %d leases after a restore", voided)
    return voided


def _refuse_server(url: str, instead: str) -> None:
    if is_server(url):
        raise UsageError(f"The store {redacted_url(url)} {instead}.")

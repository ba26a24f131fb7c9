# SPDX-License-Identifier: Apache-2.0
"""`penstock queue pause` and `resume`: stop and start leasing for all workers of a store."""

from __future__ import annotations

from penstock.cli.target import AppOption, JsonOption, StoreOption, Target
from penstock.operate.limits import set_paused
from penstock.terminal_text import print_document, say


def pause(app: AppOption = None, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Let no worker take further jobs; what has begun goes on to its end."""
    _set(app, store, paused=True, as_json=as_json)


def resume(app: AppOption = None, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Let workers take jobs again."""
    _set(app, store, paused=False, as_json=as_json)


def _set(app: str | None, store: str | None, *, paused: bool, as_json: bool) -> None:
    with Target.named(app=app, store=store).opened_store() as opened:
        changed = set_paused(opened, paused)
    if as_json:
        print_document({"paused": paused, "changed": changed})
        return
    was = "is" if changed else "was already"
    say(f"The queue {was} {'paused' if paused else 'running'}.")

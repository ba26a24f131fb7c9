# SPDX-License-Identifier: Apache-2.0
"""Observers hear of what they ask for, in the order of their subscription."""

from __future__ import annotations

from penstock.model.job import WorkerId
from penstock.worker.observer import Tick, WorkerObserver
from penstock.worker.parts import Observers

TICK = Tick(WorkerId("w"), is_registered=True, is_stopping=False, late_seconds=0.0)


class Turns(WorkerObserver):
    def __init__(self, name: str, heard: list[str]) -> None:
        self.name = name
        self.heard = heard

    def turned(self, goes_on: bool) -> None:
        self.heard.append(f"{self.name} turned {goes_on}")


class Ticks(WorkerObserver):
    def __init__(self, heard: list[str]) -> None:
        self.heard = heard

    def ticked(self, tick: Tick) -> None:
        self.heard.append(f"ticked {tick.worker}")


def test_events_reach_whoever_overrides_them_in_the_order_of_subscription() -> None:
    heard: list[str] = []
    observers = Observers()
    observers.subscribe((Turns("first", heard), Ticks(heard)))
    observers.subscribe((Turns("second", heard), WorkerObserver()))

    observers.turned(True)
    observers.ticked(TICK)

    assert heard == ["first turned True", "second turned True", "ticked w"]

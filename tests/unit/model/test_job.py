# SPDX-License-Identifier: Apache-2.0
"""The kind of a job, told by names where no lane is at hand."""

from __future__ import annotations

import pytest

from penstock.model.job import JobKind, kind_of_key, kind_of_name


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("work", JobKind.JOB),
        ("scheduled", JobKind.JOB),
        ("schedule:poll", JobKind.TICK),
        ("schedule:poll:a", JobKind.TICK),
        ("preflight:up:a", JobKind.PREFLIGHT),
        ("dataset:prices#root", JobKind.SLICE),
        ("dataset:@step#root", JobKind.STEP),
        ("dataset:@start", JobKind.STEP),
        ("prices@2024-01-05", JobKind.JOB),
    ],
)
def test_a_name_tells_its_kind(name: str, kind: JobKind) -> None:
    assert kind_of_name(name) is kind


def test_what_people_call_a_slice_is_one() -> None:
    assert kind_of_key("prices@2024-01-05") is JobKind.SLICE
    assert kind_of_key("me@example.org") is JobKind.JOB
    assert kind_of_key("schedule:poll@2024-01") is JobKind.TICK

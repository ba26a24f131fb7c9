# SPDX-License-Identifier: Apache-2.0
"""What does a test read of jobs, by their keys?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn, TypeVar

from penstock.model.job import Job

V = TypeVar("V")


class ByKey(dict[str, V]):
    """Values by job key; a missing one says what the job is instead."""

    def __init__(self, values: Mapping[str, V], jobs: Mapping[str, Job], what: str) -> None:
        super().__init__(values)
        self._jobs = jobs
        self._what = what

    def __missing__(self, key: str) -> NoReturn:
        job = self._jobs.get(key)
        if job is None:
            raise KeyError(f"no job has the key {key!r}")
        error = job.last_error
        why = "" if error is None else f": {error.kind}: {error.message}"
        raise KeyError(f"job {key!r} has no {self._what}, it is {job.state.value}{why}")

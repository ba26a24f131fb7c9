# SPDX-License-Identifier: Apache-2.0
"""Penstock runs API-bound Python work crash-safely, close to the speed its providers allow."""

from typing import TYPE_CHECKING

from penstock.app.app import Penstock
from penstock.definitions.context import Context, TickContext
from penstock.definitions.partitions import Partitions
from penstock.definitions.request import Enqueued, EnqueuedMany, JobRequest
from penstock.definitions.result import JobView
from penstock.definitions.retry import Retry
from penstock.errors import BadAnswer, Skip
from penstock.host_key import host_key
from penstock.keyed_limiter import KeyedLimiter
from penstock.model.job import finished
from penstock.model.plan import BuildReport
from penstock.model.request import ReplyFacts
from penstock.model.run import RunProgress, RunReport
from penstock.model.task import SchedulingMetadata
from penstock.model.views import PurgedJobs, RerunJobs, RetriedJobs
from penstock.outputs.read import Slices
from penstock.redaction.secrets import Secret

if TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name: str) -> str:
        """The version, from the metadata of the installed package: read when it is asked for."""
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib.metadata import version

        return version("penstock")


__all__ = [
    "BadAnswer",
    "BuildReport",
    "Context",
    "Enqueued",
    "EnqueuedMany",
    "JobRequest",
    "JobView",
    "KeyedLimiter",
    "Partitions",
    "Penstock",
    "PurgedJobs",
    "ReplyFacts",
    "RerunJobs",
    "RetriedJobs",
    "Retry",
    "RunProgress",
    "RunReport",
    "SchedulingMetadata",
    "Secret",
    "Skip",
    "Slices",
    "TickContext",
    "__version__",
    "finished",
    "host_key",
]

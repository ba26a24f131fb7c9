# SPDX-License-Identifier: Apache-2.0
"""Penstock runs API-bound Python work crash-safely, close to the speed its providers allow."""

from penstock.app.app import Penstock
from penstock.definitions.context import Context, TickContext
from penstock.definitions.partitions import Partitions
from penstock.definitions.request import Enqueued, JobRequest
from penstock.errors import BadAnswer, Skip
from penstock.host_key import host_key
from penstock.keyed_limiter import KeyedLimiter
from penstock.model.job import finished
from penstock.model.request import ReplyFacts
from penstock.model.task import SchedulingMetadata
from penstock.outputs.read import Slices
from penstock.redaction.secrets import Secret

__all__ = [
    "BadAnswer",
    "Context",
    "Enqueued",
    "JobRequest",
    "KeyedLimiter",
    "Partitions",
    "Penstock",
    "ReplyFacts",
    "SchedulingMetadata",
    "Secret",
    "Skip",
    "Slices",
    "TickContext",
    "finished",
    "host_key",
]

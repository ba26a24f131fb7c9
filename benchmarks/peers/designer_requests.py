# SPDX-License-Identifier: Apache-2.0
"""How is the request admission of NeMo Data Designer driven? Without a listener to events."""

from __future__ import annotations

from data_designer.engine.models.request_admission.controller import (
    AdaptiveRequestAdmissionController,
)
from data_designer.engine.models.request_admission.outcomes import RequestReleaseOutcome
from data_designer.engine.models.request_admission.resources import (
    RequestAdmissionItem,
    RequestDomain,
    RequestGroupSpec,
    RequestResourceKey,
)

from benchmarks.peers.permits import Permits

PACKAGE = "data-designer"


def open_permits(cap: int, algorithm: str) -> Permits:
    """A controller with one resource; its algorithm is always the plain one."""
    controller = AdaptiveRequestAdmissionController()
    controller.register(
        provider_name="provider", model_id="model", alias="alias", max_parallel_requests=cap
    )
    resource = RequestResourceKey("provider", "model", RequestDomain.CHAT)
    group = RequestGroupSpec(resource)
    success = RequestReleaseOutcome(kind="success")
    return Permits(
        lambda: controller.acquire_async(RequestAdmissionItem(resource, group)),
        lambda lease: controller.release(lease, success),
    )

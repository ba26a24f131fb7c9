# SPDX-License-Identifier: Apache-2.0
"""Which nginx does a test get? One of its own, with the limits that it names."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # what is imported here is imported for every test
    from tests.nginx.server import Nginx, NginxLimits

MakeNginx = Callable[[str, "NginxLimits"], "Nginx"]


@pytest.fixture
def make_nginx() -> Iterator[MakeNginx]:
    """Start servers before an upstream's URL; they end with the test."""
    from tests.nginx.binary import NoNginx
    from tests.nginx.server import Nginx

    with contextlib.ExitStack() as stack:

        def make(upstream: str, limits: NginxLimits) -> Nginx:
            try:
                return stack.enter_context(Nginx(upstream, limits))
            except NoNginx as error:
                pytest.skip(f"no nginx: {error}")

        yield make

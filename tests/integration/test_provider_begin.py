# SPDX-License-Identifier: Apache-2.0
"""Is what sends requests made before the first job, and beside the loop?"""

from __future__ import annotations

import ssl
import threading
from pathlib import Path

import httpx2
import pytest

from penstock import Context, Penstock
from penstock.testing import ProviderRules, SimulatedProvider


def test_certificates_are_read_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[threading.Thread] = []
    loops: list[threading.Thread] = []

    read = httpx2.create_ssl_context

    def noted() -> ssl.SSLContext:
        made.append(threading.current_thread())
        return read()

    monkeypatch.setattr(httpx2, "create_ssl_context", noted)
    with SimulatedProvider(ProviderRules(latency=0.0)) as server:
        app = Penstock("shop", store=f"sqlite:///{tmp_path}/shop.db")
        api = app.provider("api", base_url=server.url)

        @app.task(uses=api)
        async def fetch(ctx: Context) -> int:
            loops.append(threading.current_thread())
            return int((await api.http.get("/")).status_code)

        app.enqueue(fetch.job())
        assert app.run(drain=True).done == 1

    assert len(made) == len(loops) == 1
    assert made[0] is not loops[0]


def test_certificates_that_cannot_be_read_are_told_by_the_job_that_needs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> ssl.SSLContext:
        raise ValueError("no certificates")

    monkeypatch.setattr(httpx2, "create_ssl_context", broken)
    app = Penstock("shop", store=f"sqlite:///{tmp_path}/shop.db")
    api = app.provider("api", base_url="http://api.invalid")

    @app.task(uses=api, max_attempts=1)
    async def fetch(ctx: Context) -> None:
        await api.http.get("/")

    @app.task()
    async def other(ctx: Context) -> None:
        """Needs nobody."""

    app.enqueue(fetch.job())
    app.enqueue(other.job())
    report = app.run(drain=True)

    assert (report.done, report.errors) == (1, 1)

# SPDX-License-Identifier: Apache-2.0
"""Is it said, once, that a request goes elsewhere than its provider's base URL?"""

from __future__ import annotations

import pytest

from penstock import Context, Penstock
from penstock.requests.host_check import WARNINGS_MAX, HostCheck
from penstock.testing import SimulatedProvider, harness


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.message for one in caplog.records if "goes to the host" in one.message]


def test_a_request_to_another_host_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    app = Penstock("shop")
    api = app.provider("api", base_url="https://API.example./v1")

    @app.task()
    async def fetch(ctx: Context, url: str) -> None:
        await api.http.get(url)

    with harness(app, providers={"api": SimulatedProvider()}) as t:
        for url in (
            "/a",
            "https://api.example/b",
            "https://other.example/",
            "https://other.example/",
        ):
            t.enqueue(fetch.job(url=url))
        t.drain()
        assert set(t.states.values()) == {"done"}

    (said,) = told(caplog)
    assert said.startswith(
        "A request of provider 'api' goes to the host 'other.example' and not to 'api.example."
    )


@pytest.mark.parametrize(
    ("base_url", "host"),
    [
        ("https://xn--bcher-kva.example", "bücher.example"),
        ("https://bücher.example", "xn--bcher-kva.example"),
        ("http://[::1]:80", "::1"),
        (None, "anywhere.example"),
        ("https://api.example", ""),
    ],
)
def test_another_spelling_of_the_host_is_not_another_host(
    base_url: str | None, host: str, caplog: pytest.LogCaptureFixture
) -> None:
    HostCheck("api", base_url).check(host)

    assert told(caplog) == []


def test_a_provider_that_goes_everywhere_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hosts = HostCheck("api", "https://api.example")

    for n in range(10 * WARNINGS_MAX):
        hosts.check(f"h{n}.example")

    assert len(told(caplog)) == WARNINGS_MAX

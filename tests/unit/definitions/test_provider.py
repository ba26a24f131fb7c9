# SPDX-License-Identifier: Apache-2.0
"""Is what a user says about a provider checked at once, and reached only where a run serves it?"""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Context, Penstock
from penstock.definitions.context import JobInfo
from penstock.definitions.provider import Provider, ProviderOptions
from penstock.errors import ProviderNotAvailableHere, UsageError
from penstock.model.provider import ANY, Endpoint, RequestResourceKey


class Clients:
    """What a run would give."""

    base_url = "https://api.example/v1"
    dialect = None
    http = "http"
    http_sync = "http_sync"

    def http_client(self, library: str) -> str:
        return f"async {library}"

    def http_client_sync(self, library: str) -> str:
        return f"sync {library}"

    def admit(self, model: str | None, domain: str, tokens: int | None) -> Any:
        return (model, domain, tokens)


def test_a_provider_is_found_by_its_name() -> None:
    app = Penstock("shop")

    provider = app.provider(
        "ai", base_url="https://ai.example/v1", max_parallel=3, models={"m": {"rpm": 5}}
    )

    assert app.providers == {"ai": provider}
    assert provider.options.models["m"].rpm == 5
    assert repr(provider) == "<Provider 'ai'>"


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"base_url": "ai.example"}, "base_url of provider 'ai' must begin with http://"),
        ({"base_url": 3}, "base_url of provider 'ai' must be text, got 3"),
        ({"max_parallel": 0}, "max_parallel of provider 'ai' is a whole number from 1 to"),
        ({"max_parallel": True}, "max_parallel of provider 'ai' is a whole number"),
        ({"max_parallel": 2.0}, "max_parallel of provider 'ai' is a whole number"),
        ({"rpm": 0}, "rpm of provider 'ai' is a number from 1e-09 to 1e+12, got 0"),
        ({"rpm": float("inf")}, "rpm of provider 'ai' is a number from 1e-09 to 1e+12, got inf"),
        ({"tpm": "9"}, "tpm of provider 'ai' is a number from 1e-09 to 1e+12, got '9'"),
        ({"rpm": 10**400}, "rpm of provider 'ai' is a number from 1e-09 to 1e+12, got 1000"),
        ({"tpm": 5e-324}, "tpm of provider 'ai' is a number from 1e-09 to 1e+12, got 5e-324"),
        ({"algorithm": "magic"}, "algorithm of provider 'ai' is 'adaptive' or 'aimd', got 'magic'"),
        ({"models": ["m"]}, "models of provider 'ai' is a mapping such as"),
        ({"models": {"m": 3}}, "options of model 'm' of provider 'ai' must be a mapping, got 3"),
        ({"models": {"m": {"rmp": 3}}}, "'rmp' is not an option of model 'm'"),
        ({"models": {"m": {"rpm": -1}}}, "rpm of model 'm' of provider 'ai' is a number from"),
        ({"models": {"": {}}}, "A model name of provider 'ai' has 1 to"),
    ],
)
def test_what_cannot_be_is_refused_by_name(said: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        Penstock("shop").provider("ai", **said)

    assert says in str(caught.value)


@pytest.mark.parametrize("name", ["", "a/b", "a\nb", "x" * 1000, 7])
def test_a_name_that_cannot_be_is_refused(name: Any) -> None:
    with pytest.raises(UsageError):
        Penstock("shop").provider(name)


def test_two_providers_of_one_name_are_refused() -> None:
    app = Penstock("shop")
    app.provider("ai")

    with pytest.raises(UsageError, match="The app 'shop' has two providers named 'ai'"):
        app.provider("ai")


def test_a_provider_without_a_run_is_not_available() -> None:
    provider = Provider("ai", ProviderOptions())

    for use in (
        lambda: provider.http,
        lambda: provider.http_sync,
        provider.http_client,
        provider.http_client_sync,
        lambda: Context(JobInfo("k", "t", 1, None)).admit(provider),
    ):
        with pytest.raises(ProviderNotAvailableHere, match="Provider 'ai' is used where no run"):
            use()


def test_a_run_gives_clients_and_takes_them_back() -> None:
    provider, clients = Provider("ai", ProviderOptions()), Clients()
    context = Context(JobInfo("k", "t", 1, None))

    provider.bind(clients)

    assert (provider.http, provider.http_sync) == ("http", "http_sync")
    assert provider.http_client("httpx") == "async httpx"
    assert provider.http_client_sync() == "sync httpx2"
    admitted: Any = context.admit(provider, domain="chat", model="m", tokens=5)
    assert admitted == ("m", "chat", 5)
    with pytest.raises(UsageError, match="serves another run of this program"):
        provider.bind(Clients())
    provider.unbind(Clients())
    assert provider.http == "http"
    provider.unbind(clients)
    provider.unbind(clients)
    with pytest.raises(ProviderNotAvailableHere):
        _ = provider.http


def test_admit_takes_a_provider() -> None:
    with pytest.raises(UsageError, match=r"ctx\.admit takes a provider, .* got 'ai'"):
        Context(JobInfo("k", "t", 1, None)).admit("ai")  # type: ignore[arg-type]


def test_what_a_task_uses_becomes_its_endpoints() -> None:
    app = Penstock("shop")
    ai = app.provider("ai", max_parallel=3)

    @app.task(uses=ai)
    async def one(ctx: Context) -> None: ...

    @app.task(uses=[ai, "b/m", "b/m"])
    def two(ctx: Context) -> None: ...

    @app.task()
    def none(ctx: Context) -> None: ...

    whole = Endpoint(RequestResourceKey("ai", ANY, ANY), "ai", 3)
    assert one.scheduling.endpoints == (whole,)
    assert two.endpoints == (whole, Endpoint(RequestResourceKey("b", "m", ANY), "b/m"))
    assert none.endpoints == ()


@pytest.mark.parametrize("uses", [7, [None], {"ai"}])
def test_what_a_task_cannot_use_is_refused(uses: Any) -> None:
    app = Penstock("shop")

    with pytest.raises(UsageError, match="Task 'one': uses= takes providers or their names"):

        @app.task(uses=uses)
        async def one(ctx: Context) -> None: ...


def test_a_task_in_another_process_uses_no_provider() -> None:
    app = Penstock("shop")

    with pytest.raises(ProviderNotAvailableHere, match="Task 'one' runs in another process"):

        @app.task(uses="ai", executor="process")
        def one(ctx: Context) -> None: ...

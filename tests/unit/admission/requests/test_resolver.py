# SPDX-License-Identifier: Apache-2.0
"""Which resource does a request ask for, and which names are one?"""

from __future__ import annotations

import pytest

from penstock.admission.requests.policy import ProviderPolicy, RequestCaps
from penstock.admission.requests.resolver import (
    PROVIDER_WIDE,
    DeclaredProvider,
    RequestResourceResolver,
    domain_of,
)
from penstock.errors import UsageError
from penstock.model.provider import RequestResourceKey as Key
from penstock.model.request import DeclaredCap


def declared(
    name: str,
    url: str | None = None,
    *,
    cap: int | None = None,
    models: dict[str, int] | None = None,
    model: str | None = None,
    aliases: dict[str, str] | None = None,
) -> DeclaredProvider:
    caps = {key: RequestCaps(most) for key, most in (models or {}).items()}
    policy = ProviderPolicy(name, RequestCaps(cap), caps)
    return DeclaredProvider(policy, url, model, aliases or {})


@pytest.mark.parametrize(
    ("path", "domain"),
    [
        ("/v1/chat/completions", "chat"),
        ("/v1/chat/completions/?stream=1", "chat"),
        ("/v1/completions", "chat"),
        ("/v1/messages", "chat"),
        ("/v1/Responses", "chat"),
        ("/v1/embeddings", "embedding"),
        ("/v1/images/generations", "image"),
        ("/v1/images/edits", "image"),
        ("/v1beta/models/gemini-3:generateContent", "chat"),
        ("/v1beta/models/gemini-3:streamGenerateContent", "chat"),
        ("/v1beta/models/embed-2:batchEmbedContents", "embedding"),
        ("/v1/messages/batches", "http"),
        ("/works/10.1000/messages.txt", "http"),
        ("/models", "http"),
        ("/", "http"),
        ("", "http"),
    ],
)
def test_the_domain_comes_from_the_path(path: str, domain: str) -> None:
    assert domain_of(path) == domain


def test_the_model_comes_from_the_body() -> None:
    resolver = RequestResourceResolver([declared("openai", "https://api.openai.com/v1")])

    key = resolver.resolve("openai", host="api.openai.com", path="/v1/responses", model="gpt-5")

    assert key == Key("openai", "gpt-5", "chat")


@pytest.mark.parametrize("model", [None, 7, "", "x" * 300, "a\nb", ["gpt"]])
def test_what_is_no_name_of_a_model_is_as_good_as_none(model: object) -> None:
    key = RequestResourceResolver([]).resolve(
        "p", host="Api.Example.ORG.", path="/v1/messages", model=model
    )

    assert key == Key("p", "api.example.org", "chat")


def test_a_path_may_name_the_model() -> None:
    resolver = RequestResourceResolver([])

    google = resolver.resolve("g", host="h", path="/v1beta/models/gemini-3:generateContent")
    azure = resolver.resolve("a", host="h", path="/openai/deployments/mine/chat/completions")

    assert (google.model, azure.model) == ("gemini-3", "mine")


def test_of_plain_http_the_model_is_the_host_or_what_the_user_says() -> None:
    resolver = RequestResourceResolver([declared("web"), declared("crossref", model="works")])

    assert resolver.resolve("web", host="a.org", path="/x", model="Audi").model == "a.org"
    assert resolver.resolve("crossref", host="a.org", path="/x").model == "works"
    assert resolver.resolve("web", model="own", domain="http").model == "own"
    assert resolver.resolve("web", domain="http").model == "web"


def test_a_domain_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="'speech'"):
        RequestResourceResolver([]).resolve("p", domain="speech")


def test_providers_of_one_base_url_are_one_and_share_the_least_cap() -> None:
    resolver = RequestResourceResolver(
        [
            declared("openai", "https://api.openai.com/v1", cap=20, models={"gpt-5": 8}),
            declared("bulk", "HTTPS://API.openai.com.:443/v1/", cap=5, models={"gpt-5": 12}),
            declared("other", "https://api.openai.com:8443/v1", cap=9),
        ]
    )

    openai, other = resolver.policies()

    assert resolver.resolve("bulk", model="gpt-5", domain="chat") == Key("openai", "gpt-5", "chat")
    assert (openai.name, openai.caps.max_parallel) == ("openai", 5)
    assert openai.model_caps("gpt-5").max_parallel == 8
    assert openai.contributors == {
        PROVIDER_WIDE: (DeclaredCap("openai", 20), DeclaredCap("bulk", 5)),
        "gpt-5": (DeclaredCap("openai/gpt-5", 8), DeclaredCap("bulk/gpt-5", 12)),
    }
    assert (other.name, other.caps.max_parallel) == ("other", 9)


def test_aliases_of_a_model_are_one_and_share_the_least_cap() -> None:
    resolver = RequestResourceResolver(
        [
            declared(
                "p",
                models={"gpt-5": 8, "latest": 3, "judge": 5},
                aliases={"latest": "gpt-5", "judge": "latest"},
            )
        ]
    )

    (policy,) = resolver.policies()

    assert resolver.resolve("p", model="judge", domain="chat").model == "gpt-5"
    assert {name: caps.max_parallel for name, caps in policy.models.items()} == {"gpt-5": 3}
    assert [one.alias for one in policy.contributors["gpt-5"]] == ["p/gpt-5", "p/latest", "p/judge"]


def test_aliases_in_a_circle_and_names_used_twice_are_refused() -> None:
    with pytest.raises(UsageError, match="circle"):
        RequestResourceResolver([declared("p", aliases={"a": "b", "b": "a"})])
    with pytest.raises(UsageError, match="Two providers"):
        RequestResourceResolver([declared("p"), declared("p")])

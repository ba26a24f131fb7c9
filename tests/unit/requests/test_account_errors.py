# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 (a table of wordings)
"""What providers write when an account is dead, and what only sounds like it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.requests.account_errors import STATUSES, account_problem


def openai(message: str, kind: str | None = None, code: Any = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def anthropic(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


QUOTA = "You exceeded your current quota, please check your plan and billing details."

#: provider, status, body.
CLOSED: list[tuple[str, int, Any]] = [
    ("OpenAI", 401, openai("Incorrect API key provided: sk-x.", None, "invalid_api_key")),
    ("OpenAI", 401, openai("You must be a member of an organization to use the API.")),
    ("OpenAI", 429, openai(QUOTA, "insufficient_quota", "insufficient_quota")),
    (
        "OpenAI",
        400,
        openai("Billing hard limit has been reached", None, "billing_hard_limit_reached"),
    ),
    (
        "OpenAI",
        429,
        openai("Your account is not active.", "billing_not_active", "billing_not_active"),
    ),
    ("OpenAI", 403, openai("Country not supported", None, "unsupported_country_region_territory")),
    ("Anthropic", 401, anthropic("authentication_error", "invalid x-api-key")),
    (
        "Anthropic",
        400,
        anthropic(
            "invalid_request_error",
            "Your credit balance is too low to access the Anthropic API. Please go to Plans & "
            "Billing to upgrade or purchase credits.",
        ),
    ),
    ("Anthropic", 402, anthropic("billing_error", "There is an issue with your billing.")),
    (
        "Anthropic",
        403,
        anthropic(
            "permission_error", "Your API key does not have permission to use this resource."
        ),
    ),
    ("Anthropic", 400, anthropic("invalid_request_error", "This organization has been disabled.")),
    (
        "Anthropic",
        400,
        anthropic("invalid_request_error", "You have reached your specified API usage limits."),
    ),
    ("Mistral", 401, {"message": "Unauthorized", "request_id": "1"}),
    ("Mistral", 401, {"detail": "Inactive subscription or usage limit reached"}),
    (
        "Gemini",
        400,
        [
            {
                "error": {
                    "code": 400,
                    "message": "API key not valid. Please pass a valid API key.",
                    "status": "INVALID_ARGUMENT",
                    "details": [{"reason": "API_KEY_INVALID"}],
                }
            }
        ],
    ),
    (
        "Gemini",
        403,
        {
            "error": {
                "code": 403,
                "message": "Generative Language API has not been used in project 1 before.",
                "status": "PERMISSION_DENIED",
                "details": [{"reason": "SERVICE_DISABLED"}],
            }
        },
    ),
    (
        "Azure OpenAI",
        401,
        {
            "error": {
                "code": "401",
                "message": "Access denied due to invalid subscription key or wrong API endpoint.",
            }
        },
    ),
    ("Azure OpenAI", 403, {"error": {"code": "403", "message": "Out of call volume quota."}}),
    ("Groq", 401, openai("Invalid API Key", "invalid_request_error", "invalid_api_key")),
    (
        "Groq",
        400,
        openai(
            "Organization has been restricted.", "invalid_request_error", "organization_restricted"
        ),
    ),
    ("Together", 401, openai("Invalid API key provided.", None, "invalid_api_key")),
    (
        "Together",
        402,
        openai("Credit limit exceeded, please add a payment method.", "credit_limit"),
    ),
    ("OpenRouter", 401, {"error": {"message": "No auth credentials found", "code": 401}}),
    ("OpenRouter", 402, {"error": {"message": "Insufficient credits.", "code": 402}}),
    ("OpenRouter", 403, {"error": {"message": "Key limit exceeded (total limit).", "code": 403}}),
    (
        "DeepSeek",
        401,
        openai("Authentication Fails", "authentication_error", "invalid_request_error"),
    ),
    ("DeepSeek", 402, openai("Insufficient Balance", "unknown_error", "invalid_request_error")),
    ("Cohere", 401, {"message": "invalid api token"}),
    ("Cohere", 402, {"message": "Please add or update your payment method."}),
    (
        "xAI",
        400,
        {
            "code": "Client specified an invalid argument",
            "error": "Incorrect API key provided: xa***. You can obtain an API key from the console.",
        },
    ),
    (
        "xAI",
        429,
        {
            "code": "Some resource has been exhausted",
            "error": "Your team 1 has either used all available credits or reached its monthly "
            "spending limit.",
        },
    ),
    ("Fireworks", 401, openai("The API key you provided is invalid.", "invalid_request_error")),
    (
        "Fireworks",
        412,
        openai("Account a is suspended, possibly due to reaching the monthly spending limit."),
    ),
    ("Perplexity", 401, "<html><head><title>401 Authorization Required</title></head></html>"),
    ("Hugging Face", 402, {"error": "You have exceeded your monthly included credits."}),
    ("a proxy", 401, ""),
]

NOT_CLOSED: list[tuple[str, int, Any]] = [
    ("OpenAI", 429, openai("Rate limit reached for gpt-5", "tokens", "rate_limit_exceeded")),
    ("OpenAI", 429, openai("Rate limit reached. Add a payment method to increase it.", "requests")),
    ("OpenAI", 400, openai("maximum context length is 8192", None, "context_length_exceeded")),
    (
        "OpenAI",
        403,
        openai("Project p does not have access to model gpt-5", None, "model_not_found"),
    ),
    ("OpenAI", 400, openai("Invalid value: 'api_key'. Supported values are: 'x'.", None, None)),
    ("Anthropic", 429, anthropic("rate_limit_error", "This would exceed your rate limit.")),
    ("Anthropic", 400, anthropic("invalid_request_error", "max_tokens: must be above 0")),
    ("Anthropic", 403, anthropic("permission_error", "This model is in preview.")),
    ("Mistral", 429, {"message": "Requests rate limit exceeded", "type": "rate_limited"}),
    (
        "Gemini",
        429,
        {"error": {"code": 429, "message": QUOTA, "status": "RESOURCE_EXHAUSTED"}},
    ),
    (
        "Azure OpenAI",
        400,
        {
            "error": {
                "code": "content_filter",
                "message": "The response was filtered: purchase more credits",
                "innererror": {"code": "ResponsibleAIPolicyViolation"},
            }
        },
    ),
    ("Azure OpenAI", 429, {"error": {"code": "429", "message": "exceeded token rate limit"}}),
    (
        "Groq",
        429,
        openai("Rate limit reached on tokens per day (TPD)", "tokens", "rate_limit_exceeded"),
    ),
    ("Together", 403, openai("Input tokens + max_tokens must fit the context length, api key")),
    (
        "OpenRouter",
        403,
        {
            "error": {
                "code": 403,
                "message": "Your input was flagged",
                "metadata": {"reasons": ["x"]},
            }
        },
    ),
    ("Cohere", 429, {"message": "You are using a Trial key, limited to 10 API calls / minute."}),
    ("Fireworks", 412, openai("The precondition of this request failed.")),
    ("a proxy", 403, "<html><title>403 Forbidden</title></html>"),
    ("a proxy", 429, ""),
    ("a proxy", 400, "[" * 5_000),
]


def encoded(body: Any) -> bytes:
    return body.encode() if isinstance(body, str) else json.dumps(body).encode()


@pytest.mark.parametrize(("provider", "status", "body"), CLOSED)
def test_an_account_that_is_closed_is_known(provider: str, status: int, body: Any) -> None:
    assert status in STATUSES
    assert account_problem(status, encoded(body)) is not None, provider


@pytest.mark.parametrize(("provider", "status", "body"), NOT_CLOSED)
def test_a_reply_about_one_request_is_not(provider: str, status: int, body: Any) -> None:
    assert account_problem(status, encoded(body)) is None, provider


def test_the_table_has_twelve_providers_and_more() -> None:
    assert len({provider for provider, _, _ in CLOSED}) >= 13


def test_what_is_told_is_one_short_line() -> None:
    assert account_problem(401, b'{"error": {"message": "no\\nkey"}}') == "no key"
    assert len(account_problem(402, b'{"message": "%s"}' % (b"x" * 9_999)) or "") == 300

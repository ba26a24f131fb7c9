# SPDX-License-Identifier: Apache-2.0
"""Does every secret go, does the rest stay readable, and can nobody make it slow?"""

from __future__ import annotations

import base64
import json
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.job import AttemptError, ErrorCategory
from penstock.redaction import secrets as redaction
from penstock.redaction.secrets import REDACTED, SecretUrl, redacted, redacted_url, remember

X = "Zq7mXw2pLr9tKv4b"  # stands for a secret in every text below


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_remembered", {})


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"GET https://{X}@api.org/x failed", f"GET https://{REDACTED}@api.org/x failed"),
        (f"postgresql://me:{X}@host/db", f"postgresql://{REDACTED}@host/db"),
        (f"postgresql://me:{X}@{X}@host/db", f"postgresql://{REDACTED}@host/db"),
        (f"postgresql://me:{X}/{X}@host/db", f"postgresql://me:{REDACTED}@host/db"),
        (f"https://h/x?api_key={X}&page=2", f"https://h/x?api_key={REDACTED}&page=2"),
        (f"https://h/x?page=2&access_token={X}", f"https://h/x?page=2&access_token={REDACTED}"),
        (f"https://h/x?alt=sse&key={X}", f"https://h/x?alt=sse&key={REDACTED}"),
        (f"https://s/b?X-Amz-Signature={X}", f"https://s/b?X-Amz-Signature={REDACTED}"),
        (f"https://s/b?sv=1&sig={X}", f"https://s/b?sv=1&sig={REDACTED}"),
        (f"password={X}, retry", f"password={REDACTED}, retry"),
        (f"login(password='{X} {X}')", f"login(password='{REDACTED}')"),
        (f'{{"api_key": "{X}", "n": 1}}', f'{{"api_key": "{REDACTED}", "n": 1}}'),
        (f'"{{\\"token\\": \\"{X}\\"}}"', f'"{{\\"token\\": \\"{REDACTED}\\"}}"'),
        (f"{{'clientSecret': '{X}'}}", f"{{'clientSecret': '{REDACTED}'}}"),
        (f"Authorization: Bearer {X} got a 401", f"Authorization: {REDACTED} got a 401"),
        (f"authorization={X}", f"authorization={REDACTED}"),
        (f"{{'Authorization': 'Basic {X}==', 'Accept': '*/*'}}",
         f"{{'Authorization': '{REDACTED}', 'Accept': '*/*'}}"),
        (f"[(b'authorization', b'Token {X}')]", f"[(b'authorization', b'{REDACTED}')]"),
        (f"Cookie: sid={X}; theme={X}\nHost: h", f"Cookie: {REDACTED}\nHost: h"),
        (f"Set-Cookie: sid={X}; Path=/ was sent", f"Set-Cookie: {REDACTED} was sent"),
        (f"x-api-key: {X}", f"x-api-key: {REDACTED}"),
        (f"sent Bearer {X} twice", f"sent Bearer {REDACTED} twice"),
        (f"Basic {base64.b64encode(b'me:secret word').decode()}", f"Basic {REDACTED}"),
        (f"Incorrect API key provided: sk-{X}-{X}.", f"Incorrect API key provided: {REDACTED}."),
        (f"ghp_{X}{X} and xoxb-12345-{X}", f"{REDACTED} and {REDACTED}"),
        ("key AKIAIOSFODNN7EXAMPLE", f"key {REDACTED}"),
        (f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.{X}", REDACTED),
        (f"login failed, password: {X}", f"login failed, password: {REDACTED}"),
        (f"Passphrase : {X}\nnext", f"Passphrase : {REDACTED}\nnext"),
        ("db_password: hunter two", f"db_password: {REDACTED} two"),
        (f"token: {X} is over", f"token: {REDACTED} is over"),
        (f"api_key : {X}", f"api_key : {REDACTED}"),
        (f"key = {X}", f"key = {REDACTED}"),
        (f"client_secret = {X};", f"client_secret = {REDACTED};"),
        (f"-----BEGIN RSA PRIVATE KEY-----\n{X}\n{X}==\n-----END RSA PRIVATE KEY-----\nend",
         f"-----BEGIN RSA PRIVATE KEY-----{REDACTED}-----END RSA PRIVATE KEY-----\nend"),
        (f"'-----BEGIN PRIVATE KEY-----\\n{X}", f"'-----BEGIN PRIVATE KEY-----{REDACTED}"),
        (f"https://hooks.slack.com/services/T0/B0/{X}",
         f"https://hooks.slack.com/services/{REDACTED}"),
        (f"POST https://discord.com/api/webhooks/123/{X} failed",
         f"POST https://discord.com/api/webhooks/{REDACTED} failed"),
        (f"https://acme.webhook.office.com/webhookb2/{X}@1/IncomingWebhook/{X}/2",
         f"https://acme.webhook.office.com/webhookb2/{REDACTED}"),
        (f"https://api.telegram.org/bot12:{X}/sendMessage",
         f"https://api.telegram.org/bot{REDACTED}"),
    ],
)  # fmt: skip
def test_what_looks_like_a_secret_goes_and_the_rest_stays(text: str, left: str) -> None:
    assert redacted(text) == left
    assert X not in redacted(text)
    assert redacted(redacted(text)) == redacted(text)


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: nothing works",
        "Unexpected token: } at column 4",
        "max_tokens=4096 total_tokens=12",
        "Basic authentication failed",
        "Bearer authentication is required",
        "the key 'doi:10.1/x' is unknown",
        "https://example.org:8080/@me?page=2",
        "https://medium.com/@user/post",
        "http://[2001:db8::1]:80/@x",
        "risk-assessment-for-customers-2024",
        "pipeline.py:12 in fetch",
        "monkey=3 turkey=4",
        "Unexpected token: IDENTIFIER",
        "the key: customer of the row is missing",
        "key = value is expected",
        "KeyError: primary key: id",
        "https://hooks.slack.com/docs",
        "-----BEGIN CERTIFICATE-----\nMIIB",
        "",
    ],
)
def test_ordinary_sentences_stay_as_they_are(text: str) -> None:
    assert redacted(text, {}) == text


def test_secrets_of_the_environment_go_wherever_they_stand() -> None:
    environ = {
        "OPENAI_API_KEY": "plain words of a key",
        "my_token": "tok/with+signs=",
        "DB_PASSWORD_OLD": "päßwörter",
        "A_SECRET": "short",
        "PATH": "/usr/bin:/bin",
    }

    text = redacted(
        "got plain words of a key, tok/with+signs=, päßwörter, short, /usr/bin:/bin", environ
    )

    assert text == f"got {REDACTED}, {REDACTED}, {REDACTED}, short, /usr/bin:/bin"


def test_remembered_values_go_also_in_the_form_of_a_url() -> None:
    remember("p@ss/word 1", "tiny", REDACTED, "redacted")

    assert redacted("p@ss/word 1 p%40ss%2Fword%201 tiny", {}) == f"{REDACTED} {REDACTED} tiny"
    assert redacted(f"a {REDACTED} stays", {}) == f"a {REDACTED} stays"


def test_known_values_go_also_as_python_and_json_quote_them() -> None:
    remember('it\'s a "back\\slash"', "päßwörter\n")
    value = 'it\'s a "back\\slash"'
    texts = [
        repr(value),
        repr([value]),
        str(KeyError(value)),
        json.dumps(value),
        repr("päßwörter\n"),
    ]

    for text in texts:
        assert REDACTED in redacted(text, {})
        assert "slash" not in redacted(text, {})
        assert "wörter" not in redacted(text, {})


def test_the_longer_of_two_secrets_goes_first() -> None:
    remember("abcdefgh", "abcdefghijklmnop")

    assert redacted("abcdefghijklmnop abcdefgh", {}) == f"{REDACTED} {REDACTED}"


def test_memory_of_secrets_is_bounded() -> None:
    for number in range(redaction.REMEMBERED_MAX + 50):
        remember(f"secret-number-{number}")

    assert len(redaction._remembered) == redaction.REMEMBERED_MAX
    assert redacted(f"secret-number-{redaction.REMEMBERED_MAX + 49}", {}) == REDACTED


def test_a_secret_url_shows_itself_without_its_password_and_remembers_it() -> None:
    url = SecretUrl("postgresql://me:hunter2hunter2@host/db")

    assert str(url) == f"postgresql://{REDACTED}@host/db"
    assert f"{url} {url!r}".count("hunter2") == 0
    assert url.reveal() == "postgresql://me:hunter2hunter2@host/db"
    assert (
        redacted("FATAL: hunter2hunter2 is no password", {}) == f"FATAL: {REDACTED} is no password"
    )
    assert url == SecretUrl(url.reveal())
    assert url != "postgresql://me:hunter2hunter2@host/db"
    assert len({url, SecretUrl(url.reveal())}) == 1


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (
            "postgresql://me:{}@h:5432/db?sslmode=require",
            "postgresql://#@h:5432/db?sslmode=require",
        ),
        ("postgres://me:{}@a,b:5433/db", "postgres://#@a,b:5433/db"),
        ("postgresql:/me:{}@h/db", "postgresql:/#@h/db"),
        ("postgresql:///me:{}@h/db", "postgresql:///#@h/db"),
        ("postgresql://h/db?user=me&password={}", "postgresql://h/db?user=me&password=#"),
        ("postgresql://h/db?sslpassword={}&a=b", "postgresql://h/db?sslpassword=#&a=b"),
        ("postgresql://h/db?pass%77ord={}", "postgresql://h/db?pass%77ord=#"),
        ("postgresql:///db?host=/tmp&PASSWORD={}", "postgresql:///db?host=/tmp&PASSWORD=#"),
        ("postgresql://h/db?service=x&passfile=/p", "postgresql://h/db?service=x&passfile=/p"),
        ("postgresql://me@h:5432/db", "postgresql://me@h:5432/db"),
        ("sqlite:///a@b/c.db", "sqlite:///a@b/c.db"),
    ],
)
@pytest.mark.parametrize(
    "password", [X, "abc", "p%40ss%2Fw%3Fo%23rd", "p@ss@word", "p/ss@w?o@rd", "sec?ret@word"]
)
def test_a_url_is_shown_without_its_password_however_that_is_written(
    url: str, shown: str, password: str
) -> None:
    if "{}&" in url or url.endswith("{}"):
        password = password.replace("@", "%40").replace("?", "%3F")

    given = SecretUrl(url.format(password))

    assert str(given) == redacted_url(given.reveal()) == shown.replace("#", REDACTED)
    assert redacted_url(str(given)) == str(given)


def test_the_password_of_a_url_is_taken_out_of_other_texts_in_either_spelling() -> None:
    SecretUrl("postgresql://me:tr%40velling%2Flight@h/db")
    SecretUrl("postgresql://h/db?user=me&password=another%20secret")

    told = redacted("tr@velling/light, tr%40velling%2Flight, another secret", {})

    assert told == f"{REDACTED}, {REDACTED}, {REDACTED}"


_PIECES = st.sampled_from(
    ["password", "token", "api_key", "=", ":", " ", '"', "'", "\\", "Bearer ", "Authorization",
     "Cookie", "; ", "://", "@", "/", "sk-", "a" * 20, X, "abcdefgh", REDACTED, "[", "]", "\n",
     "eyJ", ".", "AKIA", "é", "sig", "&", ",", "{", "}", "[redact", "ed]"]
)  # fmt: skip
_TEXTS = st.one_of(st.text(), st.lists(_PIECES, max_size=30).map("".join))


@given(
    _TEXTS, st.sets(st.sampled_from(["abcdefgh", X, "a" * 20, "password=", "d]aaaaaa", "Bearer a"]))
)
def test_doing_it_twice_changes_nothing(text: str, secrets: set[str]) -> None:
    environ = {f"S{number}_TOKEN": value for number, value in enumerate(secrets)}
    once = redacted(text, environ)

    assert redacted(once, environ) == once


@given(_TEXTS, _TEXTS)
def test_json_that_is_made_of_redacted_texts_is_sound(message: str, where: str) -> None:
    """How every store writes an error: redacted first, then encoded."""
    error = AttemptError(ErrorCategory.OWN, "E", message, where)

    assert json.loads(msgspec.json.encode(error)) == {
        "category": "own",
        "kind": "E",
        "message": error.message,
        "where": error.where,
    }
    assert error == AttemptError(ErrorCategory.OWN, "E", error.message, error.where)


@pytest.mark.parametrize(
    "piece",
    ["://a:", "://", "token", "token= ", "token='", "authorization:", "authorization ", "bearer ",
     "basic aaaaaaaaa ", "cookie:a;", "a;", "cookie:;", "'", '"', "\\", " ", "a", "sk-",
     "eyJaaaaaaaa.", "password='", "://a@", "@", "AKIA", "[redacted]", "x-api-key", "s", "-"],
)  # fmt: skip
def test_hostile_texts_cost_linear_time(piece: str) -> None:
    def cost(size: int) -> float:
        text = (piece * size)[:size]
        began = time.thread_time()
        redacted(text, {})
        return time.thread_time() - began

    assert cost(16 * 1024) < 2.0  # quadratic patterns would take minutes
    assert cost(64 * 1024) < 8.0

# SPDX-License-Identifier: Apache-2.0
"""Redaction of secrets: credentials in error texts, logs and URLs become `[redacted]`.

Texts of errors may quote what a program knows: headers, URLs, settings, its environment. Before
such a text enters a store or a log it goes through `redacted`, which takes out

- values that are known to be secret: those that were given to `remember`, and environment variables
  whose names say so (`*_KEY`, `*_TOKEN`, `*_SECRET`, `*PASSWORD*`);
- what looks like one: credentials in headers, URLs and parameters, and keys of known makes.

The time is linear in the text, and doing it twice changes nothing. It cannot know everything: keep
secrets out of payloads and results, which are kept as they are.
"""

from __future__ import annotations

import functools
import json
import os
import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from urllib.parse import parse_qsl, quote, quote_plus, unquote

from penstock.errors import ConfigError

REDACTED = "[redacted]"
SECRET_LENGTH_MIN = 8  # characters; a shorter value may be a word of any sentence
SECRET_CHARACTERS_MAX = 65_536  # of a file
REMEMBERED_MAX = 1_000  # values; beyond that the oldest is forgotten

#: A text without any of these, in whatever case, matches no pattern.
_HINTS = (
    *("://", "authorization", "cookie", "bearer", "basic", "key", "token", "secret", "pass", "pwd"),
    *("sig", "credential", "sk-", "k_live_", "k_test_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_"),
    *("github_pat_", "glpat-", "xox", "akia", "asia", "aiza", "hf_", "eyj"),
)
_HEADER = (
    r"(?:proxy-)?authorization|(?:set-)?cookie|x-api-key|api-key|x-auth-token|x-amz-security-token"
)
_SCHEME = r"(?:basic|bearer|digest|negotiate|token|apikey|aws4-hmac-sha256)"
_NAME = (
    r"(?:password|passwd|passphrase|secret|token|(?:api|access|secret|private|account|auth)[_-]?key"
    r"|(?<![a-z])(?:pwd|pass|sig|signature|credential))"
)
_QUOTE = r"\\{0,3}[\"']"  # also as it stands inside of JSON
_TO_QUOTE = r"(?:(?!(?P=quote))[^\\\r\n])+"  # up to the same quote again
_GAP = r"[ \t]{0,8}"  # bounded, as all that could scan the same text again and again


def _pattern(kept: str, secret: str) -> Callable[[str], str]:
    """Make a pass that replaces what follows the part that is kept."""
    compiled = re.compile(f"({kept}){secret}", re.IGNORECASE | re.ASCII)
    return lambda text: compiled.sub(rf"\1{REDACTED}", text)


_PASSES = (
    # https://user:password@host, also with a slash in the password (a port is none)
    _pattern(r"(?<!postgres)(?<!postgresql)://", r"[^\s/?#\"'<>\\]{1,512}(?=@)"),
    # postgresql://user:password@host, but not postgresql://user@host: there a name is no key
    _pattern(
        r"(?:postgres|postgresql)://(?=[^\s/?#@\"'<>\\]{0,128}:)", r"[^\s/?#\"'<>\\]{1,512}(?=@)"
    ),
    _pattern(
        r"://[^\s/:@?#\"'<>\\\[]{0,128}:(?![0-9]{0,5}(?:[/?#]|$))", r"[^\s\"'<>\\]{1,512}(?=@)"
    ),
    # 'Cookie': 'a=b; c=d' · (b'authorization', b'Bearer abc')
    _pattern(rf"(?:{_HEADER})(?:{_QUOTE})?{_GAP}[:=,]{_GAP}b?\\{{0,3}}(?P<quote>[\"'])", _TO_QUOTE),
    # Authorization: Bearer abc · Set-Cookie: a=b; Path=/
    _pattern(
        rf"(?:{_HEADER}){_GAP}[:=]{_GAP}",
        rf"(?:{_SCHEME}[ \t]{{1,8}})?[^\s;\"'<>\\]+(?:;[ \t]?[^\s;\"'<>\\]+)*",
    ),
    # Bearer abc1, but not "Basic authentication"
    _pattern(
        r"\b(?:bearer|basic)[ \t]{1,8}(?=[a-z]*(?-i:[0-9._~+/=-]|[a-z][A-Z]))",
        r"[a-z0-9._~+/=-]{8,}",
    ),
    # "api_key": "abc" · accessToken='abc'
    _pattern(
        rf"{_NAME}(?:{_QUOTE})?{_GAP}[:=]{_GAP}b?\\{{0,3}}(?P<quote>[\"'])",
        _TO_QUOTE,
    ),
    # password=abc · ?token=abc&x=1 · ?key=abc
    _pattern(rf"(?:{_NAME}|[?&]key)=", r"[^\s\"'&,;<>\\()\[\]{}]+"),
    # password: abc
    _pattern(rf"pass(?:word|wd|phrase){_GAP}[:=]{_GAP}", r"[^\s\"'&,;<>\\()\[\]{}]{4,}"),
    # token: abc1defg · key = abc1defg, but not "token: IDENTIFIER"
    _pattern(
        rf"(?:{_NAME}|(?<![a-z])key){_GAP}[:=]{_GAP}(?=[a-z_~+/.=-]{{0,64}}[0-9])",
        r"[a-z0-9_~+/.=-]{8,}",
    ),
    # addresses that whoever knows them may post to: Slack, Discord, Teams, Telegram
    _pattern(
        r"://(?:hooks\.slack\.com/(?:services|workflows|triggers)/"
        r"|(?:[a-z]{1,16}\.)?discord(?:app)?\.com/api/(?:v[0-9]{1,3}/)?webhooks/"
        r"|[a-z0-9-]{1,64}\.webhook\.office\.com/webhookb2/|api\.telegram\.org/bot)",
        r"[^\s\"'<>\\]{1,512}",
    ),
    # private keys in PEM, whole or cut off
    _pattern(r"-----BEGIN [A-Z0-9 ]{0,32}PRIVATE KEY-----", r"(?:(?!-----END)(?s:.))+"),
    # keys of known makes, and JSON web tokens
    _pattern(
        r"(?<![a-z0-9])",
        r"(?-i:sk-[A-Za-z0-9_-]{16,}|[sr]k_(?:live|test)_[A-Za-z0-9]{8,}|gh[pousr]_[A-Za-z0-9]{20,}"
        r"|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|xox[abeoprs]-[A-Za-z0-9-]{10,}"
        r"|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{30,}|hf_[A-Za-z0-9]{20,}"
        r"|eyJ[A-Za-z0-9_-]{8,512}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,})",
    ),
)

#: An authority that is over before any `@`: what follows belongs to a path or to parameters.
_HOST_FIRST = re.compile(r"[^:@/?#]*(?::[0-9]{0,5})?[/?#]")

#: Secrets of this process; kept in order, the values mean nothing.
_remembered: dict[str, None] = {}


def remember(*values: str) -> None:
    """Redact these values in every text from now on, unless they are too short."""
    for value in values:
        if _is_worth_it(value):
            _remembered[value] = None
    while len(_remembered) > REMEMBERED_MAX:
        del _remembered[next(iter(_remembered))]


def remember_url(url: str) -> None:
    """Remember the passwords of a URL, if it has any."""
    _, _, rest = _parted(url)
    remember(rest.rpartition("@")[0].partition(":")[2])
    for name, value in parse_qsl(rest.partition("?")[2]):
        if _is_secret_parameter(name):
            remember(value)


def redacted_url(url: str) -> str:
    """Return a URL without credentials before its host, and without secrets in its parameters.

    A password that should have been percent-encoded may hold whatever ends a host in good URLs.
    """
    scheme, mark, rest = _parted(url)
    before, at, place = rest.rpartition("@")
    if ":" in before and not rest.startswith("/") and not _HOST_FIRST.match(before):
        rest = f"{REDACTED}{at}{place}"
    rest, question, query = rest.partition("?")
    parts = (part.partition("=") for part in query.split("&"))
    query = "&".join(
        f"{name}={REDACTED}" if _is_secret_parameter(unquote(name)) else f"{name}{equals}{value}"
        for name, equals, value in parts
    )
    return redacted(f"{scheme}{mark}{rest}{question}{query}")


def _parted(url: str) -> tuple[str, str, str]:
    """Split a URL into scheme, separator and rest; of a file all slashes are the rest's."""
    scheme, mark, rest = url.partition("://" if "://" in url else ":")
    if scheme == "sqlite":
        return scheme, mark, rest
    slashes = len(rest) - len(rest.lstrip("/"))
    return scheme, mark + rest[:slashes], rest[slashes:]


def _is_secret_parameter(name: str) -> bool:
    return "pass" in name.lower() and name.lower() != "passfile"


def redacted(text: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the text with `[redacted]` in the place of secrets."""
    text = _by_patterns(text)
    known = _without_known(text, os.environ if environ is None else environ)
    # What a known value was part of may look like a secret of its own.
    return text if known == text else _by_patterns(known)


def _by_patterns(text: str) -> str:
    lower = text.lower()
    if not any(hint in lower for hint in _HINTS):
        return text
    for apply in _PASSES:
        # What is redacted stands between pieces, not in them: so nothing is redacted twice.
        text = REDACTED.join(map(apply, text.split(REDACTED)))
    return text


def _without_known(text: str, environ: Mapping[str, str]) -> str:
    values = {*_remembered}
    for name in filter(_names_a_secret, environ):
        value = environ.get(name, "")  # another thread may have removed it
        if _is_worth_it(value):
            values.add(value)
    found = {form for value in values for form in _forms(value) if form in text}
    for value in sorted(found, key=len, reverse=True):  # one may be a part of another
        text = REDACTED.join(piece.replace(value, REDACTED) for piece in text.split(REDACTED))
    return text


@functools.lru_cache(REMEMBERED_MAX)
def _forms(value: str) -> frozenset[str]:
    """Return how a value may be written: plain, in a URL, in base64, quoted by Python or JSON."""
    backslashes = value.replace("\\", r"\\")
    forms = {
        value,
        unquote(value),
        quote(value),
        quote(value, safe=""),
        quote_plus(value),
        repr(value)[1:-1],
        json.dumps(value)[1:-1],
        backslashes,
        backslashes.replace("'", r"\'"),
        backslashes.replace('"', r"\""),
    }
    return frozenset(filter(_is_worth_it, (*forms, *_in_base64(value.encode(errors="replace")))))


def _in_base64(data: bytes) -> Iterator[str]:
    """Yield what is the same in base64, whatever stands before and after it (`user:password`)."""
    for before in range(3):
        text = b64encode(bytes(before) + data).decode().rstrip("=")
        first, last = (before * 8 + 5) // 6, (before + len(data)) * 8 // 6
        yield text[first:last]
        yield text[first:last].replace("+", "-").replace("/", "_")


def _is_worth_it(value: str) -> bool:
    return len(value) >= SECRET_LENGTH_MIN and value not in REDACTED and REDACTED not in value


def _names_a_secret(variable: str) -> bool:
    name = variable.upper()
    return name.endswith(("_KEY", "_TOKEN", "_SECRET")) or "PASSWORD" in name


ERROR_BYTES_MAX = 16 * 1024
READ_MAX = 64 * 1024  # characters that are looked at
MARGIN = 4 * 1024  # characters at the end of what is looked at that may be half a secret

_CUT = " …"


def storable_text(text: str) -> str:
    """Return the text redacted, truncated, and without NUL and lone surrogates.

    Every text about a job that is not the user's own data goes through here on its way into a
    store: see `AttemptError`. Secrets go before the text is cut, so that none is cut in half.
    """
    if len(text) > READ_MAX:
        text = text[:READ_MAX]
        text = text[: max(READ_MAX - MARGIN, text.rfind(" "))] + _CUT
    text = redacted(text).replace("\x00", "\\x00")
    data = text.encode("utf-8", "backslashreplace")
    if len(data) > ERROR_BYTES_MAX:
        data = data[: ERROR_BYTES_MAX - len(_CUT.encode())]
        return data.decode("utf-8", "ignore") + _CUT
    return data.decode()


class Secret:
    """A key or a password; whoever prints it, or a text with it, sees `[redacted]`.

    For what no variable of the environment gives away by its name: a key from a file or a vault.
    Values of less than eight characters are hidden only here, not in other texts.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value
        remember(value)

    @staticmethod
    def env(name: str) -> Secret:
        """A secret that an environment variable holds, read whenever it is needed."""
        return EnvironmentSecret(name)

    @staticmethod
    def file(path: str | os.PathLike[str]) -> Secret:
        """A secret that a file holds, without the space around it, read whenever it is needed."""
        return FileSecret(os.fspath(path))

    def reveal(self) -> str:
        """Return the value itself, to send or to connect with.

        Raises:
            ConfigError: it is not where it is to be read.
        """
        return self._value

    def __str__(self) -> str:
        return REDACTED

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and (type(self), self._value) == (
            type(other),
            other._value,
        )

    def __hash__(self) -> int:
        return hash(self._value)


class EnvironmentSecret(Secret):
    """A secret in an environment variable; of the variable the name is no secret."""

    __slots__ = ()

    def __init__(self, name: str) -> None:
        self._value = name

    def reveal(self) -> str:
        return _read(os.environ.get(self._value, ""), f"The environment variable {self._value!r}")

    def __repr__(self) -> str:
        return f"<Secret of {self._value}>"


class FileSecret(Secret):
    """A secret in a file; of the file the path is no secret."""

    __slots__ = ()

    def __init__(self, path: str) -> None:
        self._value = path

    def reveal(self) -> str:
        place = f"The file {self._value!r}"
        try:
            with open(self._value, encoding="utf-8") as file:
                text = file.read(SECRET_CHARACTERS_MAX)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise ConfigError(f"{place} of a secret cannot be read: {why}.") from None
        return _read(text, place)

    def __repr__(self) -> str:
        return f"<Secret of {self._value}>"


def _read(text: str, place: str) -> str:
    value = text.strip()
    if not value or not value.isprintable():
        raise ConfigError(f"{place} holds no secret: it is {'empty' if not value else 'no line'}.")
    remember(value)
    return value


class SecretUrl(Secret):
    """A URL that may hold a password; whoever prints it sees it without."""

    __slots__ = ()

    def __init__(self, url: str) -> None:
        self._value = url
        remember_url(url)

    def __str__(self) -> str:
        return redacted_url(self._value)

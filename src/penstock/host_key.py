# SPDX-License-Identifier: Apache-2.0
"""The host of a URL in one canonical spelling, as the key of a per-host limit.

A limit by host protects a host, so every spelling of one host must give one key: `http` and `https`
with their default ports, any case, a trailing dot, a user name, percent-encoded or national
letters, an IP address in any of its forms. Another port is another service and stays in the key.

Decisions where the spelling does not decide:

- Without `//` the text begins with the host (`example.org/x`, `example.org:8080`), as in the
  address bar of a browser. No default port is known then, so every port stays. A `@` is refused:
  such a text may just as well be a mail address.
- National letters become punycode by the codec of the standard library (IDNA 2003): ß counts as ss.
- A host whose last part is a number is an IPv4 address in the forms that the system's resolver
  takes (`127.1`, `0x7f000001`), or it is refused. IPv6 that wraps IPv4 is that IPv4 address.
- A zone (`fe80::1%25eth0`) belongs to the key: the same address on another link is another host.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from urllib.parse import unquote_to_bytes

from penstock.redaction.secrets import redacted

HOST_LENGTH_MAX = 253  # characters of a DNS name
SHOWN_MAX = 80  # characters of a URL in a message

_DEFAULT_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}
_URL = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.\-]*):)?//([^/?#]*)")
_BARE = re.compile(r"[^/?#]+")
_NAME = re.compile(r"[a-z0-9._\-]+", re.ASCII)
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_PORT = re.compile(r"[0-9]{0,8}", re.ASCII)
_ZONE = re.compile(r"[A-Za-z0-9._~\-]+", re.ASCII)


def host_key(url: str) -> str:
    """The host of a URL as the key of a limit: one key for every spelling of it.

    Raises:
        ValueError: there is no host, or it is none; one sentence that names the URL.
    """
    if not isinstance(url, str):
        raise TypeError(f"host_key takes a URL as text, got {type(url).__name__}; write str(url).")
    try:
        scheme, authority = _split(url)
        host, port = _host_and_port(authority)
        name = _address(host[1:-1]) if host.startswith("[") else _name(host)
    except ValueError as error:
        raise ValueError(f"The URL {_shown(url)} {error}.") from None
    if port is None or port == _DEFAULT_PORTS.get(scheme):
        return name
    return f"{name}:{port}"


def _split(url: str) -> tuple[str, str]:
    """Scheme and authority; the scheme is empty if there is none."""
    text = url.strip(" ")
    found = _URL.match(text)
    bare = _BARE.match(text)
    authority = found[2] if found is not None else bare[0] if bare is not None else ""
    if "\\" in authority or " " in authority or not authority.isprintable():
        # A browser ends the host at a backslash, others do not: two hosts in one URL.
        raise ValueError("has a space, a backslash or a control character in its host")
    if found is None and "@" in authority:
        raise ValueError("names a user but no scheme; write https:// in front of it")
    host = authority.rpartition("@")[2]
    if not host:
        raise ValueError("names no host")
    return (found[1] or "").lower() if found is not None else "", host


def _host_and_port(authority: str) -> tuple[str, int | None]:
    if authority.startswith("["):
        host, bracket, rest = authority.partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError("has an IPv6 address without its closing bracket")
        host, digits = host + bracket, rest[1:]
    else:
        host, _, digits = authority.partition(":")
        if ":" in digits:
            raise ValueError("has two ports, or an IPv6 address without brackets")
    if not host:
        raise ValueError("names no host")
    if not _PORT.fullmatch(digits) or (digits and int(digits) > 65535):
        raise ValueError("has a port that is no number from 0 to 65535")
    return host, int(digits) if digits else None


def _address(text: str) -> str:
    """An IPv6 address in brackets, in its one shortest form."""
    digits, percent, zone = text.partition("%")
    try:
        address = ipaddress.IPv6Address(digits)
    except ValueError:
        raise ValueError("has brackets around what is no IPv6 address") from None
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if not percent:
        return f"[{address}]"
    zone = zone.removeprefix("25")  # how a URL writes the percent sign itself
    if not _ZONE.fullmatch(zone):
        raise ValueError("has an IPv6 zone that is no name")
    return f"[{address}%25{zone}]"


def _name(host: str) -> str:
    """A DNS name or an IPv4 address, in ASCII and lower case."""
    try:
        text = unquote_to_bytes(host).decode()
    except UnicodeDecodeError:
        raise ValueError("has a host that is not UTF-8") from None
    if len(text) > HOST_LENGTH_MAX + 1:  # one more for the trailing dot
        raise ValueError(f"has a host of more than {HOST_LENGTH_MAX} characters")
    try:
        name = text.encode("idna").decode().lower().removesuffix(".")
    except UnicodeError:
        raise ValueError("has a host with a part that is empty, too long or no name") from None
    if len(name) > HOST_LENGTH_MAX:
        raise ValueError(f"has a host of more than {HOST_LENGTH_MAX} characters")
    if not _NAME.fullmatch(name) or name.startswith(".") or ".." in name:
        raise ValueError("has a host that is no name")
    if _NUMBER.fullmatch(name.rpartition(".")[2]):
        try:
            return socket.inet_ntoa(socket.inet_aton(name))
        except OSError:
            raise ValueError("has a host that is no IPv4 address") from None
    return name


def _shown(url: str) -> str:
    text = redacted(url[: 4 * SHOWN_MAX])
    return repr(text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…")

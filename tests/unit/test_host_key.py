# SPDX-License-Identifier: Apache-2.0
"""Does every spelling of one host give one key, and is what names no host refused?"""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import host_key


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("http://example.org/x", "example.org"),
        ("https://example.org", "example.org"),
        ("HTTPS://EXAMPLE.org./x?y#z", "example.org"),
        ("http://example.org:80/", "example.org"),
        ("https://example.org:443/", "example.org"),
        ("https://example.org:/", "example.org"),
        ("ws://example.org:80", "example.org"),
        ("wss://example.org:0443", "example.org"),
        ("http://example.org:443/", "example.org:443"),
        ("https://example.org:8443/", "example.org:8443"),
        ("ftp://example.org/", "example.org"),
        ("https://user:pa@ss@example.org/", "example.org"),
        ("//example.org/x", "example.org"),
        ("example.org", "example.org"),
        ("example.org/x?http://other", "example.org"),
        ("example.org:80", "example.org:80"),  # no scheme, no default port
        ("localhost:8080/x", "localhost:8080"),
        (" https://example.org ", "example.org"),
        ("https://example.org?x=//y@z", "example.org"),
        ("https://a_b.example.org/", "a_b.example.org"),
        ("https://ex%41mple.org/", "example.org"),
        ("https://b%C3%BCcher.example/", "xn--bcher-kva.example"),
        ("https://bücher.example/", "xn--bcher-kva.example"),
        ("https://BÜCHER.example/", "xn--bcher-kva.example"),
        ("https://XN--BCHER-KVA.example/", "xn--bcher-kva.example"),
        ("https://例え。テスト/", "xn--r8jz45g.xn--zckzah"),
        ("https://straße.example", "strasse.example"),
        ("http://127.0.0.1:8000/", "127.0.0.1:8000"),
        ("http://127.1/", "127.0.0.1"),
        ("http://0x7f000001/", "127.0.0.1"),
        ("http://2130706433/", "127.0.0.1"),
        ("http://[::1]/", "[::1]"),
        ("http://[0:0:0:0:0:0:0:1]:80/", "[::1]"),
        ("https://[2001:DB8::0:1]:8443/", "[2001:db8::1]:8443"),
        ("[2001:db8::1]:80", "[2001:db8::1]:80"),
        ("http://[::ffff:127.0.0.1]/", "127.0.0.1"),
        ("http://[::ffff:7f00:1]/", "127.0.0.1"),
        ("http://[fe80::1%25eth0]/", "[fe80::1%25eth0]"),
        ("http://[fe80::1%eth0]/", "[fe80::1%25eth0]"),
        ("http://[FE80:0::1%25255]/", "[fe80::1%25255]"),
    ],
)
def test_one_host_has_one_key(url: str, key: str) -> None:
    assert host_key(url) == key
    assert host_key(key) == key


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "names no host"),
        ("   ", "names no host"),
        ("/only/a/path", "names no host"),
        ("file:///etc/hosts", "names no host"),
        ("https://", "names no host"),
        ("https://user@/", "names no host"),
        ("http://:80/", "names no host"),
        ("?q", "names no host"),
        ("mailto:somebody@example.org", "names a user but no scheme"),
        ("data:text/plain,x", "has a port that is no number"),
        ("http://example.org:99999/", "has a port that is no number from 0 to 65535"),
        ("http://example.org:٣/", "has a port that is no number"),
        ("http://example.org:-1/", "has a port that is no number"),
        ("http://::1/", "has two ports, or an IPv6 address without brackets"),
        ("http://[::1/", "without its closing bracket"),
        ("http://[::1]x/", "without its closing bracket"),
        ("http://[1.2.3.4]/", "brackets around what is no IPv6 address"),
        ("http://[fe80::1%25]/", "has an IPv6 zone that is no name"),
        ("http://[fe80::1%25a%2Fb]/", "has an IPv6 zone that is no name"),
        ("http://good.org\\@evil.org/", "a backslash"),
        ("http://evil.org\\.good.org/", "a backslash"),
        ("http://exa mple.org/", "has a space"),
        ("http://exa\nmple.org/", "a control character"),
        ("http://exa%0ample.org/", "has a host that is no name"),
        ("http://exa%2fmple.org/", "has a host that is no name"),
        ("http://exa%252fmple.org/", "has a host that is no name"),
        ("http://ex／ample.org/", "has a host that is no name"),
        ("http://%ff.org/", "has a host that is not UTF-8"),
        ("http://*/", "has a host that is no name"),
        ("http://a..b/", "a part that is empty"),
        ("http://.a/", "a part that is empty"),
        (f"http://{'a' * 64}.org/", "too long"),
        (f"http://{'a.' * 200}org/", "more than 253 characters"),
        (f"http://{'é' * 5000}/", "more than 253 characters"),
        ("http://256.1.1.1/", "no IPv4 address"),
        ("http://1.2.3.4.5/", "no IPv4 address"),
    ],
)
def test_what_names_no_host_is_refused_in_one_sentence(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=r"^The URL '") as refused:
        host_key(url)

    assert why in str(refused.value)
    assert str(refused.value).count("\n") == 0
    assert len(str(refused.value)) < 300


def test_a_refusal_shows_no_password() -> None:
    with pytest.raises(ValueError, match="redacted") as refused:
        host_key("https://me:hunter2@exa mple.org/")

    assert "hunter2" not in str(refused.value)


def test_what_is_no_text_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"got bytes; write str\(url\)"):
        host_key(b"http://example.org")  # type: ignore[arg-type]


_label = st.text(string.ascii_letters + string.digits + "-_äöüéßñ例テспб", min_size=1, max_size=12)
_hosts = st.one_of(
    st.lists(_label, min_size=1, max_size=4).map(".".join),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(lambda ip: f"[{ip}]"),
    st.ip_addresses(v=6).map(lambda ip: f"[{ip.exploded.upper()}]"),
)
_ports = st.one_of(st.just(""), st.integers(0, 65535).map(lambda port: f":{port}"))


def key_or_none(url: str) -> str | None:
    try:
        return host_key(url)
    except ValueError:
        return None


@given(
    st.one_of(
        st.text(), st.builds("{}{}{}".format, st.sampled_from(["", "http://"]), _hosts, _ports)
    )
)
def test_a_key_is_its_own_key_and_can_be_kept(url: str) -> None:
    key = key_or_none(url)

    if key is not None:
        assert host_key(key) == key
        assert host_key(f"http://{key}") in (key, key.removesuffix(":80"))
        assert key.isascii()
        assert key.isprintable()
        assert "@" not in key
        assert "/" not in key


@given(_hosts, _ports, st.sampled_from(["http", "https", "ws"]), st.sampled_from(["", "/p?q#f"]))
def test_case_user_path_and_dot_change_nothing(
    host: str, port: str, scheme: str, rest: str
) -> None:
    plain = key_or_none(f"{scheme}://{host}{port}{rest}")
    ascii_upper = "".join(c.upper() if c.isascii() else c for c in host)

    assert key_or_none(f"{scheme.upper()}://{ascii_upper}{port}{rest}") == plain
    assert key_or_none(f"{scheme}://u:p@{host}{port}") == plain
    if not host.startswith("[") and len(host) < 200:
        assert key_or_none(f"{scheme}://{host}.{port}/") == plain


@given(_hosts)
def test_http_and_https_protect_the_same_host(host: str) -> None:
    assert key_or_none(f"http://{host}") == key_or_none(f"https://{host}:443/")

"""Which hosts and origins are ours, as a table."""

import asyncio

import pytest

from server.net.browsers import ForeignHost, ForeignOrigin, Pages
from server.settings.kinds import Address


class Link(asyncio.Transport):
    """A connection to a port."""

    def __init__(self, port: int = 8080, *, is_secure: bool = False) -> None:
        super().__init__({"sockname": ("127.0.0.1", port), "sslcontext": object() if is_secure else None})


def pages(
    listen: str = "127.0.0.1", hosts: tuple[str, ...] = (), *origins: str, has_api_keys: bool = False
) -> Pages:
    return Pages(Address(listen, 0), hosts=hosts, origins=origins, has_api_keys=has_api_keys)


def is_ours(rule: Pages, host: str) -> bool:
    try:
        rule.check_host(host, Link())
    except ForeignHost:
        return False
    return True


@pytest.mark.parametrize(
    ("host", "on_loopback", "elsewhere"),
    [
        ("localhost:8080", True, True),
        ("LocalHost", True, True),
        ("127.0.0.1:8080", True, True),
        ("[::1]:8080", True, True),
        ("[::1]", True, True),
        ("", True, True),
        ("localhost:8081", False, True),
        ("127.0.0.1:80", False, True),
        ("10.0.0.1:8080", False, True),
        ("[2001:db8::1]", False, True),
        ("evil.example", False, False),
        ("evil.example:8080", False, False),
        ("localhost.evil.example:8080", False, False),
        ("127.0.0.1.evil.example", False, False),
        ("10.0.0.1.nip.example:8080", False, False),
    ],
)
def test_hosts(host: str, on_loopback: bool, elsewhere: bool) -> None:
    assert is_ours(pages(), host) == on_loopback
    assert is_ours(pages("::1"), host) == on_loopback
    assert is_ours(pages("0.0.0.0"), host) == elsewhere
    for listen in ("127.0.0.1", "0.0.0.0"):
        assert is_ours(pages(listen, ("*",)), host)
    assert is_ours(pages("0.0.0.0", has_api_keys=True), host)
    assert is_ours(pages(has_api_keys=True), host) == on_loopback
    assert is_ours(pages("0.0.0.0", ("other.example",), has_api_keys=True), host) == elsewhere


def test_hosts_that_are_named() -> None:
    rule = pages("127.0.0.1", ("fasti.example", "one.example:8443"))
    assert is_ours(rule, "Fasti.example:1")
    assert is_ours(rule, "fasti.example")
    assert is_ours(rule, "one.example:8443")
    assert not is_ours(rule, "one.example:8080")
    assert is_ours(pages("fasti.internal"), "fasti.internal:8080")


def may(
    rule: Pages, origin: str | None, site: str = "", *, host: str = "localhost:8080", **link: bool
) -> bool:
    try:
        rule.check(host, origin, site, Link(**link), changes=True)  # type: ignore[arg-type]
    except ForeignOrigin:
        return False
    return True


@pytest.mark.parametrize(
    ("origin", "site", "allowed"),
    [
        (None, "", True),
        (None, "none", True),
        (None, "same-origin", True),
        (None, "same-site", False),
        (None, "cross-site", False),
        ("http://localhost:8080", "same-origin", True),
        ("http://LOCALHOST:8080", "", True),
        ("http://localhost:3000", "same-site", False),
        ("http://localhost", "", False),
        ("https://localhost:8080", "", False),
        ("http://127.0.0.1:8080", "", False),
        ("https://evil.example", "cross-site", False),
        ("null", "cross-site", False),
        ("", "", False),
    ],
)
def test_origins(origin: str | None, site: str, allowed: bool) -> None:
    assert may(pages(), origin, site) == allowed
    assert may(pages("127.0.0.1", (), "*"), origin, site)
    pages().check("localhost", origin, site, Link(), changes=False)


@pytest.mark.parametrize("url", ["https://Fasti.example.com", "https://fasti.example.com:443/queue"])
def test_the_public_url_is_a_name_and_an_origin(url: str) -> None:
    rule = Pages(Address("127.0.0.1", 0), hosts=(), origins=(), has_api_keys=False, public_url=url)
    assert is_ours(rule, "fasti.example.com:443")
    assert not is_ours(rule, "other.example.com")
    assert may(rule, "https://fasti.example.com", "same-origin")
    assert rule.opens_to("https://fasti.example.com")
    assert not may(rule, "https://other.example.com", "cross-site")
    has_api_keys = Pages(Address("0.0.0.0", 0), hosts=(), origins=(), has_api_keys=True, public_url=url)
    assert is_ours(has_api_keys, "10.0.0.7:8080"), "with keys and without http.hosts: any name"
    assert is_ours(has_api_keys, "fasti.internal")


def test_an_origin_has_the_scheme_and_its_port() -> None:
    assert may(pages(), "https://localhost:8080", is_secure=True)
    assert not may(pages(), "http://localhost:8080", is_secure=True)
    rule = pages("0.0.0.0", ("a",))
    assert may(rule, "https://a", host="a", is_secure=True)
    assert may(rule, "https://a:443", host="a", is_secure=True)
    assert may(rule, "https://a", host="a:443", is_secure=True)
    assert not may(rule, "http://a:443", host="a", is_secure=True)


def test_origins_that_are_named() -> None:
    rule = pages("127.0.0.1", (), "https://app.example")
    assert may(rule, "https://APP.example", "cross-site")
    assert rule.opens_to("https://app.example")
    assert not may(rule, "https://app.example:8443", "cross-site")
    assert not rule.opens_to("http://localhost:8080")

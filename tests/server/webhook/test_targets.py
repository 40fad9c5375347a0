"""Where a message may be posted, and where never."""

import socket
from ipaddress import ip_address

import pytest
from yarl import URL

from server.delivery.router import posting_topic
from server.settings.config import Webhook
from server.webhook.targets import (
    Blocked,
    Sockets,
    TargetError,
    check_allowed,
    checked_target,
    checked_url,
    is_public,
)

PRIVATE = [
    *("127.0.0.1", "127.255.255.254", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1"),
    *("169.254.169.254", "0.0.0.0", "0.1.2.3", "100.64.0.1", "100.127.255.255", "192.0.0.8"),
    *("192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "192.88.99.1", "224.0.0.1"),
    *("239.255.255.255", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "::7f00:1", "fe80::1", "fec0::1", "fc00::1", "fd12::1", "ff02::1", "100::1"),
    *("2001::1", "2001:db8::1", "2001:10::1", "3fff::1", "5f00::1"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254"),
    *("64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b:1::1", "2002:7f00:1::", "2002:a00:1::1"),
]
PUBLIC = [
    *("93.184.216.34", "1.1.1.1", "172.32.0.1", "100.128.0.1", "192.1.0.1"),
    *("2606:4700:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101", "2002:101:101::1"),
]


@pytest.mark.parametrize("text", PRIVATE)
def test_an_inner_address_is_never_connected_to(text: str) -> None:
    assert not is_public(ip_address(text))
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    where = (text, 443, 0, 0) if ":" in text else (text, 443)
    with pytest.raises(Blocked):
        Sockets(allow_private=False)((family, socket.SOCK_STREAM, 6, "", where))


@pytest.mark.parametrize("text", PUBLIC)
def test_a_public_one_is(text: str) -> None:
    assert is_public(ip_address(text))


def test_a_scope_does_not_hide_an_address() -> None:
    where = ("fe80::1%1", 443, 0, 1)
    with pytest.raises(Blocked):
        Sockets(allow_private=False)((socket.AF_INET6, socket.SOCK_STREAM, 6, "", where))


def test_what_is_no_address_is_not_connected_to() -> None:
    with pytest.raises(Blocked):
        Sockets(allow_private=False)((socket.AF_INET, socket.SOCK_STREAM, 6, "", ("localhost", 80)))


def test_an_inner_one_is_where_that_is_allowed() -> None:
    made = Sockets(allow_private=True)((socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 9)))
    assert not made.getblocking()
    made.close()


@pytest.mark.parametrize(
    "text",
    [
        *("ftp://example.com/", "https://", "https:///path", "http:example.com", "file:///etc/passwd"),
        *("https://user@example.com/", "https://user:word@example.com/", "https://:word@example.com/"),
        *("https://example.com:0/", "https://example.com:65536/", "https://example.com:x/"),
        *("https://[1]@", "https://user:[1]@"),
        *("https://example.com/#part", "https://example.com/a b", "https://example.com/\r\nx: y"),
        *("https://example.com\\@10.0.0.1/", "https://[::1", "https://" + "a" * 2_050, "gopher://x/"),
    ],
)
def test_what_is_no_url_to_post_to(text: str) -> None:
    with pytest.raises(TargetError):
        checked_url(text)


def test_a_url_is_taken_as_it_is() -> None:
    url = checked_url("https://example.com:8443/a?b=c&d=%20")
    assert (url.host, url.port, url.raw_path_qs) == ("example.com", 8443, "/a?b=c&d=%20")


@pytest.mark.parametrize("text", ["", "a b", "a/b", "a:b", "*", "a" * 129, "ü"])
def test_what_is_no_name_of_an_endpoint(text: str) -> None:
    with pytest.raises(TargetError, match="name of an endpoint"):
        checked_target(text)


def test_a_name_or_a_url_will_do() -> None:
    assert checked_target("billing-2.x_y") == "billing-2.x_y"
    assert checked_target("https://example.com/x") == "https://example.com/x"


def test_the_topic_of_what_says_none() -> None:
    assert posting_topic(b"billing") == b"$deliver/billing"
    assert posting_topic(b"https://example.com/secret") == b"$deliver/*"


OPEN = Webhook(allow_private=True)


@pytest.mark.parametrize(
    ("text", "config", "is_allowed"),
    [
        ("https://example.com/", Webhook(), True),
        ("http://example.com/", Webhook(), False),
        ("http://example.com/", Webhook(allow_http=True), True),
        ("http://127.0.0.1/", Webhook(allow_http=True), False),
        ("https://127.0.0.1/", Webhook(), False),
        ("https://[::1]/", Webhook(), False),
        ("https://[::ffff:10.0.0.1]/", Webhook(), False),
        ("https://[fe80::1%251]/", Webhook(), False),
        ("https://169.254.169.254/latest", Webhook(), False),
        ("http://127.0.0.1/", OPEN, True),
        ("https://1.1.1.1/", Webhook(), True),
    ],
)
def test_what_the_configuration_allows(text: str, config: Webhook, is_allowed: bool) -> None:
    if is_allowed:
        check_allowed(URL(text), config)
    else:
        with pytest.raises(TargetError):
            check_allowed(URL(text), config)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8900/", "http://localhost:8900/", "https://LOCALHOST./"])
def test_who_tries_it_at_home_is_told_the_one_setting_that_helps(url: str) -> None:
    with pytest.raises(TargetError, match=r"webhook\.allow_private"):
        check_allowed(checked_url(url), Webhook())
    check_allowed(checked_url(url), Webhook(allow_private=True))


def test_the_host_of_a_cloud_s_machine_is_not_public() -> None:
    assert not is_public(ip_address("168.63.129.16"))
    assert is_public(ip_address("168.63.129.17"))

"""Allowed targets: valid values of `deliver_to` and of an endpoint's URL, and permitted addresses.

Otherwise a sender of messages could make the server connect to addresses that only the server reaches: its
own ports, the machines beside it, a cloud's credential service. So, unless `webhook.allow_private`:

    a URL       https only (`webhook.allow_http` lets http in), no user or password, no fragment
    an address  public only: checked when connecting, after the name was resolved, so that a name
                which resolves to something else the second time gains nothing

Public is what is globally reachable: not private (10/8, fc00::/7), loopback, link-local, shared (100.64/10),
multicast, reserved or unspecified; for an IPv6 address with an embedded IPv4 address (mapped, NAT64, 6to4)
the inner address counts. The check is in one place, where the socket is made: names, literals in any spelling
and happy eyeballs all pass there.
"""

import re
import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from aiohttp import AddrInfoType
from yarl import URL

from ..settings.config import Webhook

URL_CHARS_MAX = 2_048
PRIVATE = "the address is private or reserved (webhook.allow_private = true allows it)"
NAME = re.compile(r"[A-Za-z0-9._-]{1,128}", re.ASCII)
"""Valid endpoint names."""
KEEP_ALIVE_S = 60
"""Idle time after which TCP probes the receiver: a post may wait for half an hour."""
_NAT64 = IPv6Network("64:ff9b::/96")
_NEVER_V4 = (IPv4Network("192.88.99.0/24"), IPv4Network("192.0.0.0/24"), IPv4Network("168.63.129.16/32"))
"""Relays, protocols' own, and the address of Azure's host: reserved for these."""
_NEVER_V6 = (IPv6Network("2001::/23"), IPv6Network("3fff::/20"), IPv6Network("5f00::/16"))
"""Teredo and other protocols' own, documentation, segment routing: older Pythons call some of these
global."""


class TargetError(ValueError):
    """An invalid or forbidden target; the message says why."""


class Blocked(OSError):
    """The address may not be connected to."""


def checked_url(text: str) -> URL:
    """Check a URL to post to. Raises TargetError."""
    if len(text) > URL_CHARS_MAX:
        raise TargetError(f"has more than {URL_CHARS_MAX:,} characters")
    if not text.isprintable() or " " in text or "\\" in text:
        raise TargetError("must not contain blanks, backslashes or control characters")
    try:
        url = URL(text)
        is_whole = bool(url.host) and url.port is not None and 0 < url.port < 65_536
        has_user = url.raw_user is not None or url.raw_password is not None
    except (ValueError, IndexError):  # yarl raises both
        raise TargetError("is not a URL") from None
    if url.scheme not in ("http", "https") or not is_whole:
        raise TargetError("must be an absolute URL: https://example.com/path")
    if has_user:
        raise TargetError("must not contain a user or password: use a header")
    if "#" in text:
        raise TargetError("must not have a fragment")
    return url


def checked_target(text: str) -> str:
    """Check `deliver_to`: a URL, or a possible name of an endpoint. Raises TargetError."""
    if is_url(text):
        checked_url(text)
    elif not NAME.fullmatch(text):
        raise TargetError(
            "must be an http(s) URL or the name of an endpoint: "
            "1 to 128 characters of A-Z, a-z, 0-9, '.', '_' and '-'"
        )
    return text


def is_url(target: str) -> bool:
    """Whether `deliver_to` is a URL, not an endpoint's name."""
    return "://" in target


def check_allowed(url: URL, config: Webhook) -> None:
    """Raise TargetError if the configuration forbids posting there; a name is checked when it is resolved."""
    host = url.host or ""
    address = _literal(host)
    is_inner = host.rstrip(".") == "localhost" if address is None else not is_public(address)
    if is_inner and not config.allow_private:
        raise TargetError(f"must not be a private or reserved address, {_unless('allow_private')}")
    if url.scheme == "http" and not (config.allow_http or config.allow_private):
        raise TargetError(f"must be https, {_unless('allow_http')}")


def _unless(setting: str) -> str:
    """The end of an error: which setting allows the target."""
    variable = f"FASTI__WEBHOOK__{setting.upper()}"
    return f"unless the server's configuration has webhook.{setting} = true (or {variable}=true)"


def is_public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv4Address):
        return address.is_global and not (
            address.is_multicast or address.is_reserved or any(address in net for net in _NEVER_V4)
        )
    inner = _inner(address)
    if inner is not None:
        return is_public(inner)
    return address.is_global and not (
        address.is_multicast
        or address.is_reserved
        or address.is_site_local
        or any(address in net for net in _NEVER_V6)
    )


def _inner(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address embedded in an IPv6 address."""
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour


def _literal(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host.partition("%")[0])
    except ValueError:
        return None


class Sockets:
    """Makes sockets for allowed connections."""

    def __init__(self, *, allow_private: bool) -> None:
        self._allow_private = allow_private

    def __call__(self, info: AddrInfoType) -> socket.socket:
        """A socket for the address to connect to. Raises Blocked."""
        family, kind, protocol, _, where = info
        if not self._allow_private:
            address = _literal(str(where[0]))
            if address is None or not is_public(address):
                raise Blocked(PRIVATE)
        made = socket.socket(family, kind, protocol)
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):  # Linux; elsewhere the system's default
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEP_ALIVE_S)
        return made

"""Trusted proxies: finds the client behind a connection or a request.

Off unless `limits.trusted_proxies` names networks. Such claims from any other address are ignored. There are
two ways:

    PROXY protocol      a header before everything else, TLS included; with `mqtt.proxy_protocol`
    Forwarded,          headers of one request; of HTTP and of the request for a websocket
    X-Forwarded-For

Each proxy adds the address of its caller, so the client is the rightmost address that is not a trusted
proxy's. If a request has both headers they must agree: the proxy writes one of them, and the other may be the
client's.

    trusted 10.0.0.0/8, called from 10.0.0.2
    X-Forwarded-For: 1.2.3.4, 203.0.113.9, 10.0.0.1         the client is 203.0.113.9

A PROXY header must be complete within the time of a handshake, in HEADER_MAX bytes. LOCAL or UNKNOWN means
the proxy itself, for a health check.

Source: RFC 7239; haproxy's proxy-protocol.txt, versions 1 and 2.
"""

import asyncio
import re
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple

from ..settings.config import Config
from ..settings.kinds import Network
from .opening import Caller

HEADER_MAX = 552
"""16 bytes, addresses of a UNIX socket, and 320 bytes for further fields."""
LINE_MAX = 107
HOPS_MAX = 32
"""Maximum addresses read in one header, from the right."""
_V1, _V2 = b"PROXY ", b"\r\n\r\n\0\r\nQUIT\n"
_LINE = re.compile(rb"PROXY (?:UNKNOWN[ -~]*|TCP[46] ([0-9A-Fa-f.:]+) [0-9A-Fa-f.:]+ (\d{1,5}) \d{1,5})\r\n")
_FORWARDED = re.compile(rb"\r\n(forwarded|x-forwarded-for):([^\r]*)", re.IGNORECASE)
_FOR = re.compile(r'(?:^|;)\s*for="?([^";]*)', re.IGNORECASE)


class ProxyHeaderError(Exception):
    """A trusted proxy's connection does not begin with a PROXY header."""


class Header(NamedTuple):
    """A PROXY header: its length, and the client's address. `address` empty: the proxy itself."""

    size: int
    address: str = ""
    port: int = 0


class Proxies:
    """The trusted proxies."""

    def __init__(self, networks: Sequence[Network], *, has_header: bool) -> None:
        """`has_header`: they send PROXY headers."""
        self._networks = tuple(networks)
        self.has_header = has_header

    def trusts(self, address: str) -> bool:
        return bool(self._networks) and (found := _parsed(address)) is not None and self._has(found)

    def client_in(self, head: bytes, peer: str) -> str:
        """The address of the client of a request from `peer`, a trusted proxy."""
        lists: dict[bytes, list[str]] = {}
        for name, value in _FORWARDED.findall(head):
            lists.setdefault(name.lower(), []).extend(value.decode("latin-1").split(","))
        found = {self._rightmost(name == b"forwarded", hops, peer) for name, hops in lists.items()}
        return found.pop() if len(found) == 1 else peer

    def _rightmost(self, has_names: bool, hops: list[str], peer: str) -> str:
        """The last address that is not trusted; if one cannot be read, the last readable one."""
        for hop in reversed(hops[-HOPS_MAX:]):
            text = hop.strip()
            if has_names:
                named = _FOR.search(text)
                text = "" if named is None else named[1]
            found = _parsed(text)
            if found is None:
                break
            peer = str(found)
            if not self._has(found):
                break
        return peer

    def _has(self, address: IPv4Address | IPv6Address) -> bool:
        return any(address in network for network in self._networks)


def _parsed(text: str) -> IPv4Address | IPv6Address | None:
    """Parse an address, with or without a port."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def proxies_of(config: Config) -> Proxies:
    return Proxies(config.limits.trusted_proxies, has_header=config.mqtt.proxy_protocol)


def header_in(data: bytes) -> Header | None:
    """The PROXY header at the beginning of data; None: incomplete. Raises ProxyHeaderError."""
    if data[: len(_V2)] == _V2[: len(data)]:
        return _binary_in(data)
    if data[: len(_V1)] != _V1[: len(data)]:
        raise ProxyHeaderError("not a PROXY header")
    if b"\r\n" not in data and len(data) < LINE_MAX:
        return None
    line = _LINE.match(data[:LINE_MAX])
    address = _parsed(line[1].decode()) if line is not None and line[1] else None
    if line is None or (line[1] and address is None):
        raise ProxyHeaderError("the PROXY line is invalid")
    return Header(line.end(), "" if address is None else str(address), int(line[2] or 0))


def _binary_in(data: bytes) -> Header | None:
    if len(data) < len(_V2) + 4:
        return None
    command, family, rest = data[12], data[13], int.from_bytes(data[14:16])
    size = 16 + rest
    if command not in (0x20, 0x21) or size > HEADER_MAX:
        raise ProxyHeaderError("the PROXY header is not version 2, or is too long")
    if len(data) < size:
        return None
    wide = {0x11: 4, 0x21: 16}.get(family, 0)
    if command == 0x20 or not wide:
        return Header(size)
    if rest < 2 * wide + 4:
        raise ProxyHeaderError("the PROXY header's addresses are incomplete")
    port = int.from_bytes(data[16 + 2 * wide : 18 + 2 * wide])
    return Header(size, str(_parsed(str(ip_address(data[16 : 16 + wide])))), port)


async def introduced(caller: Caller, *, is_needed: bool) -> Caller:
    """Read a trusted proxy's PROXY header; returns its client. Raises ProxyHeaderError.

    `is_needed` False: the header may be missing.
    """
    accepted, data = caller.accepted, b""
    while True:
        before, data = data, await _peeked(accepted, len(data))
        if len(data) <= len(before):
            raise ProxyHeaderError("the connection ended inside the PROXY header")
        try:
            header = header_in(data)
        except ProxyHeaderError:
            if is_needed or data.startswith((_V1, _V2)):
                raise
            return caller
        if header is not None:
            accepted.recv(header.size)
            return caller._replace(address=header.address, port=header.port) if header.address else caller


async def _peeked(accepted: socket.socket, known: int) -> bytes:
    """Peek at the input once it exceeds `known` bytes, or at its end."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, known + 1)
    loop.add_reader(accepted, readable.set)
    try:
        await readable.wait()
        return accepted.recv(HEADER_MAX, socket.MSG_PEEK)
    except OSError:
        return b""
    finally:
        loop.remove_reader(accepted)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)

"""Addresses of the server, or of a cluster's nodes.

One node of a cluster leads, and every node says which: HTTP by 307 with the leader's URL, MQTT by a reference
to another server. The client follows both, and remembers the leader for the next call. If a node does not
answer, or knows no leader, it tries the others in turn.

Rules for sending the API key: a given address may redirect to any other, because leaders announce names of
their own, and the key is sent there. That address may redirect only to given ones. No redirect leads from
https to http, and no reference from MQTT with TLS to plain MQTT unless `allow_plain` says so. So an attacker
on the wire gets the key only where it could be read anyway, over plain http. Where an address of this
machine, as of a tunnel, leads to another one without TLS, that is warned of (`Plain`). A redirect changes
only the server: method, path, query and body stay the caller's, and a `Location` with another path is
refused.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from yarl import URL

from .errors import BadArgument, UnencryptedWarning
from .names import items_of
from .warned import warn

HOPS = 5
"""Redirects that one request or connection follows in a row."""
REDIRECTS = (301, 302, 307, 308)
_PORT_MAX = 65_535
_PORTS = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
_SCHEMES = {"tcp": "mqtt", "tls": "mqtts", "ws": "ws", "wss": "wss"}  # by the transports of /v1/info
_SECURE = ("mqtts", "wss")
_PLAIN = ("http", "mqtt", "ws")
_WEBSOCKETS = ("ws", "wss")
_USER = re.compile(r"(^|//)[^/?#]*@")
_ANYWHERE = ("", "0.0.0.0", "::")
_BROKER = re.compile(
    r"(?:(?P<scheme>[A-Za-z]+)://)?(?P<host>\[[^\]/]*\]|[^:/@\s]+)(?::(?P<port>\d{1,5}))?(?P<path>/\S*)?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Broker:
    """An address of MQTT. `scheme`: mqtt, mqtts, ws or wss; `path`: of a websocket."""

    host: str
    port: int
    scheme: str = "mqtt"
    path: str = "/mqtt"

    @property
    def has_tls(self) -> bool:
        return self.scheme in _SECURE

    @property
    def is_websocket(self) -> bool:
        return self.scheme in _WEBSOCKETS

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path if self.is_websocket else ''}"


def is_local(host: str | None) -> bool:
    """Whether it is this machine: what goes there is on no wire."""
    if host is None or host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Plain:
    """Warns, once, that the key goes to another machine without TLS. `allowed`: it may, by `allow_plain`."""

    def __init__(self, key: str | None, *, allowed: bool) -> None:
        self.allowed = allowed
        self._is_quiet = allowed or not key

    def warn(self, *addresses: URL | Broker) -> None:
        """Addresses that were given, or that a server has named."""
        plain = [str(one) for one in addresses if one.scheme in _PLAIN and not is_local(one.host)]
        if plain and not self._is_quiet:
            self._is_quiet = True
            text = f"the API key goes in clear to {', '.join(plain)}: use https:// and mqtts://, or say"
            warn(f"{text} allow_plain=True (--allow-plain)", UnencryptedWarning)


def base_url(text: str) -> str:
    """The address of a server; the default scheme is `http://`. Raises BadArgument."""
    _check_user("url", text)
    named = text if "://" in text else f"http://{text}"
    try:
        url = URL(named)
    except ValueError as error:
        raise BadArgument("url", f"{text!r} is no address of a server: {error}") from None
    # `https:/host` and `https//host` would be plain HTTP to a host of that name.
    if url.scheme not in ("http", "https") or url.host in (None, "", "http", "https"):
        raise BadArgument(
            "url", f"{text!r} is no address of a server: http://host:port is expected, or https"
        )
    return f"{url.scheme}://{named.partition('://')[2].rstrip('/')}"


def _check_user(argument: str, text: str) -> None:
    """Raises BadArgument, without the text, for an address that may hold a password."""
    if _USER.search(text):
        raise BadArgument(
            argument, "must not hold a user name or a password; a key is given as key=, --key or FASTI_KEY"
        )


def addresses(given: str | Sequence[str], argument: str = "url") -> tuple[str, ...]:
    """The addresses in a sequence, or in text separated by commas. Raises BadArgument if there is none."""
    texts = given.split(",") if isinstance(given, str) else [*items_of(argument, given)]
    for text in texts:
        if not isinstance(text, str):
            raise BadArgument(argument, f"must be text, or a list of texts, not {text!r:.100}")
    if not (found := tuple(text.strip() for text in texts if text.strip())):
        raise BadArgument(argument, "contains no server address")
    return found


class Servers:
    """The base URLs of one client, and which of them it speaks to: the first, until it learns better."""

    def __init__(self, given: str | Sequence[str]) -> None:
        self.given = tuple(base_url(text) for text in addresses(given))
        self._index = 0
        self._named: str | None = None  # a leader that was named and not given
        self._has_followed = False

    @property
    def current(self) -> str:
        return self._named or self.given[self._index]

    @property
    def has_tls(self) -> bool:
        """Whether any of the given ones is https."""
        return any(base.startswith("https://") for base in self.given)

    @property
    def is_cluster(self) -> bool:
        """Whether the leader may change, as in a cluster."""
        return len(self.given) > 1 or self._has_followed

    def turn(self, tried: str) -> None:
        """Move from `tried` to the next address, unless another call already has."""
        if tried != self.current:
            return
        self._index, self._named = (self._index + 1) % len(self.given), None

    def follow(self, answered: str, location: str, path: str) -> bool:
        """`answered` redirected `path`, encoded. False: the redirect is not allowed; stay.

        If an address that was not given redirects to another such: return to the given ones.
        """
        base = _base_of(answered, location, path)
        if base is None:
            return False
        self._has_followed = True
        if base in self.given:
            self._index, self._named = self.given.index(base), None
        elif answered in self.given:
            self._named = base
        else:
            self.turn(answered)
        return True


def _base_of(answered: str, location: str, path: str) -> str | None:
    """The base URL in the `Location` of a redirect for `path`; None: not allowed."""
    try:
        wanted, came = URL(path, encoded=True).path, URL(answered + path, encoded=True)
        target = came.join(URL(location, encoded=True))
        is_leader = target.scheme in ("http", "https") and target.host and target.path.endswith(wanted)
        if not is_leader or target.user is not None or (came.scheme, target.scheme) == ("https", "http"):
            return None
        return str(target.origin()) + target.path[: -len(wanted)].rstrip("/")
    except ValueError:
        return None


class Brokers:
    """The broker of one subscription: the given ones in turn, or the one that it was redirected to."""

    def __init__(
        self,
        find: Callable[[], Awaitable[tuple[Broker, ...]]],
        has_others: Callable[[], bool],
        plain: Plain,
    ) -> None:
        """`find` returns the given brokers, or those that the server names. It is called again each round.
        `has_others`: whether its result may change. `plain`: whether a reference may lead from TLS to plain.
        """
        self._find = find
        self.has_others = has_others
        self._plain = plain
        self._current: Broker | None = None
        self._given: tuple[Broker, ...] = ()
        self._index = 0
        self._named: Broker | None = None

    @property
    def count(self) -> int:
        """Number of brokers to try; 1 until known."""
        return max(1, len(self._given))

    async def current(self) -> Broker:
        """Raises what `find` raises."""
        if self._named is None and self._index >= len(self._given):
            self._given, self._index = await self._find(), 0
        self._current = self._named or self._given[self._index]
        return self._current

    def turn(self) -> None:
        """Move from the current broker to the next one."""
        self._index, self._named = self._index + 1, None

    def follow(self, reference: str | None) -> bool:
        """Follow the reference of the current broker. False: it cannot be followed."""
        current = self._current
        if current is None:
            return False
        named = (_referred(text, current) for text in (reference or "").split())
        allowed = (
            one for one in named if one and (one.has_tls or self._plain.allowed or not current.has_tls)
        )
        broker = next(allowed, None)
        if broker is None:
            return False
        if broker in self._given:
            self._index, self._named = self._given.index(broker), None
        elif self._named is None:
            self._named = broker
            self._plain.warn(broker)
        else:
            self.turn()
        return True


def broker(text: str) -> Broker:
    """The address in "host:port", "mqtts://host", "wss://host/path". Raises BadArgument."""
    _check_user("mqtt", text)
    found = _BROKER.fullmatch(text.strip())
    if found is not None:
        scheme = (found["scheme"] or "mqtt").lower()
        port = int(found["port"] or (_PORTS.get(scheme, 0) if found["scheme"] else 0))
        path = found["path"] if scheme in _WEBSOCKETS else None
        is_odd = found["path"] not in (path, "/")
        if scheme in _PORTS and 0 < port <= _PORT_MAX and not is_odd:
            return Broker(found["host"].strip("[]"), port, scheme, path or "/mqtt")
    raise BadArgument(
        "mqtt", f"must be host:port, or a URL with mqtt://, mqtts://, ws:// or wss://, not {text!r}"
    )


def listener_of(listeners: Sequence[Mapping[str, Any]], base: str) -> Broker | None:
    """Of MQTT's listeners in `/v1/info`, as `base` answered, the one to use; None: there is none.

    One with TLS if `base` is https, if there is one. TCP comes before websockets.
    """
    url = URL(base)
    wanted = ("mqtts", "wss", "mqtt", "ws") if url.scheme == "https" else ("mqtt", "mqtts", "ws", "wss")
    found = [one for one in (_listener(each, url.host or "127.0.0.1") for each in listeners) if one]
    return min(found, key=lambda one: wanted.index(one.scheme), default=None)


def _listener(listener: Mapping[str, Any], host: str) -> Broker | None:
    """None: of a kind that is not known here. `host`: for one that listens everywhere."""
    try:
        if listener.get("url"):
            one = broker(str(listener["url"]))
        else:
            scheme = _SCHEMES[listener.get("transport", "tcp")]
            one = Broker(str(listener.get("host", "")), int(listener["port"]), scheme)
    except (KeyError, ValueError):
        return None
    return replace(one, host=host) if one.host in _ANYWHERE else one


def _referred(text: str, current: Broker) -> Broker | None:
    """A server in a reference; without a scheme or port those of `current` count. None: it cannot be read."""
    try:
        one = broker(text if "://" in text else f"{current.scheme}://{text}")
    except ValueError:
        return None
    return replace(one, path=current.path) if "://" not in text else one

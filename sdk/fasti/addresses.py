"""Addresses of the server, or of a cluster's nodes.

One node of a cluster leads, and every node says which: HTTP by 307 with the leader's URL, MQTT by a reference
to another server. The client follows both, and remembers the leader for the next call. If a node does not
answer, or knows no leader, it tries the others in turn.

Rules for sending the API key: a given address may redirect to any other, because leaders announce names of
their own, and the key is sent there. That address may redirect only to given ones. No redirect leads from
https to http. So an attacker on the wire gets the key only where it could be read anyway, over plain http. A
redirect changes only the server: method, path, query and body stay the caller's, and a `Location` with
another path is refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from yarl import URL

HOPS = 5
"""Redirects that one request or connection follows in a row."""
REDIRECTS = (301, 302, 307, 308)
_MQTT_PORT = 1883

Broker = tuple[str, int]
"""Host and port of MQTT."""


def base_url(text: str) -> str:
    """The address of a server; the default scheme is `http://`. Raises ValueError."""
    named = text if "://" in text else f"http://{text}"
    try:
        url = URL(named)
    except ValueError as error:
        raise ValueError(f"{text!r} is no address of a server: {error}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(f"{text!r} is no address of a server: http://host:port is expected, or https")
    return named.rstrip("/")


def addresses(said: str | Sequence[str]) -> tuple[str, ...]:
    """The addresses in a sequence, or in text separated by commas. Raises ValueError if there is none."""
    texts = said.split(",") if isinstance(said, str) else said
    found = tuple(text.strip() for text in texts if text.strip())
    if not found:
        raise ValueError("no address of a server")
    return found


class Servers:
    """The base URLs of one client, and which of them it speaks to: the first, until it learns better."""

    def __init__(self, said: str | Sequence[str]) -> None:
        self.given = tuple(base_url(text) for text in addresses(said))
        self._index = 0
        self._told: str | None = None  # a leader that was named and not given
        self._has_followed = False

    @property
    def current(self) -> str:
        return self._told or self.given[self._index]

    @property
    def is_cluster(self) -> bool:
        """Whether the leader may change, as in a cluster."""
        return len(self.given) > 1 or self._has_followed

    def turn(self, tried: str) -> None:
        """Move from `tried` to the next address, unless another call already has."""
        if tried != self.current:
            return
        self._index, self._told = (self._index + 1) % len(self.given), None

    def follow(self, answered: str, location: str, path: str) -> bool:
        """`answered` redirected `path`, encoded. False: the redirect is not allowed; stay.

        If an address that was not given redirects to another such: return to the given ones.
        """
        base = _base_of(answered, location, path)
        if base is None:
            return False
        self._has_followed = True
        if base in self.given:
            self._index, self._told = self.given.index(base), None
        elif answered in self.given:
            self._told = base
        else:
            self.turn(answered)
        return True


def _base_of(answered: str, location: str, path: str) -> str | None:
    """The base URL in the `Location` of a redirect for `path`; None: not allowed."""
    try:
        asked, came = URL(path, encoded=True).path, URL(answered + path, encoded=True)
        target = came.join(URL(location, encoded=True))
        is_leader = target.scheme in ("http", "https") and target.host and target.path.endswith(asked)
        if not is_leader or target.user is not None or (came.scheme, target.scheme) == ("https", "http"):
            return None
        return str(target.origin()) + target.path[: -len(asked)].rstrip("/")
    except ValueError:
        return None


class Brokers:
    """The broker of one subscription: the given ones in turn, or the one that it was redirected to."""

    def __init__(
        self, find: Callable[[], Awaitable[tuple[Broker, ...]]], has_others: Callable[[], bool]
    ) -> None:
        """`find` returns the given brokers, or those that the server names. It is called again each round.
        `has_others`: whether its result may change.
        """
        self._find = find
        self.has_others = has_others
        self._given: tuple[Broker, ...] = ()
        self._index = 0
        self._told: Broker | None = None

    @property
    def count(self) -> int:
        """Number of brokers to try; 1 until known."""
        return max(1, len(self._given))

    async def current(self) -> Broker:
        """Raises what `find` raises."""
        if self._told is not None:
            return self._told
        if self._index >= len(self._given):
            self._given, self._index = await self._find(), 0
        return self._given[self._index]

    def turn(self) -> None:
        """Move from the current broker to the next one."""
        self._index, self._told = self._index + 1, None

    def follow(self, reference: str | None) -> bool:
        """Follow the reference of the current broker. False: it cannot be followed."""
        broker = _referred(reference)
        if broker is None:
            return False
        if broker in self._given:
            self._index, self._told = self._given.index(broker), None
        elif self._told is None:
            self._told = broker
        else:
            self.turn()
        return True


def broker(text: str) -> Broker:
    """host and port of "host:port", "[::1]:1883" or "mqtt://host:port". Raises ValueError."""
    host, colon, port = text.removeprefix("mqtt://").rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError(f"mqtt must be host:port, not {text!r}")
    return host.strip("[]"), int(port)


def _referred(reference: str | None) -> Broker | None:
    """The first of the servers that a reference names; None: it names none that can be read."""
    for text in (reference or "").split():
        has_port = text.rpartition(":")[2].isdigit() and not text.endswith("]")
        host, port = broker(text if has_port else f"{text}:{_MQTT_PORT}")
        if host and 0 < port <= 0xFFFF:
            return host, port
    return None

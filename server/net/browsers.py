"""Pages in a browser that may use this server: one rule for HTTP and for websockets.

A browser runs any page that its user opens, and lets it send requests to any server that the browser can
reach, including this one on the user's own machine. Two headers, which pages cannot forge, distinguish such
requests from those of programs.

*Host* is the name in the page's URL. If evil.example suddenly resolves to 127.0.0.1 ("DNS rebinding") the
browser takes its page for one of the server's own origin, but Host is evil.example. So only names of this
server are answered:

    listening on loopback       localhost, 127.0.0.1, [::1], with the port listened at or none
    listening elsewhere         any address, localhost, the name listened at: none that a stranger could own
    and always                  those of http.hosts, "*": any; that of http.public_url

Beyond loopback, with a keys file and an empty http.hosts, any name is answered: a page without a key gets
nothing there, and the names that proxies and clusters use are unknown.

*Origin* says where a page is from, with scheme and port; a page cannot omit it in a request that changes
something. So a request that changes something, or opens a websocket, must come from a program (neither Origin
nor Sec-Fetch-Site), from this origin, that of http.public_url, or from one of http.origins. Reading needs no
rule: a page sees only answers that CORS opens to it, which is done only for the latter two.

Source: RFC 6454; the Fetch standard, "CORS protocol" and "Sec-Fetch-Site".
"""

import ipaddress
from asyncio import BaseTransport
from collections.abc import Sequence

from ..settings.config import Config
from ..settings.kinds import Address

LOCAL = ("localhost", "127.0.0.1", "[::1]")
OWN_SITES = ("", "none", "same-origin")
DEFAULT_PORTS = {"http": ":80", "https": ":443"}


class ForeignHost(Exception):
    """The Host of the request is not a name of this server."""


class ForeignOrigin(Exception):
    """The request comes from a page that is not allowed."""


class Pages:
    """The rule for one listener."""

    def __init__(
        self,
        listen: Address,
        *,
        hosts: Sequence[str],
        origins: Sequence[str],
        has_api_keys: bool,
        public_url: str = "",
    ) -> None:
        """`hosts` are names, with a port or for any port; `has_api_keys`: nothing is served without a key.
        `public_url`: that of HTTP, if there is one."""
        own = f"[{listen.host}]" if ":" in listen.host else listen.host
        self._names = frozenset((*LOCAL, own.lower()))
        self._is_loopback = listen.is_loopback
        scheme, _, rest = public_url.lower().partition("://")
        public = rest.partition("/")[0]
        self._hosts = frozenset((*hosts, public) if public else hosts)
        own_origin = f"{scheme}://{public.removesuffix(DEFAULT_PORTS.get(scheme, ''))}"
        self._origins = frozenset((*origins, own_origin) if public else origins)
        self._is_any = "*" in hosts or (has_api_keys and not hosts and not listen.is_loopback)

    def check(
        self, host: str, origin: str | None, fetch_site: str, transport: BaseTransport, *, changes: bool
    ) -> None:
        """Raise ForeignHost or ForeignOrigin. `changes`: the request does more than read."""
        self.check_host(host, transport)
        if not changes:
            return
        if origin is None:
            if fetch_site.lower() not in OWN_SITES and "*" not in self._origins:
                raise ForeignOrigin("Pages of this other origin are not allowed (http.origins).")
        elif not self.opens_to(origin) and not _is_own(origin, host, transport):
            raise ForeignOrigin("Pages of this origin are not allowed (http.origins).")

    def check_host(self, host: str, transport: BaseTransport) -> None:
        """Raise ForeignHost. An empty host passes: no browser speaks HTTP/1.0."""
        if self._is_any or not host:
            return
        lower = host.lower()
        name, colon, port = lower.rpartition(":")
        if not colon or port.endswith("]"):
            name, port = lower, ""
        if name in self._hosts or lower in self._hosts:
            return
        if self._is_loopback:
            if name in self._names and port in ("", str(transport.get_extra_info("sockname")[1])):
                return
        elif name in self._names or _is_address(name):
            return
        raise ForeignHost("The request names a host that this server does not serve (http.hosts).")

    @property
    def opens_to_some(self) -> bool:
        """Whether pages of any other origin are allowed."""
        return bool(self._origins)

    def opens_to(self, origin: str | None) -> bool:
        """Whether pages of this origin may do everything and read the answers; None: no origin."""
        return origin is not None and ("*" in self._origins or origin.lower() in self._origins)


def http_pages(config: Config) -> Pages:
    """The rule for the HTTP listener."""
    has_api_keys = bool(config.auth.keys_file)
    return _pages(config, config.http.listen, has_api_keys=has_api_keys)


def websocket_pages(config: Config, listen: Address) -> Pages:
    """The rule for an MQTT listener over websockets."""
    # If clients without a key are let in, a page gets much without one, even if there are keys.
    has_api_keys = bool(config.auth.keys_file) and not config.lets_anybody(listen)
    return _pages(config, listen, has_api_keys=has_api_keys)


def _pages(config: Config, listen: Address, *, has_api_keys: bool) -> Pages:
    http = config.http
    return Pages(
        listen, hosts=http.hosts, origins=http.origins, has_api_keys=has_api_keys, public_url=http.public_url
    )


def _is_own(origin: str, host: str, transport: BaseTransport) -> bool:
    scheme = "http" if transport.get_extra_info("sslcontext") is None else "https"
    default = DEFAULT_PORTS[scheme]
    return bool(host) and origin.lower().removesuffix(default) == f"{scheme}://{host}".lower().removesuffix(
        default
    )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True

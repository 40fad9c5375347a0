"""The addresses that clients get: the public ones, or those where the server listens.

`/v1/info`, redirects of a node that does not lead, and its claims in the log all take them from here.

    http.public_url = "https://fasti.example.com"       https://fasti.example.com
    empty, the request's Host is fasti:8080             http://fasti:8080
    mqtt.listen = "mqtts://0.0.0.0:8883", same Host     mqtts://fasti:8883

An address that listens everywhere names no machine: the name by which the client has reached HTTP stands in
its place. So it does for a listener with TLS at the address of HTTP, because certificates have names.
"""

from collections.abc import Sequence
from dataclasses import replace

from .config import Config
from .kinds import SECURE, WEBSOCKET_PATH, WEBSOCKETS, Address


def public_url(config: Config, reached: str) -> str:
    """Base URL of HTTP. `reached`: host and port by which a client has reached it."""
    scheme = "https" if config.http.tls_cert else "http"
    return config.http.public_url or f"{scheme}://{reached}"


def public_mqtt(config: Config, listening: Sequence[Address], reached: str = "") -> tuple[Address, ...]:
    """MQTT's addresses. `listening`: with schemes, and the ports that they have; `reached`: as above."""
    if config.mqtt.public_urls:
        return config.mqtt.public_urls
    name = _name_of(reached)
    return tuple(_public(one, config.http.listen, name) for one in listening)


def _public(listener: Address, http: Address, name: str) -> Address:
    is_named = listener.is_everywhere or (listener.has_tls and listener.host == http.host)
    path = WEBSOCKET_PATH if listener.is_websocket else ""
    return replace(listener, host=name if name and is_named else listener.host, path=path)


def _name_of(authority: str) -> str:
    """The host in host:port."""
    host, colon, port = authority.rpartition(":")
    return (host if colon and not port.endswith("]") else authority).strip("[]")


def reference_for(scheme: str, urls: Sequence[str]) -> str:
    """The server reference for a client of a listener with this scheme; empty: none.

    The first URL with the same scheme, else the first one that is not less secure. Without its scheme if that
    is clear to the client: "a.example:1883".
    """
    same = [url for url in urls if url.startswith(f"{scheme}://")]
    if same:
        return same[0] if scheme in WEBSOCKETS else same[0].partition("://")[2]
    return next((url for url in urls if scheme not in SECURE or url.partition("://")[0] in SECURE), "")

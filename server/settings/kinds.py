"""Kinds of settings: reading a value of config.toml, and showing it in `--check`.

A kind is a pair of functions. `read` takes a TOML value (text, number, flag, list) or the text of an
environment variable, for which every kind has a text form. It raises ValueError with what was expected:

    duration    604_800, "7d", "90s", "1h30m", "PT15M"      -> ms
    size        65_536, "64KiB", "16MiB"                    -> bytes; binary units only
    filters     ["a/#"], from a variable a/#,b or ["a/#"]   -> tuple of checked topic filters
    address     "127.0.0.1:8080", "[::1]:0"                 -> Address
"""

import ipaddress
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from shards.archives import archive_url
from timeline.filters import check_filter

from .durations import parse_delay

T = TypeVar("T")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


HIDDEN = "***"
"""Shown in place of a secret."""
_PASSWORD = re.compile(
    r"""((?:nats|tls)://)[^\s'":/]+(?=@)|(://[^'":/@]*:)[^"]*(?=@)|(\b[\w%]*pass[\w%]*=)[^&"]*?(?=[&"]|'?$)""",
    re.IGNORECASE,
)


class KindError(ValueError):
    """A value of the wrong kind; the message says what is expected."""


@dataclass(frozen=True, slots=True)
class SettingKind(Generic[T]):
    """`read` takes a TOML value or the text of a variable and raises ValueError; `show` is its inverse."""

    read: Callable[[object], T]
    show: Callable[[T], str] = str
    is_secret: bool = False
    """Whether errors must hide the value, too."""


def where(host: object, port: object) -> str:
    """An address as in URLs: IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class Address:
    """An address to listen at, port 0: any free one; or one that clients use. `scheme` is mqtt, mqtts, ws or
    wss, or empty. `path`: of a websocket that clients use."""

    host: str
    port: int
    scheme: str = ""
    path: str = ""

    def __str__(self) -> str:
        at = where(self.host, self.port) + self.path
        return f"{self.scheme}://{at}" if self.scheme else at

    @property
    def has_tls(self) -> bool:
        return self.scheme in SECURE

    @property
    def is_websocket(self) -> bool:
        return self.scheme in WEBSOCKETS

    @property
    def is_everywhere(self) -> bool:
        """Whether it stands for every address of this machine."""
        return self.host in ("0.0.0.0", "::")

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


class CannotListen(OSError):
    """An address that cannot be listened at."""

    def __init__(self, address: Address, reason: str) -> None:
        super().__init__(f"cannot listen at {address}: {reason}")
        self.address = address


_SIZE = re.compile(r"(\d{1,15}) ?(B|KiB|MiB|GiB|TiB)", re.ASCII)
_SIZE_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_MS_UNITS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}


def _read_int(value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"\d{1,15}", value, re.ASCII):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise KindError("must be a whole number")
    return value


def _bounded(value: int, low: int, high: int | None) -> int:
    if value < low or (high is not None and value > high):
        raise KindError(f"must be at least {low}" if high is None else f"must be from {low} to {high}")
    return value


def read_size(value: object) -> int:
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if found:
        return int(found[1]) * _SIZE_UNITS[found[2]]
    try:
        return _read_int(value)
    except ValueError:
        raise KindError('must be a size: bytes, or a string such as "64KiB", "16MiB", "1GiB"') from None


def show_size(size: int) -> str:
    """Bytes in the largest binary unit that divides them: 64MiB."""
    for unit in ("GiB", "MiB", "KiB"):
        if size and size % _SIZE_UNITS[unit] == 0:
            return f"{size // _SIZE_UNITS[unit]}{unit}"
    return str(size)


def _read_ms(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise KindError('must be a duration: seconds, or a string such as "7d", "90s", "5 minutes"')
    return parse_delay(value)


def _show_ms(duration_ms: int) -> str:
    unit = next((unit for unit, ms in _MS_UNITS.items() if duration_ms % ms == 0), "ms")
    return f"{duration_ms // _MS_UNITS[unit]}{unit}" if duration_ms else "0"


def _read_flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "1", "false", "0"):
        return value.lower() in ("true", "1")
    raise KindError("must be true or false")


def _read_text(value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise KindError("must be a string")
    return value


def _read_name(value: object) -> str:
    if not _read_text(value):
        raise KindError("must not be empty")
    return _read_text(value)


def without_password(url: str) -> str:
    """A URL without its password, for display. PostgreSQL also reads a password from a parameter. NATS reads
    a token in place of the user name. A password may have been written with a raw `/`, `@` or blank."""
    return _PASSWORD.sub(lambda found: f"{found[1] or found[2] or found[3]}{HIDDEN}", url)


def _read_log(value: object) -> str:
    """Read the URL of a cluster's log; empty: none."""
    text = _read_text(value)
    if text and not text.startswith(LOGS):
        raise ValueError(f"must be empty or begin with {', '.join(LOGS)}")
    return text


def _listed(value: object) -> object:
    """A list; in a variable as JSON, or separated by commas."""
    if not isinstance(value, str):
        return value
    return json.loads(value) if value.startswith("[") else [part for part in value.split(",") if part]


def _show_texts(values: object) -> str:
    return json.dumps(values, default=str)


def _texts(value: object, what: str) -> list[str]:
    value = _listed(value)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise KindError(f"must be a list of {what}")
    return value


def _read_filters(value: object) -> tuple[str, ...]:
    filters = _texts(value, "topic filters")
    for item in filters:
        check_filter(item)
    return tuple(filters)


def _names(what: str, pattern: str, like: str) -> "SettingKind[tuple[str, ...]]":
    """Names that match the pattern, in lower case, or "*"."""

    def read(value: object) -> tuple[str, ...]:
        names = tuple(item.strip().lower() for item in _texts(value, what))
        if not all(name == "*" or re.fullmatch(pattern, name) for name in names):
            raise KindError(like)
        return names

    return SettingKind(read, json.dumps)


def _read_networks(value: object) -> tuple[Network, ...]:
    networks = _texts(value, "networks")
    try:
        return tuple(ipaddress.ip_network(item.strip()) for item in networks)
    except ValueError:
        raise KindError('a network must be like "10.0.0.0/8", "192.0.2.7", "2001:db8::/32"') from None


def _read_address(value: object) -> Address:
    host, colon, port = _read_text(value).rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    unclear = ":" in host and bare == host
    if not colon or not bare or unclear or not re.fullmatch(r"\d{1,5}", port, re.ASCII):
        raise KindError('must be an address: "127.0.0.1:8080", "[::1]:8080", "localhost:0"')
    return Address(bare, _bounded(int(port), 0, 65_535))


def _read_listeners(value: object) -> tuple[Address, ...]:
    """Read one address, several separated by commas, or a list; each with or without a scheme (mqtt)."""
    if isinstance(value, str):
        value = json.loads(value) if value.startswith('["') else [part.strip() for part in value.split(",")]
    if not isinstance(value, list) or not value:
        raise KindError("must be an address or a list of addresses")
    return tuple(_read_listener(item) for item in value)


def _read_listener(value: object) -> Address:
    scheme, separator, rest = _read_text(value).rpartition("://")
    if separator and scheme not in SCHEMES:
        raise KindError(f"must begin with one of {', '.join(SCHEMES)}")
    address = _read_address(rest)
    return Address(address.host, address.port, scheme)


def _read_url(value: object) -> str:
    """Read the base URL of an HTTP server; empty: none."""
    text = _read_text(value).strip()
    if text and not (len(text) <= URL_CHARS_MAX and _URL.fullmatch(text)):
        raise KindError('must be like "https://fasti.example.com", with its port if it has one')
    return text.rstrip("/")


def _read_mqtt_urls(value: object) -> tuple[Address, ...]:
    value = _listed(value)
    if not isinstance(value, list) or len(value) > MQTT_URLS_MAX:
        raise KindError(f"must be a list of at most {MQTT_URLS_MAX} URLs")
    return tuple(_read_mqtt_url(item) for item in value)


def _read_mqtt_url(value: object) -> Address:
    found = _MQTT_URL.fullmatch(_read_text(value).strip()[: URL_CHARS_MAX + 1])
    scheme = found["scheme"] or "mqtt" if found else "mqtt"
    if found is None or len(found[0]) > URL_CHARS_MAX or (found["path"] and scheme not in WEBSOCKETS):
        raise KindError(
            'must be URLs such as "mqtts://fasti.example.com:8883", "wss://fasti.example.com/mqtt"'
        )
    path = (found["path"] or WEBSOCKET_PATH) if scheme in WEBSOCKETS else ""
    port = _bounded(int(found["port"] or MQTT_PORTS[scheme]), 1, 65_535)
    return Address(found["host"].strip("[]"), port, scheme, path)


def _read_anonymous(value: object) -> "bool | tuple[Address, ...] | None":
    """Read true, false, or listeners; None: the default rule."""
    if value == "auto":
        return None
    try:
        return _read_flag(value)
    except KindError:
        if isinstance(value, str) and ":" not in value:
            raise KindError('must be true, false, "auto" or a list of listeners') from None
    return _read_listeners(value)


def _show_anonymous(given: "bool | tuple[Address, ...] | None") -> str:
    if isinstance(given, tuple):
        return _show_listeners(given)
    return "auto" if given is None else FLAG.show(given)


def _show_listeners(listeners: tuple[Address, ...]) -> str:
    return ", ".join(map(str, listeners))


def _read_spark(value: object) -> str:
    if value in ("auto", "on", "off"):
        return str(value)
    return "on" if _read_flag(value) else "off"


def count(low: int = 1, high: int | None = None) -> SettingKind[int]:
    """A whole number from `low` to `high`."""
    return SettingKind(lambda value: _bounded(_read_int(value), low, high))


def size(low: int = 1, high: int | None = None) -> SettingKind[int]:
    """Bytes from `low` to `high`."""
    return SettingKind(lambda value: _bounded(read_size(value), low, high), show_size)


def ms(low: int, high: int) -> SettingKind[int]:
    """A duration from `low` to `high` ms."""

    def read(value: object) -> int:
        found = _read_ms(value)
        if not low <= found <= high:
            raise KindError(f"must be from {_show_ms(low)} to {_show_ms(high)}")
        return found

    return SettingKind(read, _show_ms)


def _read_catalog(value: object) -> str:
    """Read the name of an Iceberg catalog, or its URI. It is shown with jobs: so without a password."""
    text = _read_text(value)
    scheme, is_uri, rest = text.partition("://")
    if is_uri and scheme not in CATALOGS:
        raise KindError(f"must be a name, or a URI with one of {', '.join(f'{one}:' for one in CATALOGS)}")
    if is_uri and "@" in rest.partition("/")[0] and ":" in rest.partition("@")[0]:
        raise KindError("must not have a password: give it in pyiceberg's configuration, or as PGPASSWORD")
    return text


def choice(*words: str) -> SettingKind[str]:
    """One of `words`."""

    def read(value: object) -> str:
        if value not in words:
            raise KindError(f"must be one of {', '.join(words)}")
        return str(value)

    return SettingKind(read)


def _whole_s(value: object) -> int:
    seconds, rest_ms = divmod(_read_ms(value), 1_000)
    if rest_ms:
        raise KindError("must be whole seconds")
    return _bounded(seconds, 0, 65_535)


def _read_backoff(value: object) -> tuple[int, ...]:
    """Read durations; in a variable as JSON, or separated by commas."""
    if isinstance(value, str):
        value = json.loads(value) if value.startswith("[") else [part.strip() for part in value.split(",")]
    if not isinstance(value, list) or not 0 < len(value) <= BACKOFF_STEPS_MAX:
        raise KindError(f"must be a list of 1 to {BACKOFF_STEPS_MAX} durations")
    return tuple(_read_ms(item) for item in value)


BACKOFF_STEPS_MAX = 32
CATALOGS = ("sqlite", "postgresql", "http", "https")
LOGS = ("nats://", "tls://", "postgresql://", "postgres://")
MQTT_PORTS = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
SCHEMES = tuple(MQTT_PORTS)
SECURE, WEBSOCKETS = ("mqtts", "wss"), ("ws", "wss")
MQTT_URLS_MAX, URL_CHARS_MAX = 16, 256
WEBSOCKET_PATH = "/mqtt"
_HOST = r"(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)"
_URL = re.compile(rf"https?://{_HOST}(?::\d{{1,5}})?(?:/[A-Za-z0-9._~/-]*)?", re.ASCII)
_MQTT_URL = re.compile(
    rf"(?:(?P<scheme>{'|'.join(SCHEMES)})://)?(?P<host>{_HOST})(?::(?P<port>\d{{1,5}}))?"
    r"(?P<path>/[A-Za-z0-9._~/-]*)?",
    re.ASCII,
)
ADDRESS = SettingKind(_read_address)
ARCHIVE = SettingKind(lambda value: archive_url(text) if (text := _read_text(value)) else "", json.dumps)
CATALOG = SettingKind(_read_catalog, json.dumps)
ANONYMOUS = SettingKind(_read_anonymous, _show_anonymous)
HOSTS = _names(
    "hosts",
    r"(?:\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?",
    'a host must be like "fasti.example.com", with a port if only that one is meant, or "*"',
)
LISTENERS = SettingKind(_read_listeners, _show_listeners)
ATTEMPTS = SettingKind(
    lambda value: None if value == "auto" else _bounded(_read_int(value), 0, None),
    lambda number: "auto" if number is None else str(number),
)
BACKOFF = SettingKind(_read_backoff, lambda steps: json.dumps([_show_ms(step) for step in steps]))
FILTERS = SettingKind(_read_filters, json.dumps)
FLAG = SettingKind(_read_flag, lambda flag: "true" if flag else "false")
LOG = SettingKind(_read_log, lambda url: json.dumps(without_password(url)))
MQTT_URLS = SettingKind(_read_mqtt_urls, _show_texts)
MS = SettingKind(lambda value: _bounded(_read_ms(value), 1, None), _show_ms)
NAME = SettingKind(_read_name, json.dumps)
NETWORKS = SettingKind(_read_networks, _show_texts)
ORIGINS = _names(
    "origins",
    r"null|[a-z][a-z0-9+.-]*://[^/?#@\s]+",
    'an origin must be like "https://app.example.com", with its port if it has one, or "*"',
)
SECRET = SettingKind(_read_text, lambda text: json.dumps(text and HIDDEN), is_secret=True)
SECONDS = SettingKind(_whole_s, lambda seconds: _show_ms(seconds * 1_000))
SPARK = SettingKind(_read_spark)
TEXT = SettingKind(_read_text, json.dumps)
URL = SettingKind(_read_url, json.dumps)

"""What can be set: every key of config.toml with its kind, default and bounds, and where each value is from.

A value is looked up in four places, the later the stronger: the default here, the file, the environment
(`FASTI__LIMITS__MAX_DELAY`), the command line. All four pass through the same reader, so that
`FASTI__STORE__MIN_FREE=8MiB` and `min_free = "8MiB"` are the same wish:

    [slices]                            Config.slices.retention_ms == 604_800_000
    retention = "7d"                    origins["slices.retention"] == "file"

An attribute has the name of its key; a duration adds its unit (`retention` -> `retention_ms`, `keep_alive` ->
`keep_alive_s`). Sizes are bytes. A key that is not known is an error, as is a value out of its bounds: a
setting that is silently not applied is worse than a server that does not start.
"""

import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from .kinds import (
    ADDRESS,
    ANONYMOUS,
    ATTEMPTS,
    BACKOFF,
    FILTERS,
    FLAG,
    HOSTS,
    LISTENERS,
    LOG,
    MS,
    NAME,
    NETWORKS,
    ORIGINS,
    SECONDS,
    SPARK,
    TEXT,
    Address,
    Kind,
    Network,
    choice,
    count,
    ms,
    show_size,
    size,
)
from .memory import MEMORY, UNITS, Memory, automatic, bounds_of
from .removed import REMOVED

ENV_PREFIX = "FASTI__"
ACK_MS_MAX = 12 * 3_600_000
"""How long somebody may keep a message unacked."""
POST_MS_MIN, POST_MS_MAX = 1_000, 1_800_000
"""How long a post may take where its endpoint says so: it holds a place of that endpoint alone."""
TAKEOVER_MS_MIN, TAKEOVER_MS_MAX = 2_000, 60_000
"""How long nothing may come of a leader: two heartbeats at least."""
EVERYWHERE = ("0.0.0.0", "::", "")
CLUSTER_KEY_MIN = 16
"""Characters of the nodes' key."""
POSTS_MAX = 100
"""Posts to an endpoint at a time: so many bodies are signed in one go."""
POSTS = 10
"""The same where the endpoint does not say, and posts to one origin of full URLs."""
ENDPOINT_POSTS_MAX, URL_POSTS_MAX = 1_000, 100
"""Posts at a time to all endpoints, of which each keeps its own; to all full URLs."""
GROUP_ATTEMPTS = 20
"""Deliveries to a group after which a message is dead, where `sessions.max_attempts` is "auto"."""

T = TypeVar("T")


class ConfigError(ValueError):
    """A setting that cannot be used. `key` is `section.key`, a section, or the path of the file."""

    def __init__(self, key: str, detail: str) -> None:
        super().__init__(f"{key}: {detail}")
        self.key = key
        self.detail = detail


def _key(kind: Kind[T], default: object) -> T:
    return field(default=kind.read(default), metadata={"kind": kind})


# Sections. config.toml says in words what each key does and what happens at its bound. An attribute that is
# no key is a part of `limits.memory`, or fixed; here it is as large as it gets.


@dataclass(frozen=True, slots=True)
class Http:
    """[http]"""

    listen: Address = _key(ADDRESS, "127.0.0.1:8080")  # noqa: RUF009 - frozen
    max_body: int = UNITS["http.max_body"].most
    max_batch: int = 10_000
    connections: int = UNITS["http.connections"].most
    connections_per_address: int = 1_000
    head_timeout_ms: int = 10_000
    body_timeout_ms: int = 10_000
    idle_timeout_ms: int = _key(MS, "75s")
    buffered_bytes: int = UNITS["http.buffered_bytes"].most
    event_streams: int = 100
    tls_cert: str = _key(TEXT, "")
    tls_key: str = _key(TEXT, "")
    hosts: tuple[str, ...] = _key(HOSTS, [])
    origins: tuple[str, ...] = _key(ORIGINS, [])


@dataclass(frozen=True, slots=True)
class Mqtt:
    """[mqtt]"""

    listen: tuple[Address, ...] = _key(LISTENERS, "127.0.0.1:1883")
    tls_cert: str = _key(TEXT, "")
    tls_key: str = _key(TEXT, "")
    tls_ca: str = _key(TEXT, "")
    tls_require_certificate: bool = _key(FLAG, False)
    tls_crl: str = _key(TEXT, "")
    tls_identity_as_username: bool = _key(FLAG, False)
    deny_subscribe: tuple[str, ...] = _key(FILTERS, [])
    receive_maximum: int = _key(count(1, 65_535), 1_024)
    topic_alias_maximum: int = _key(count(0, 65_535), 32)
    keep_alive_s: int = _key(SECONDS, 0)
    maximum_qos: int = _key(count(0, 2), 2)
    retain_available: bool = _key(FLAG, True)
    maximum_packet_size: int = _key(size(16, 268_435_455), "1MiB")
    proxy_protocol: bool = _key(FLAG, False)
    allow_anonymous: bool | tuple[Address, ...] | None = _key(ANONYMOUS, "auto")
    password_file: str = _key(TEXT, "")
    acl_file: str = _key(TEXT, "")


@dataclass(frozen=True, slots=True)
class Store:
    """[store]"""

    dir: str = _key(NAME, "data")
    backups: str = _key(TEXT, "")
    min_free: int = _key(size(0), "256MiB")
    memtable_bytes: int = UNITS["store.memtable_bytes"].most
    cache_bytes: int = UNITS["store.cache_bytes"].most

    @property
    def backups_dir(self) -> Path:
        """Where backups may be made."""
        return Path(self.backups) if self.backups else Path(self.dir).absolute().parent / "backups"


@dataclass(frozen=True, slots=True)
class Slices:
    """[slices]"""

    max: int = UNITS["slices.max"].most
    retention_ms: int = _key(MS, "7d")
    kept_behind_ms: int = _key(MS, "14d")
    split_above: int = _key(count(2), 1_000_000)
    expire_by: str = _key(choice("server", "job"), "server")
    archive: str = _key(TEXT, "")


@dataclass(frozen=True, slots=True)
class Shards:
    """[shards]"""

    cap_messages: int = _key(count(1), 100_000)
    cap_bytes: int = 64 << 20
    structure_above: int = 10_000
    max_structures: int = 1_024


@dataclass(frozen=True, slots=True)
class Wheel:
    """[wheel]"""

    max_entries: int = UNITS["wheel.max_entries"].most
    max_bytes: int = UNITS["wheel.max_bytes"].most


@dataclass(frozen=True, slots=True)
class Tail:
    """[tail]"""

    max_entries: int = UNITS["tail.max_entries"].most
    max_bytes: int = UNITS["tail.max_bytes"].most


@dataclass(frozen=True, slots=True)
class Sessions:
    """[sessions]"""

    expiry_max_ms: int = _key(MS, "7d")
    max_in_flight: int = _key(count(1, 65_535), 1_024)
    max_inflight_bytes: int = 0
    max_attempts: int | None = _key(ATTEMPTS, "auto")
    ack_timeout_ms: int = _key(ms(0, ACK_MS_MAX), 0)
    backoff_ms: tuple[int, ...] = _key(BACKOFF, ["1s", "5s", "30s", "5m", "30m", "1h"])

    @property
    def session_attempts(self) -> int:
        """Deliveries to a session after which a message is dead; 0: never."""
        return self.max_attempts or 0

    @property
    def group_attempts(self) -> int:
        """The same to a group."""
        return GROUP_ATTEMPTS if self.max_attempts is None else self.max_attempts


@dataclass(frozen=True, slots=True)
class Dead:
    """[dead]"""

    retention_ms: int = _key(MS, "30d")
    max_messages: int = 100_000
    max_bytes: int = _key(size(1 << 16), "256MiB")


@dataclass(frozen=True, slots=True)
class Limits:
    """[limits]"""

    memory: Memory = _key(MEMORY, "auto")  # noqa: RUF009 - frozen
    max_delay_ms: int = _key(MS, "3650d")
    max_payload: int = _key(size(1), "256KiB")
    connections: int = _key(count(1), 10_000)
    connections_per_address: int = _key(count(0), 0)
    connect_rate: int = _key(count(0), 1_000)
    trusted_proxies: tuple[Network, ...] = _key(NETWORKS, [])
    connect_timeout_ms: int = 10_000
    waiting_pulls: int = UNITS["limits.waiting_pulls"].most
    leases: int = UNITS["limits.leases"].most
    sessions: int = _key(count(1), 100_000)
    groups: int = UNITS["limits.groups"].most
    returned: int = UNITS["limits.returned"].most
    subscriptions_per_session: int = 1_000
    subscription_bytes_per_session: int = 256 << 10
    subscriptions: int = UNITS["limits.subscriptions"].most
    subscription_bytes: int = UNITS["limits.subscription_bytes"].most
    route_cache_bytes: int = UNITS["limits.route_cache_bytes"].most
    topic_levels: int = 128
    user_properties: int = 5_000
    out_bytes: int = UNITS["limits.out_bytes"].most
    pending: int = _key(count(0), 0)
    schedules: int = UNITS["limits.schedules"].most
    endpoints: int = UNITS["limits.endpoints"].most
    retained: int = 100_000
    queued: int = UNITS["limits.queued"].most
    queued_bytes: int = UNITS["limits.queued_bytes"].most
    pool_bytes: int = UNITS["limits.pool_bytes"].most


@dataclass(frozen=True, slots=True)
class Replay:
    """[replay]"""

    filters: tuple[str, ...] = _key(FILTERS, [])
    min_qos: int = _key(count(0, 2), 1)


@dataclass(frozen=True, slots=True)
class Webhook:
    """[webhook]"""

    enabled: bool = _key(FLAG, True)
    allow_private: bool = _key(FLAG, False)
    allow_http: bool = _key(FLAG, False)
    tls_ca: str = _key(TEXT, "")
    timeout_ms: int = 15_000


@dataclass(frozen=True, slots=True)
class Spark:
    """[spark]"""

    enabled: str = _key(SPARK, "auto")
    master: str = _key(NAME, "local[2]")


@dataclass(frozen=True, slots=True)
class Auth:
    """[auth]"""

    keys_file: str = _key(TEXT, "")
    allow_open: bool = _key(FLAG, False)


@dataclass(frozen=True, slots=True)
class Log:
    """[log]"""

    level: str = _key(choice("debug", "info", "warning", "error"), "info")


@dataclass(frozen=True, slots=True)
class Cluster:
    """[cluster]"""

    log: str = _key(LOG, "")
    name: str = _key(NAME, "fasti")
    node: str = _key(TEXT, "")
    url: str = _key(TEXT, "")
    mqtt: str = _key(TEXT, "")
    peers: tuple[str, ...] = _key(ORIGINS, [])
    key: str = _key(TEXT, "")
    takeover_after_ms: int = _key(ms(TAKEOVER_MS_MIN, TAKEOVER_MS_MAX), "3s")
    keep: int = _key(size(1 << 20), "4GiB")
    allow_unreplicated: bool = _key(FLAG, False)


@dataclass(frozen=True, slots=True)
class Config:
    """All sections; `Config()` is the defaults."""

    http: Http = Http()
    mqtt: Mqtt = Mqtt()
    store: Store = Store()
    slices: Slices = Slices()
    shards: Shards = Shards()
    wheel: Wheel = Wheel()
    tail: Tail = Tail()
    sessions: Sessions = Sessions()
    dead: Dead = Dead()
    limits: Limits = Limits()
    replay: Replay = Replay()
    webhook: Webhook = Webhook()
    spark: Spark = Spark()
    auth: Auth = Auth()
    log: Log = Log()
    cluster: Cluster = Cluster()

    @property
    def has_keys(self) -> bool:
        """Whether anybody has a key or a password."""
        return bool(self.auth.keys_file or self.mqtt.password_file)

    @property
    def open_beyond(self) -> tuple[tuple[str, Address], ...]:
        """Listeners that other machines can reach, and where nobody has to show a key, with their keys."""
        http = () if self.auth.keys_file else (("http.listen", self.http.listen),)
        mqtt = (("mqtt.listen", one) for one in self.mqtt.listen if self.lets_anybody(one))
        return tuple((key, one) for key, one in (*http, *mqtt) if not one.is_loopback)

    @property
    def connections(self) -> int:
        """The most that may be open: of clients; to receivers of webhooks, where as many rest as are used."""
        return self.limits.connections + self.http.connections + 2 * (ENDPOINT_POSTS_MAX + URL_POSTS_MAX)

    def lets_anybody(self, listener: Address) -> bool:
        """Whether who shows no key may come in by a listener of MQTT."""
        allowed = self.mqtt.allow_anonymous
        if isinstance(allowed, tuple):
            return any(_is_same(listener, one) for one in allowed)
        return not self.has_keys if allowed is None else allowed


def _is_same(listener: Address, other: Address) -> bool:
    return replace(listener, scheme=listener.scheme or "mqtt") == replace(
        other, scheme=other.scheme or "mqtt"
    )


def found() -> Memory:
    """`limits.memory` of this machine, or of the cgroup that the process is in."""
    return automatic(Path("/"), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def load(
    path: Path | None,
    environ: Mapping[str, str],
    overrides: Mapping[str, object],
    found: Callable[[], Memory] = found,
) -> tuple[Config, dict[str, str]]:
    """The configuration, and per `section.key` its origin: "default", "file", "env FASTI__…" or "option".
    Settings that went have one too, if they are said (`remarks`).

    `overrides` maps `section.key` to the value of a command-line option, None where it was not given.
    `found`: what `limits.memory` is where it is "auto". Raises ConfigError naming the key.
    """
    wishes: dict[str, tuple[object, str]] = {}
    for place in (_from_file(path), _from_environ(environ), _from_options(overrides)):
        for name, value, origin in place:
            if name not in REMOVED:
                _check_known(name, origin)
            wishes[name] = (value, origin)
    config = _capped(Config(**{item.name: _section(item.name, wishes) for item in fields(Config)}))
    config = divided(config, config.limits.memory if config.limits.memory.bytes else found())
    config = _certified(config)
    _check_together(config)
    said = {name: origin for name, (_, origin) in wishes.items()}
    return config, dict.fromkeys([name for name, _, _ in _keys()], "default") | said


def divided(config: Config, memory: Memory) -> Config:
    """The configuration with parts of so much memory."""
    config = replace(config, limits=replace(config.limits, memory=memory))
    for name, bound in bounds_of(memory.bytes).items():
        section, _, attribute = name.partition(".")
        part = getattr(config, section)
        changed = replace(part, **{attribute: min(bound, getattr(part, attribute))})
        config = replace(config, **{section: changed})
    return config


def remarks(config: Config, origins: Mapping[str, str]) -> list[str]:
    """What there is to say of settings that went, and of those that `limits.memory` has no room for."""
    bounds = bounds_of(config.limits.memory.bytes)
    return [
        f"{name} ({origins[name]}) was removed and is ignored: {instead}"
        for name, instead in sorted(REMOVED.items())
        if name in origins
    ] + [
        f"{name} ({origins[name]}) is {bound:,}: limits.memory has room for no more"
        for name, bound in bounds.items()
        if name not in REMOVED and origins.get(name, "default") != "default" and _value(config, name) == bound
    ]


def table(config: Config, origins: Mapping[str, str]) -> list[str]:
    """One line per key for `--check`: name, value, origin, in columns."""
    rows = [
        (name, kind.show(getattr(getattr(config, name.partition(".")[0]), attribute)), origins[name])
        for name, attribute, kind in _keys()
    ]
    wide = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return [f"{name:<{wide[0]}}  {shown:<{wide[1]}}  {origin}" for name, shown, origin in rows]


def _keys() -> Iterator[tuple[str, str, Kind[Any]]]:
    """(`section.key`, attribute, kind) of all keys, in the order of the file."""
    for section in fields(Config):
        for item in _settable(getattr(Config(), section.name)):
            yield f"{section.name}.{_key_name(item.name)}", item.name, item.metadata["kind"]


def _settable(section: Any) -> "Iterator[Field[Any]]":
    return (item for item in fields(section) if "kind" in item.metadata)


def _value(config: Config, key: str) -> object:
    section, _, attribute = key.partition(".")
    return getattr(getattr(config, section), attribute)


def _key_name(attribute: str) -> str:
    return attribute.removesuffix("_ms").removesuffix("_s")


Wish = tuple[str, object, str]


def _from_file(path: Path | None) -> Iterator[Wish]:
    if path is None:
        return
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(str(path), f"is not TOML: {error}") from None
    for section, keys in tree.items():
        if not isinstance(keys, dict):
            raise ConfigError(section, "unknown key: every key belongs to a [section]")
        if not keys:
            _check_section(section, "file")
        for key, value in keys.items():
            yield f"{section}.{key}", value, "file"


def _from_environ(environ: Mapping[str, str]) -> Iterator[Wish]:
    for variable, value in environ.items():
        if variable.startswith(ENV_PREFIX):
            name = variable.removeprefix(ENV_PREFIX).lower().replace("__", ".", 1)
            yield name, value, f"env {variable}"


def _from_options(overrides: Mapping[str, object]) -> Iterator[Wish]:
    for name, value in overrides.items():
        if value is not None:
            yield name, value, "option"


def _check_known(name: str, origin: str) -> None:
    known = [key for key, _, _ in _keys()]
    if name in known:
        return
    _check_section(name.partition(".")[0], origin)
    near = get_close_matches(name, known, 1)
    raise ConfigError(name, f"unknown key ({origin})" + (f"; is {near[0]} meant?" if near else ""))


def _check_section(section: str, origin: str) -> None:
    known = list(dict.fromkeys(key.partition(".")[0] for key, _, _ in _keys()))
    if section not in known and not any(name.startswith(f"{section}.") for name in REMOVED):
        raise ConfigError(section, f"unknown section ({origin}); there are {', '.join(known)}")


def _section(name: str, wishes: Mapping[str, tuple[object, str]]) -> Any:
    default = getattr(Config(), name)
    changes = {}
    for item in _settable(default):
        key = f"{name}.{_key_name(item.name)}"
        if key in wishes:
            value, origin = wishes[key]
            try:
                changes[item.name] = item.metadata["kind"].read(value)
            except (ValueError, RecursionError) as error:
                raise ConfigError(key, f"{error}, got {value!r} ({origin})") from None
    return replace(default, **changes)


def _capped(config: Config) -> Config:
    """No session outlives what is kept for it."""
    expiry_max_ms = min(config.sessions.expiry_max_ms, config.slices.retention_ms)
    return replace(config, sessions=replace(config.sessions, expiry_max_ms=expiry_max_ms))


def _certified(config: Config) -> Config:
    """MQTT over TLS has the certificate of HTTP where it has none of its own."""
    http, mqtt = config.http, config.mqtt
    if mqtt.tls_cert or mqtt.tls_key or not any(one.scheme in ("mqtts", "wss") for one in mqtt.listen):
        return config
    return replace(config, mqtt=replace(mqtt, tls_cert=http.tls_cert, tls_key=http.tls_key))


def _check_sessions(config: Config) -> None:
    sessions = config.sessions
    if max(sessions.backoff_ms) > config.limits.max_delay_ms:
        raise ConfigError("sessions.backoff", "must have no step above limits.max_delay")


def _check_cluster(config: Config) -> None:
    cluster = config.cluster
    if not cluster.log:
        return
    for key, listener in (("url", config.http.listen), ("mqtt", config.mqtt.listen[0])):
        if listener.host in EVERYWHERE and not getattr(cluster, key):
            raise ConfigError(f"cluster.{key}", f"is needed: {listener} is no address that others can use")
    if cluster.url and not cluster.url.startswith(("http://", "https://")):
        raise ConfigError("cluster.url", f"must begin with http:// or https://, got {cluster.url!r}")
    for key, value in (("node", cluster.node), ("key", cluster.key)):
        if not value:
            raise ConfigError(f"cluster.{key}", "is needed: cluster.log is set")
    if len(cluster.key) < CLUSTER_KEY_MIN:
        raise ConfigError("cluster.key", f"must have {CLUSTER_KEY_MIN} characters or more")


def _check_together(config: Config) -> None:
    """Raise ConfigError for values that are fine each and not together."""
    limits, auth, data = config.limits, config.auth, os.path.abspath(config.store.dir)
    if Path(os.path.abspath(config.store.backups_dir)).is_relative_to(data):
        raise ConfigError("store.backups", f"must not lie in store.dir ({data})")
    largest = min(config.http.max_body, config.shards.cap_bytes)
    if limits.max_payload >= largest:
        raise ConfigError(
            "limits.max_payload",
            f"must be below {show_size(largest)}, which a request may have; limits.memory bounds that",
        )
    _check_sessions(config)
    _check_cluster(config)
    if (
        any(listener.scheme in ("mqtts", "wss") for listener in config.mqtt.listen)
        and not config.mqtt.tls_cert
    ):
        raise ConfigError("mqtt.tls_cert", "is needed: mqtt.listen has a listener with TLS")
    for given, needed in (
        ("http.tls_key", "http.tls_cert"),
        ("mqtt.tls_key", "mqtt.tls_cert"),
        ("mqtt.tls_ca", "mqtt.tls_cert"),
        ("mqtt.tls_crl", "mqtt.tls_ca"),
        ("mqtt.tls_require_certificate", "mqtt.tls_ca"),
        ("mqtt.tls_identity_as_username", "mqtt.tls_require_certificate"),
        ("mqtt.proxy_protocol", "limits.trusted_proxies"),
    ):
        if _value(config, given) and not _value(config, needed):
            raise ConfigError(needed, f"is needed: {given} is set")
    allowed = config.mqtt.allow_anonymous
    for one in allowed if isinstance(allowed, tuple) else ():
        if not any(_is_same(listener, one) for listener in config.mqtt.listen):
            raise ConfigError("mqtt.allow_anonymous", f"{one} is not one of mqtt.listen")
    if auth.allow_open:
        return
    if not config.http.listen.is_loopback and not auth.keys_file:
        raise ConfigError(
            "auth.allow_open",
            f"must be true, or auth.keys_file set: http.listen {config.http.listen} can be reached from"
            " elsewhere",
        )
    for listener in config.mqtt.listen:
        if not listener.is_loopback and config.lets_anybody(listener):
            raise ConfigError(
                "mqtt.allow_anonymous", f"must be false: mqtt.listen {listener} can be reached from elsewhere"
            )

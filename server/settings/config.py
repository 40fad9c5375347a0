"""All settings: kind, default, bounds and description of each.

    retention_ms: int = _key(MS, "7d")      retention = "7d" of [slices], Config().slices.retention_ms
    (text below it)                         its comment in config.toml, its row in docs/settings.md

Both files are generated from this one: `python -m tests.support.tables`. An attribute has the name of its
key; a duration adds its unit (`retention` -> `retention_ms`, `keep_alive` -> `keep_alive_s`). Sizes are
bytes. An attribute without a key is a part of `limits.memory`, or fixed; here it has its maximum.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from .kinds import (
    ADDRESS,
    ANONYMOUS,
    ARCHIVE,
    ATTEMPTS,
    BACKOFF,
    CATALOG,
    FILTERS,
    FLAG,
    HOSTS,
    LISTENERS,
    LOG,
    MQTT_URLS,
    MS,
    NAME,
    NETWORKS,
    ORIGINS,
    SECONDS,
    SECRET,
    SPARK,
    TEXT,
    URL,
    Address,
    Network,
    SettingKind,
    choice,
    count,
    ms,
    size,
)
from .memory import MEMORY, UNITS, Memory

ACK_MS_MAX = 12 * 3_600_000
"""Maximum time for which a client may keep a message unacked."""
POST_MS_MIN, POST_MS_MAX = 1_000, 1_800_000
"""Bounds of an endpoint's timeout: a post holds only a place of its endpoint."""
TAKEOVER_MS_MIN, TAKEOVER_MS_MAX = 2_000, 60_000
SCRUB_MS_MIN, SCRUB_MS_MAX = 1_000, 365 * 86_400_000
"""Bounds of the time without a record of the leader: at least two heartbeats."""
POSTS_MAX = 100
"""Maximum concurrent posts of an endpoint: this many bodies are signed at once."""
POSTS = 10
"""Default concurrent posts of an endpoint, and those of one key to an origin of full URLs."""
ENDPOINT_POSTS_MAX, URL_POSTS_MAX = 1_000, 400
"""Maximum concurrent posts to all endpoints, and to all full URLs."""
GROUP_ATTEMPTS = 20
"""Deliveries to a group after which a message is dead, if `sessions.max_attempts` is "auto"."""

T = TypeVar("T")


class ConfigError(ValueError):
    """An invalid setting. `key` is `section.key`, a section, or the path of the file."""

    def __init__(self, key: str, detail: str) -> None:
        super().__init__(f"{key}: {detail}")
        self.key = key
        self.detail = detail


def _key(kind: SettingKind[T], default: object) -> T:
    return field(default=kind.read(default), metadata={"kind": kind})


@dataclass(frozen=True, slots=True)
class Http:
    """[http]"""

    listen: Address = _key(ADDRESS, "127.0.0.1:8080")  # noqa: RUF009 - frozen
    """Where HTTP listens: host:port; port 0 is any free one. An address that other machines can reach needs
    `auth.keys_file` or `auth.allow_open`."""
    public_url: str = _key(URL, "")
    """The address at which clients reach this server: "https://fasti.example.com". Behind a proxy it is the
    proxy's. `/v1/info` and redirects name it, and it is an allowed host and origin. In a cluster each node
    has its own, and the other nodes use it too. Empty: `http.listen`."""
    max_body: int = UNITS["http.max_body"].most
    max_batch: int = 10_000
    connections: int = UNITS["http.connections"].most
    connections_per_address: int = 1_000
    head_timeout_ms: int = 10_000
    body_timeout_ms: int = 10_000
    idle_timeout_ms: int = _key(MS, "75s")
    """How long a connection may stay open between requests, or without a byte taken of an answer. Then it is
    closed."""
    buffered_bytes: int = UNITS["http.buffered_bytes"].most
    event_streams: int = 100
    tls_cert: str = _key(TEXT, "")
    """Certificate chain (PEM); empty: no TLS. It is read again when the file changes, and at SIGHUP. A pair
    that cannot be used is logged, and the old one stays."""
    tls_key: str = _key(TEXT, "")
    """Private key (PEM) of `tls_cert`; empty: it is in the same file. Not one with a password."""
    hosts: tuple[str, ...] = _key(HOSTS, [])
    """Names of this server in the `Host` header, for HTTP and websockets alike: ["fasti.example.com"], with a
    port if only that one is meant; ["*"]: any. Other names get 421, so that no page can reach the server
    under a name of its own (DNS rebinding). On loopback localhost, 127.0.0.1 and [::1] are names anyway;
    elsewhere every address, and every name if `auth.keys_file` is set and this is empty."""
    origins: tuple[str, ...] = _key(ORIGINS, [])
    """Origins whose pages may do everything that they have a key for, read the answers (CORS) and open
    websockets: ["https://app.example.com"]; ["*"]: all. The server's own origins
    (`http.public_url` is one) and programs, which send no origin, need no entry. A change from any other
    origin gets 403."""


@dataclass(frozen=True, slots=True)
class Mqtt:
    """[mqtt]"""

    listen: tuple[Address, ...] = _key(LISTENERS, "127.0.0.1:1883")
    """Where MQTT 3.1.1 and 5 listen: host:port, or a list with schemes: "mqtt://…", "mqtts://…", "ws://…",
    "wss://…" (path /mqtt); port 0 is any free one."""
    public_urls: tuple[Address, ...] = _key(MQTT_URLS, [])
    """The addresses at which clients reach MQTT: ["mqtts://fasti.example.com:8883",
    "wss://fasti.example.com/mqtt"]. Behind a proxy they are the proxy's. `/v1/info` and redirects name them.
    In a cluster each node has its own. Empty: `mqtt.listen`."""
    tls_cert: str = _key(TEXT, "")
    """Certificate chain (PEM) of the mqtts and wss listeners; empty: that of HTTP. Read again as that one is.
    """
    tls_key: str = _key(TEXT, "")
    """Its private key (PEM); empty: it is in the same file."""
    tls_ca: str = _key(TEXT, "")
    """CA (PEM) of the certificates that clients show there; empty: none is asked for. A certificate that does
    not hold ends the TLS handshake."""
    tls_require_certificate: bool = _key(FLAG, False)
    """Whether a client must show a certificate. Needs `tls_ca`."""
    tls_crl: str = _key(TEXT, "")
    """The CA's list of revoked certificates (PEM); empty: none. Open connections whose certificate it names
    are closed."""
    tls_identity_as_username: bool = _key(FLAG, False)
    """Whether the common name of the client's certificate is its user name, whatever CONNECT says. Needs
    `tls_require_certificate`. A certificate without a common name: closed."""
    deny_subscribe: tuple[str, ...] = _key(FILTERS, [])
    """Topic filters that nobody may subscribe to, nor to a filter within them; ["#"] is all. SUBACK answers
    0x87. A wider filter gets nothing of their topics."""
    receive_maximum: int = _key(count(1, 65_535), 1_024)
    """QoS 1 and 2 messages that a client may have on the way to the server, as CONNACK says. More:
    disconnected with 0x93."""
    topic_alias_maximum: int = _key(count(0, 65_535), 32)
    """Topic aliases that a client may use towards the server, as CONNACK says; 0: none. More: disconnected
    with 0x94; topics longer than 2 KiB on the average of so many: 0x97."""
    keep_alive_s: int = _key(SECONDS, 0)
    """Keep alive that the server imposes, in whole seconds up to 65,535; 0: what the client asks for. Below
    MQTT 5 a client with a longer one, or none, is refused (return code 2)."""
    maximum_qos: int = _key(count(0, 2), 2)
    """Highest QoS, 0 to 2, as CONNACK says. A publish above it: disconnected with 0x9B; a subscription gets
    this QoS."""
    retain_available: bool = _key(FLAG, True)
    """Whether retained messages are kept, as CONNACK says. If not, a retained publish is disconnected with
    0x9A."""
    maximum_packet_size: int = _key(size(16, 268_435_455), "1MiB")
    """Largest packet, 16 bytes at least, as CONNACK says. A larger one: disconnected with 0x95. CONNECT
    itself may have 192 KiB in any case."""
    proxy_protocol: bool = _key(FLAG, False)
    """Whether `limits.trusted_proxies` send the PROXY protocol, 1 or 2, before everything else: to MQTT they
    must, to HTTP they may. Needs `limits.trusted_proxies`."""
    allow_anonymous: bool | tuple[Address, ...] | None = _key(ANONYMOUS, "auto")
    """Whether a client without a name and key may come in: true, false, or the listeners where it may;
    "auto": while there are no keys and passwords. Not beyond loopback, unless `auth.allow_open` is true."""
    password_file: str = _key(TEXT, "")
    """Users of a mosquitto (mosquitto_passwd); empty: none. Read again when it changes, and at SIGHUP."""
    acl_file: str = _key(TEXT, "")
    """What these users may (mosquitto's acl_file), also clients without a name; empty: everything."""


@dataclass(frozen=True, slots=True)
class Store:
    """[store]"""

    dir: str = _key(NAME, "data")
    """Directory of the database, relative to where the server is started. One server per directory."""
    backups: str = _key(TEXT, "")
    """Directory that backups are made in (POST /v1/backups), and nowhere else; not inside `dir`. Empty: the
    directory "backups" beside `dir`."""
    number: int = _key(count(0, 15), 0)
    """Number of the timeline in the ids of its messages, fixed when the data is made. Servers behind one
    address need different ones."""
    min_free: int = _key(size(0), "256MiB")
    """Free bytes of the disk below which the group or endpoint that is furthest behind is given up, so that
    old slices can go: what it has not done becomes dead letters. 0: never."""
    memtable_bytes: int = UNITS["store.memtable_bytes"].most
    cache_bytes: int = UNITS["store.cache_bytes"].most

    @property
    def backups_dir(self) -> Path:
        """Directory for backups."""
        return Path(self.backups) if self.backups else Path(self.dir).absolute().parent / "backups"


@dataclass(frozen=True, slots=True)
class Slices:
    """[slices]"""

    max: int = UNITS["slices.max"].most
    retention_ms: int = _key(MS, "7d")
    """How long a passed slice is kept for replay, in the server's running time. Then it is dropped."""
    kept_behind_ms: int = _key(MS, "14d")
    """How long a slice is kept beyond that for a group or endpoint that has not done what is in it, counted
    from when it was passed. Then what is undone becomes dead letters."""
    split_above: int = _key(count(2), 1_000_000)
    """Rows above which a slice is overfull: a split job is started for it, where `spark.enabled` allows it.
    """
    expire_by: str = _key(choice("server", "job"), "server")
    """Who drops slices behind retention: the "server" itself, or only an expire "job" that a caller starts
    (POST /v1/jobs). With `archive` set it is always a job, and the server starts its own, too."""
    archive: str = _key(ARCHIVE, "")
    """Parquet archive of what has passed: a directory, or a file:, s3:, gs: or abfs: URL. A relative
    directory begins where the server starts; nodes of a cluster share one. If set, only a job drops slices,
    once it has read back what is archived. Empty: none."""
    archive_after_ms: int = _key(ms(0, 86_400_000), "5m")
    """How long after a quarter of an hour has passed it is archived, up to 1 d."""
    archive_catalog: str = _key(CATALOG, "")
    """Iceberg catalog in which archived files are registered: a name of pyiceberg's configuration, or a
    sqlite:, postgresql:, http: or https: URI without a password. Empty: none."""


@dataclass(frozen=True, slots=True)
class Shards:
    """[shards]"""

    cap_messages: int = _key(count(1), 100_000)
    """Rows of one shard, which has 64 MiB at most too. A full one is sealed, and the next one opens."""
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
    """Longest session expiry, in the server's running time. A longer one is shortened, and CONNACK says so.
    Never above `slices.retention`."""
    max_in_flight: int = _key(count(1, 65_535), 1_024)
    """Messages on the way to one session, 1 to 65,535. Further ones wait in the store for an ack."""
    max_attempts: int | None = _key(ATTEMPTS, "auto")
    """Deliveries after which an unacked message becomes a dead letter and $dead/{session or group}/{topic} is
    told; 0: never; "auto": never for a session, 20 for a group. A number is also the most that a subscription
    may ask for; more: SUBACK 0x83."""
    ack_timeout_ms: int = _key(ms(0, ACK_MS_MAX), 0)
    """How long a member of a group may keep a QoS 1 message unacked, unless its SUBSCRIBE says otherwise:
    then the message comes again. 0: for ever; 12 h at most, here and there."""
    backoff_ms: tuple[int, ...] = _key(BACKOFF, ["1s", "5s", "30s", "5m", "30m", "1h"])
    """How long after each failed attempt a message comes again, up to 32 steps; each up to a fifth more or
    less, never below 80 %. The last one holds for all further attempts."""

    @property
    def session_attempts(self) -> int:
        """Deliveries to a session after which a message is dead; 0: never."""
        return self.max_attempts or 0

    @property
    def group_attempts(self) -> int:
        """The same for a group."""
        return GROUP_ATTEMPTS if self.max_attempts is None else self.max_attempts


@dataclass(frozen=True, slots=True)
class Dead:
    """[dead]"""

    retention_ms: int = _key(MS, "30d")
    """How long dead letters are kept, in the server's running time. Then they are dropped, and counted."""
    max_messages: int = 100_000
    max_bytes: int = _key(size(1 << 16), "256MiB")
    """Bytes of dead letters on disk; there may be 100,000 of them. Above: the oldest are dropped in the batch
    that brings a new one, and counted. The newest stays, however large."""


@dataclass(frozen=True, slots=True)
class Limits:
    """[limits]"""

    memory: Memory = _key(MEMORY, "auto")  # noqa: RUF009 - frozen
    """RAM that the server may use, 256 MiB at least; "auto": a quarter of the machine's, or half of what its
    cgroup may use. Caches, queues and tables take parts of it, and `--check` shows them. What finds no room:
    429, MQTT 0x97."""
    max_delay_ms: int = _key(MS, "3650d")
    """How far ahead a message may be due. Beyond: 422, PUBACK 0x90."""
    max_payload: int = _key(size(1), "256KiB")
    """Size of one message's payload. Above: 422, MQTT 0x97."""
    connections: int = _key(count(1), 10_000)
    """Open MQTT connections, from the accept on; fewer if memory has no room for so many. Above: another one
    makes room, or the new one is closed at once; logged."""
    connections_per_address: int = _key(count(0), 0)
    """Open MQTT connections from one address (of IPv6 one /64); 0: any number, because all devices behind a
    proxy or a NAT have its address. Above: the new one is closed at once; logged."""
    connect_rate: int = _key(count(0), 1_000)
    """New MQTT connections in a second, of which the last eighth is for networks below an equal share; 0: any
    number. Above: closed at once."""
    trusted_proxies: tuple[Network, ...] = _key(NETWORKS, [])
    """Networks of proxies that are believed when they say who their client is: ["10.0.0.0/8", "192.0.2.7"].
    By Forwarded or X-Forwarded-For of HTTP and of the request for a websocket, and, with
    `mqtt.proxy_protocol`, by the PROXY protocol."""
    connect_timeout_ms: int = 10_000
    waiting_pulls: int = UNITS["limits.waiting_pulls"].most
    leases: int = UNITS["limits.leases"].most
    sessions: int = _key(count(1), 100_000)
    """Sessions, present or away; fewer if memory has no room for so many. Above: a new one is refused with
    0x97."""
    groups: int = UNITS["limits.groups"].most
    returned: int = UNITS["limits.returned"].most
    subscriptions_per_session: int = 1_000
    subscription_bytes_per_session: int = 256 << 10
    subscriptions: int = UNITS["limits.subscriptions"].most
    subscription_bytes: int = UNITS["limits.subscription_bytes"].most
    route_cache_bytes: int = UNITS["limits.route_cache_bytes"].most
    topic_levels: int = 128
    user_properties: int = 1_000
    out_bytes: int = UNITS["limits.out_bytes"].most
    ordering_keys: int = _key(count(2), 100_000)
    """Ordering keys of which groups that order remember something: a message waits for its next try, or for
    the one before it. Fewer if memory has no room for so many; one group has at most half of what the others
    leave. Above: the group reads no message of a further key, until one of these is done."""
    pending: int = _key(count(0), 0)
    """Pending messages in all, which keys share; 0: any number. Above: 429, PUBACK 0x97."""
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
    """Topic filters whose plain publishes are stored although no session needs them, so that they can be
    replayed."""
    min_qos: int = _key(count(0, 2), 1)
    """Lowest QoS, 0 to 2, of those publishes."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """[webhook]"""

    enabled: bool = _key(FLAG, True)
    """Whether messages are posted at all. If not, `deliver_to` is refused (422), and what waits for endpoints
    waits on."""
    allow_private: bool = _key(FLAG, False)
    """Whether to post to private, loopback, link-local and reserved addresses, too, and by plain http. If
    not, such an address is refused (422), and not connected to when a name resolves to it."""
    allow_http: bool = _key(FLAG, False)
    """Whether to post by plain http to public addresses. If not: 422."""
    tls_ca: str = _key(TEXT, "")
    """CAs (PEM) that the certificates of receivers are checked with; empty: those of the system. A
    certificate that does not hold: the message goes again."""
    timeout_ms: int = 15_000


@dataclass(frozen=True, slots=True)
class Spark:
    """[spark]"""

    enabled: str = _key(SPARK, "auto")
    """Whether the server may start a program for jobs, one at a time, at the lowest priority: "auto" (if what
    the kind of job needs is installed: pyarrow to archive and expire; pyspark and a Java to split and
    compact), true or false. With false and `slices.archive`, other machines must run the archive's jobs."""
    master: str = _key(NAME, "local[2]")
    """Where those jobs run: local[2], spark://host:port."""


@dataclass(frozen=True, slots=True)
class Auth:
    """[auth]"""

    keys_file: str = _key(TEXT, "")
    """File of keys, made by `fasti-server keys add`; empty: none, everybody may do everything. With it every
    call of HTTP but livez and readyz needs a key, and MQTT a name and key. Read again when it changes, and at
    SIGHUP."""
    allow_open: bool = _key(FLAG, False)
    """Whether to start although other machines can reach the server and nobody has to show a key; the log
    says so each time."""


@dataclass(frozen=True, slots=True)
class Log:
    """[log]"""

    level: str = _key(choice("debug", "info", "warning", "error"), "info")
    """What is logged: lines of this level and above. debug, info, warning or error."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """[cluster]"""

    log: str = _key(LOG, "")
    """The log that several nodes share: "nats://a,b,c", "tls://a,b,c" or "postgresql://a,b,c/database"
    (docs/cluster.md). Empty: this node is alone."""
    name: str = _key(NAME, "fasti")
    """Name of the timeline in the log: small letters, digits, _."""
    node: str = _key(TEXT, "")
    """Name of this node, another on each. Needed with a log."""
    peers: tuple[str, ...] = _key(ORIGINS, [])
    """HTTP of the other nodes: ["http://b.example:8080", ...]. Its own may be among them. All of them must
    have answered before a log is begun."""
    key: str = _key(SECRET, "")
    """What the nodes show each other, and what signs their claims in the log: the same on all, 16 characters
    or more. Needed with a log. Two keys with a comma between them while it is changed."""
    takeover_after_ms: int = _key(ms(TAKEOVER_MS_MIN, TAKEOVER_MS_MAX), "3s")
    """After so long without a record of the leader another node takes its place, and so long the leader may
    wait for an append: then it gives up. 2 s to 60 s. A node whose clock is more than 5 s ahead of the
    leader's does not take its place: it would deliver early."""
    keep: int = _key(size(1 << 20), "4GiB")
    """So much of the log is kept for nodes that are behind or away, and at most half of the log's
    bound. A node that lacks more takes a copy of another node's data."""
    scrub_every_ms: int = _key(ms(SCRUB_MS_MIN, SCRUB_MS_MAX), "1d")
    """In this time a node reads all its table files, to find damage before a message is needed. 1 s to 365
    d."""
    allow_unreplicated: bool = _key(FLAG, False)
    """Whether to start on a log that a single machine's loss may take records of: fewer than 3 replicas, no
    synchronous standby."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The key; while it is changed, the one that is used and the other one."""
        return tuple(key.strip() for key in self.key.split(",") if key.strip())


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
    def has_credentials(self) -> bool:
        """Whether there are keys or passwords."""
        return bool(self.auth.keys_file or self.mqtt.password_file)

    @property
    def open_beyond(self) -> tuple[tuple[str, Address], ...]:
        """Listeners that other machines can reach without a key, with their keys in config.toml."""
        http = () if self.auth.keys_file else (("http.listen", self.http.listen),)
        mqtt = (("mqtt.listen", one) for one in self.mqtt.listen if self.lets_anybody(one))
        return tuple((key, one) for key, one in (*http, *mqtt) if not one.is_loopback)

    @property
    def connections(self) -> int:
        """Maximum open sockets: of clients, and to receivers of webhooks, of which as many are idle as in
        use."""
        return self.limits.connections + self.http.connections + 2 * (ENDPOINT_POSTS_MAX + URL_POSTS_MAX)

    def lets_anybody(self, listener: Address) -> bool:
        """Whether clients without a key may use an MQTT listener."""
        allowed = self.mqtt.allow_anonymous
        if isinstance(allowed, tuple):
            return any(is_same(listener, one) for one in allowed)
        return not self.has_credentials if allowed is None else allowed


def is_same(listener: Address, other: Address) -> bool:
    return replace(listener, scheme=listener.scheme or "mqtt") == replace(
        other, scheme=other.scheme or "mqtt"
    )

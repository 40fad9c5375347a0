"""Reads a PUBLISH as a publish request: when, where, under which key.

Three ways to delay: `$delayed/{n}/{topic}` (n seconds, as EMQX reads it below 42,949,670, or a Unix time from
1,000,000,000 on; what is between would be a time of the 1970s there), or at level 5 the user properties
`deliver-at` or `deliver-in` on any topic. `idempotency-key` makes a repeated publish the same message.
`idempotency-replace` and `idempotency-key-only`, `true` or `false`, and `idempotency-key-scope`, `kept` or
`pending`, are the parameters `replace`, `key_only` and `key_scope` of a POST. `ordering-key` is the message's
ordering key.

A publish to `$control/extend` asks for more time for a delivery; one to `$control/done` acks a message of a
group from an earlier connection, and one to `$control/holding` says which of them the client still has.
Other reserved topics are the server's, except one where bridges of mosquitto tell whether they are connected.
"""

from hashlib import blake2b
from typing import Annotated, TypeVar

import msgspec

from shards.dedupe import dedupe_key
from shards.draft import AS_EVER, Terms
from shards.fate import AT_ONCE_MS
from shards.fields import Record
from shards.record import ORDERING_KEY_BYTES_MAX
from timeline.filters import TopicError, check_topic, is_reserved, levels_of, matches, refused_character
from timeline.position import BadId, MessageId, parse_id

from ..codec.packets import Properties, Publish
from ..codec.properties import forwarded
from ..codec.reasons import Reason
from ..delivery.progress import BYTES_MAX
from ..delivery.publish_request import PublishRequest
from ..observe.logs import TEXT_MAX
from ..settings.config import ACK_MS_MAX
from ..settings.durations import TimeError, parse_delay
from ..settings.times import SECONDS_MAX, format_ms, other_reading, parse_due, wall_time

DELAYED = b"$delayed/"
EXTEND = b"$control/extend"
DONE = b"$control/done"
HOLDING = b"$control/holding"
HOLDING_MAX = 200
"""Ids in one publish there, ..."""
REFUSED_MAX = 100 + 34 * HOLDING_MAX
"""... and characters of a refusal that names them all."""
_NUMBER_AT = len(DELAYED)
NUMBER_DIGITS = 12
BRIDGE_STATE = "$SYS/broker/connection/+/state"
DELAY_MAX_S = 42_949_669
LEVELS_MAX = 65_535
"""The limit of MQTT itself."""
REPLACE, KEY_ONLY, KEY_SCOPE = "idempotency-replace", "idempotency-key-only", "idempotency-key-scope"
ORDERING_KEY = "ordering-key"
OWN_PROPERTIES = frozenset(
    {"deliver-at", "deliver-in", "idempotency-key", REPLACE, KEY_ONLY, KEY_SCOPE, ORDERING_KEY}
)
OWN_PREFIX = "fasti-"
"""Prefix of properties that only the server adds to a delivery. A publisher's are dropped."""


_RESERVED = "the topic is reserved for the server"
Control = TypeVar("Control")
"""Payload of a command."""


class PublishRefused(Exception):
    """An invalid publish; `reason` goes into its PUBACK, with at most `most` characters of the detail."""

    def __init__(self, reason: Reason, detail: str, most: int = TEXT_MAX) -> None:
        super().__init__(detail)
        self.reason, self.most = reason, most


def read_plain(
    packet: Publish, publisher: bytes, levels_max: int = LEVELS_MAX, owner: bytes = b""
) -> PublishRequest:
    """`read_publish` for a packet without properties to a topic that does not begin with `$`."""
    topic = packet.topic
    _check(packet, topic, levels_max)
    record = Record(topic, packet.payload, 0, packet.qos, packet.retain, publisher=publisher, owner=owner)
    return PublishRequest(record, is_plain=not packet.retain)


def read_publish(
    packet: Publish,
    publisher: bytes,
    now_ms: int,
    max_delay_ms: int,
    levels_max: int = LEVELS_MAX,
    owner: bytes = b"",
) -> PublishRequest:
    """`owner`: name of the key that owns the message and its idempotency key; empty: none. Raises
    PublishRefused."""
    topic, due_ms = packet.topic, 0
    properties = packet.properties
    if topic.startswith(b"$"):
        if topic.startswith(DELAYED):
            topic, due_ms = _delayed(topic, now_ms)
        elif not may_publish(topic):
            raise PublishRefused(Reason.TOPIC_NAME_INVALID, _RESERVED)
    _check(packet, topic, levels_max)
    key = zone = order = b""
    terms = AS_EVER
    if properties is not None and properties.user_properties:
        due_ms = _requested_due(properties, now_ms) or due_ms
        zone = wall_time(properties.user("deliver-at") or "")
        key = (properties.user("idempotency-key") or "").encode()
        if len(key) > 256:
            raise PublishRefused(Reason.QUOTA_EXCEEDED, "idempotency-key is longer than 256 bytes")
        terms = _terms(properties, has_key=bool(key))
        order = _ordering_key(properties)
        if key and owner:
            key = owner + b"\0" + key
    if due_ms > now_ms + max_delay_ms:
        is_delay = properties is not None and properties.user("deliver-in") is not None
        is_time = properties is not None and properties.user("deliver-at") is not None
        other = "" if is_time else other_reading((due_ms - now_ms if is_delay else due_ms) // 1_000)
        raise PublishRefused(Reason.TOPIC_NAME_INVALID, f"the delay is longer than limits.max_delay{other}")
    record = Record(
        topic,
        packet.payload,
        due_ms,
        packet.qos,
        packet.retain,
        expires_ms=expires_ms(properties),
        publisher=publisher,
        properties=handed_on(properties),
        key=dedupe_key("mqtt", key) if key else b"",
        zone=zone,
        owner=owner,
        ordering_key=order,
    )
    fingerprint = _fingerprint(packet) if key else b""
    return PublishRequest(record, due_ms > 0, record.key, fingerprint, terms)


class Extension(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"for_": "for"}):
    """Payload of `$control/extend`: keep a delivery on this connection for so long from now."""

    packet_id: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    for_: str | float
    progress: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


class Done(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Payload of `$control/done`: a message of a group, from another connection, is done."""

    group: str
    id: str


class Holding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Payload of `$control/holding`: messages of a group, from before the server's start, that the client
    still has."""

    group: str
    ids: Annotated[list[str], msgspec.Meta(max_length=HOLDING_MAX)]


_extension = msgspec.json.Decoder(Extension)
_done = msgspec.json.Decoder(Done)
_holding = msgspec.json.Decoder(Holding)


def _control(packet: Publish, decoder: msgspec.json.Decoder[Control]) -> Control:
    """The payload of a command. Raises PublishRefused."""
    topic = packet.topic.decode()
    if packet.qos == 2:
        raise PublishRefused(Reason.IMPLEMENTATION_SPECIFIC_ERROR, f"{topic} must be published at QoS 1")
    try:
        bytes(packet.payload).decode()  # msgspec does not look into a `Raw`
        return decoder.decode(packet.payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PublishRefused(Reason.PAYLOAD_FORMAT_INVALID, f"{topic}: {error}") from error


def _named(packet: Publish, name: str) -> MessageId:
    """Raises PublishRefused."""
    try:
        return parse_id(name)
    except BadId as error:
        raise PublishRefused(Reason.PAYLOAD_FORMAT_INVALID, f"{packet.topic.decode()}: {error}") from error


def read_extension(packet: Publish) -> tuple[int, int, bytes]:
    """(packet id, for how many ms, the progress in JSON, if any). Raises PublishRefused."""
    extension = _control(packet, _extension)
    try:
        for_ms = parse_delay(extension.for_)
    except TimeError as error:
        raise PublishRefused(Reason.PAYLOAD_FORMAT_INVALID, f"$control/extend: for: {error}") from error
    progress = bytes(extension.progress)
    if not 0 < for_ms <= ACK_MS_MAX or len(progress) > BYTES_MAX:
        detail = (
            f"for must be above 0 and at most {ACK_MS_MAX // 1_000} s, progress at most {BYTES_MAX:,} bytes"
        )
        raise PublishRefused(Reason.QUOTA_EXCEEDED, f"$control/extend: {detail}")
    return extension.packet_id, for_ms, progress


def read_done(packet: Publish) -> tuple[str, MessageId]:
    """(the group, as it is subscribed to; the message). Raises PublishRefused."""
    done = _control(packet, _done)
    return done.group, _named(packet, done.id)


def read_holding(packet: Publish) -> tuple[str, list[MessageId]]:
    """(the group, as it is subscribed to; the messages). Raises PublishRefused."""
    holding = _control(packet, _holding)
    return holding.group, [_named(packet, name) for name in holding.ids]


def may_publish(topic: bytes) -> bool:
    """Whether a client may publish to a topic at once, itself or by its will."""
    return not is_reserved(topic) or matches(BRIDGE_STATE, topic.decode())


def expires_ms(properties: Properties | None) -> int:
    """The message expiry of a publish or a will; 0: none. An interval of 0 s is over at once."""
    expiry = properties.message_expiry if properties is not None else None
    return 0 if expiry is None else expiry * 1000 or AT_ONCE_MS


def is_as_declared(payload: bytes, properties: Properties | None) -> bool:
    """Whether a payload that is declared as UTF-8 is valid UTF-8."""
    if properties is None or properties.payload_format != 1:
        return True
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


def _fingerprint(packet: Publish) -> bytes:
    return blake2b(packet.topic + b"\0" + packet.payload, digest_size=16).digest()


def _ordering_key(properties: Properties) -> bytes:
    """The ordering key; empty: none. Raises PublishRefused for one that HTTP would not take."""
    text = properties.user(ORDERING_KEY) or ""
    encoded = text.encode()
    if len(encoded) > ORDERING_KEY_BYTES_MAX:
        detail = f"{ORDERING_KEY} is longer than {ORDERING_KEY_BYTES_MAX} bytes"
        raise PublishRefused(Reason.QUOTA_EXCEEDED, detail)
    if not text.isprintable():
        raise PublishRefused(
            Reason.IMPLEMENTATION_SPECIFIC_ERROR, f"{ORDERING_KEY} must not hold control characters"
        )
    return encoded


def _terms(properties: Properties, *, has_key: bool) -> Terms:
    """The publish's options of its key. Raises PublishRefused."""
    replace, key_only = _flag(properties, REPLACE), _flag(properties, KEY_ONLY)
    while_undone = _flag(properties, KEY_SCOPE, "kept", "pending")
    if not replace and not key_only and not while_undone:
        return AS_EVER
    if not has_key:
        detail = f"{REPLACE}, {KEY_ONLY}, {KEY_SCOPE} require an idempotency-key"
        raise PublishRefused(Reason.IMPLEMENTATION_SPECIFIC_ERROR, detail)
    return Terms(key_only, replace, while_undone)


def _flag(properties: Properties, name: str, off: str = "false", on: str = "true") -> bool:
    text = properties.user(name) or off
    if text not in (on, off):
        raise PublishRefused(Reason.IMPLEMENTATION_SPECIFIC_ERROR, f"{name} must be {on} or {off}")
    return text == on


def _check(packet: Publish, topic: bytes, levels_max: int) -> None:
    """Raises PublishRefused for a topic or property text that must not go to subscribers. An earlier
    version's retained message can still be cleared."""
    if levels_of(topic) > levels_max:
        detail = f"the topic has {levels_of(topic)} levels, and may have {levels_max}"
        raise PublishRefused(Reason.TOPIC_NAME_INVALID, detail)
    refused = refused_character(topic.decode())
    if refused and (packet.payload or not packet.retain):
        raise PublishRefused(Reason.TOPIC_NAME_INVALID, f"the topic must not contain {refused}")
    refused = refused_in(packet.properties)
    if refused:
        raise PublishRefused(
            Reason.IMPLEMENTATION_SPECIFIC_ERROR, f"the properties must not contain {refused}"
        )


def refused_in(properties: Properties | None) -> str:
    """The first character in a publish's or will's properties at which clients may close the connection, as
    `U+0007`; empty: none."""
    if properties is None:
        return ""
    texts = [text for pair in properties.user_properties for text in pair]
    return refused_character(
        "".join([properties.content_type or "", properties.response_topic or "", *texts])
    )


def usual_delayed(topic: bytes, now_ms: int) -> tuple[bytes, int] | None:
    """`_delayed` for a valid topic, which the decoder has checked; None: it may be invalid."""
    number, _, rest = topic[_NUMBER_AT:].partition(b"/")
    if (
        not number.isdigit()
        or len(number) > NUMBER_DIGITS
        or not rest
        or rest.startswith(b"$")
        or not topic.startswith(DELAYED)
        or not topic.decode().isprintable()
    ):
        return None
    due_ms = _due(int(number), now_ms)
    return None if due_ms is None else (rest, due_ms)


def _due(seconds: int, now_ms: int) -> int | None:
    """The time that a number names, UTC ms. None if it is too large for a delay and too small for a Unix
    time."""
    if DELAY_MAX_S < seconds < SECONDS_MAX:
        return None
    return seconds * 1_000 if seconds >= SECONDS_MAX else now_ms + seconds * 1_000


def _delayed(topic: bytes, now_ms: int) -> tuple[bytes, int]:
    """Topic and due time of `$delayed/{n}/{topic}`."""
    number, _, rest = topic[len(DELAYED) :].partition(b"/")
    if not number.isdigit() or len(number) > NUMBER_DIGITS:
        other = other_reading(int(number[:20])) if number.isdigit() else ""
        detail = f"$delayed/{{n}}/{{topic}}: n must be whole seconds{other}"
        raise PublishRefused(Reason.TOPIC_NAME_INVALID, detail)
    try:
        check_topic(rest)
    except TopicError as error:
        raise PublishRefused(Reason.TOPIC_NAME_INVALID, f"$delayed/{{n}}/{{topic}}: {error}") from error
    if is_reserved(rest):
        raise PublishRefused(Reason.TOPIC_NAME_INVALID, _RESERVED)
    seconds = int(number)
    due_ms = _due(seconds, now_ms)
    if due_ms is None:
        detail = f"$delayed/{seconds}: is it a delay of {seconds // 86_400} days, or a Unix time, "
        detail += f"{format_ms(seconds * 1_000)}? At level 5 give deliver-in or deliver-at"
        raise PublishRefused(Reason.TOPIC_NAME_INVALID, detail)
    return rest, due_ms


def _requested_due(properties: Properties, now_ms: int) -> int:
    at, delay = properties.user("deliver-at"), properties.user("deliver-in")
    if at is not None and delay is not None:
        raise PublishRefused(Reason.TOPIC_NAME_INVALID, "deliver-at and deliver-in exclude each other")
    try:
        if at is not None:
            return parse_due(at)
        if delay is not None:
            return now_ms + parse_delay(delay)
    except TimeError as error:
        name = "deliver-at" if at is not None else "deliver-in"
        raise PublishRefused(Reason.TOPIC_NAME_INVALID, f"{name}: {error}") from error
    return 0


def handed_on(properties: Properties | None) -> bytes:
    """The properties of a publish or will that subscribers get, encoded. Instructions for the server are left
    out, and so are names that only the server may use."""
    if properties is None:
        return b""
    users = tuple(
        pair
        for pair in properties.user_properties
        if pair[0] not in OWN_PROPERTIES and not pair[0].startswith(OWN_PREFIX)
    )
    return forwarded(msgspec.structs.replace(properties, user_properties=users))

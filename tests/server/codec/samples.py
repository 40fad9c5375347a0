"""Packets for the codec's tests: strategies for any valid one, and fixed samples of all kinds and levels.

Which property may stand in which packet is written down here a second time, on purpose: as lists per packet,
read from chapter 3 of the specification, while the codec holds it the other way round.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

from hypothesis import strategies as st

from server.codec import reasons, wire
from server.codec.packets import (
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Properties,
    Publish,
    Suback,
    Subscribe,
    SubscribeOptions,
    Unsuback,
    Unsubscribe,
    Will,
)
from server.codec.publish import Decoder

Role = Literal["server", "client"]
LIMIT = 1 << 20

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
name = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0+#"), min_size=1, max_size=12)
blob = st.binary(max_size=20)
u16 = st.integers(0, 0xFFFF)
u16_positive = st.integers(1, 0xFFFF)
u32 = st.integers(0, 0xFFFF_FFFF)
bit = st.integers(0, 1)
pairs = st.lists(st.tuples(text, text), max_size=3).map(tuple)

FIELDS = {
    "payload_format": bit,
    "message_expiry": u32,
    "content_type": text,
    "response_topic": name,
    "correlation_data": blob,
    "subscription_ids": st.lists(st.integers(1, wire.VARINT_MAX), min_size=1, max_size=3).map(tuple),
    "topic_alias": u16_positive,
    "user_properties": pairs,
    "session_expiry": u32,
    "receive_maximum": u16_positive,
    "maximum_packet_size": st.integers(1, 0xFFFF_FFFF),
    "topic_alias_maximum": u16,
    "request_problem_info": st.booleans(),
    "request_response_info": st.booleans(),
    "auth_method": text,
    "auth_data": blob,
    "will_delay": u32,
    "assigned_client_id": text,
    "server_keep_alive": u16,
    "response_info": text,
    "server_reference": text,
    "reason_string": text,
    "maximum_qos": bit,
    "retain_available": st.booleans(),
    "wildcard_available": st.booleans(),
    "subscription_ids_available": st.booleans(),
    "shared_available": st.booleans(),
}
MESSAGE = "payload_format message_expiry content_type response_topic correlation_data user_properties"
OPENING = "session_expiry receive_maximum maximum_packet_size topic_alias_maximum user_properties auth_method"
CARRIES = {
    "connect": OPENING + " request_problem_info request_response_info",
    "connack": OPENING
    + " assigned_client_id server_keep_alive response_info server_reference reason_string maximum_qos"
    + " retain_available wildcard_available subscription_ids_available shared_available",
    "will": MESSAGE + " will_delay",
    "publish from client": MESSAGE + " topic_alias",
    "publish from server": MESSAGE + " topic_alias subscription_ids",
    "answer": "reason_string user_properties",
    "request": "user_properties",
    "disconnect from client": "session_expiry reason_string user_properties",
    "disconnect from server": "server_reference reason_string user_properties",
    "auth": "auth_method auth_data reason_string user_properties",
}


@cache
def properties(carrier: str, level: int, need: str = "") -> st.SearchStrategy[Properties | None]:
    """None, or properties that `carrier` may have; with those named in `need` always."""
    if level < 5:
        return st.none()
    needed = {field: FIELDS[field] for field in need.split()}
    optional = {field: FIELDS[field] for field in CARRIES[carrier].split() if field not in needed}
    some = st.fixed_dictionaries(needed, optional=optional).map(lambda found: Properties(**found))
    return some.map(lambda found: None if found == Properties() else found)


@cache
def publishes(level: int, sender: Role) -> st.SearchStrategy[Publish]:
    def build(
        topic: str, payload: bytes, qos: int, retain: bool, dup: bool, packet_id: int, found
    ) -> Publish:
        return Publish(topic.encode(), payload, qos, retain, dup and qos > 0, packet_id if qos else 0, found)

    carrier = f"publish from {sender}"
    payload = st.one_of(blob, st.binary(min_size=100, max_size=200))
    rest = (payload, st.integers(0, 2), st.booleans(), st.booleans(), u16_positive)
    plain = st.builds(build, name, *rest, properties(carrier, level))
    if level < 5:
        return plain
    return plain | st.builds(build, st.just(""), *rest, properties(carrier, level, "topic_alias"))


@cache
def acks(level: int) -> st.SearchStrategy[Ack]:
    def of(kind: int, allowed: frozenset[int]) -> st.SearchStrategy[Ack]:
        reason = st.sampled_from(sorted(allowed)) if level == 5 else st.just(0)
        return st.builds(Ack, st.just(kind), u16_positive, reason, properties("answer", level))

    return st.one_of(
        of(wire.PUBACK, reasons.PUBLISH_REASONS),
        of(wire.PUBREC, reasons.PUBLISH_REASONS),
        of(wire.PUBREL, reasons.RELEASE_REASONS),
        of(wire.PUBCOMP, reasons.RELEASE_REASONS),
    )


@cache
def connects(level: int) -> st.SearchStrategy[Connect]:
    def build(username: str | None, password: bytes | None, **rest) -> Connect:
        return Connect(
            level=level,
            username=username,
            password=None if username is None and level < 5 else password,
            **rest,
        )

    will = st.builds(
        Will, name.map(str.encode), blob, st.integers(0, 2), st.booleans(), properties("will", level)
    )
    return st.builds(
        build,
        username=st.none() | text,
        password=st.none() | blob,
        client_id=text,
        clean_start=st.booleans(),
        keep_alive=u16,
        will=st.none() | will,
        properties=properties("connect", level),
        is_bridge=st.booleans() if level < 5 else st.just(False),
    )


@cache
def from_client(level: int) -> st.SearchStrategy[Packet]:
    """Any packet that a client may send after CONNECT."""
    flag = st.booleans() if level == 5 else st.just(False)
    handling = st.integers(0, 2) if level == 5 else st.just(0)
    options = st.builds(SubscribeOptions, st.integers(0, 2), flag, flag, handling)
    own = name.filter(lambda found: not found.startswith("$share/"))  # these may not ask for no local
    filters = st.lists(st.tuples(own, options), min_size=1, max_size=3).map(tuple)
    one_id = properties("request", level)
    if level == 5:
        ids = st.tuples(st.integers(1, wire.VARINT_MAX))
        one_id |= st.builds(Properties, subscription_ids=ids, user_properties=pairs)
    names = st.lists(name, min_size=1, max_size=3).map(tuple)
    choices = [
        publishes(level, "client"),
        acks(level),
        st.builds(Subscribe, u16_positive, filters, one_id),
        st.builds(Unsubscribe, u16_positive, names, properties("request", level)),
        st.just(Pingreq()),
    ]
    if level < 5:
        return st.one_of(*choices, st.just(Disconnect()))
    leave = st.sampled_from(sorted(reasons.CLIENT_DISCONNECT_REASONS))
    reauth = st.sampled_from(sorted(reasons.CLIENT_AUTH_REASONS))
    return st.one_of(
        *choices,
        st.builds(Disconnect, leave, properties("disconnect from client", level)),
        st.builds(Auth, reauth, properties("auth", level, "auth_method")),
    )


@cache
def from_server(level: int) -> st.SearchStrategy[Packet]:
    """Any packet that a server may send."""
    later = level == 5
    connack = sorted(reasons.CONNACK_REASONS if later else reasons.CONNECT_RETURNS)
    suback = st.sampled_from(sorted(reasons.SUBACK_REASONS if later else reasons.SUBACK_RETURNS))
    unsuback = st.sampled_from(sorted(reasons.UNSUBACK_REASONS))
    some = st.lists(unsuback, min_size=1, max_size=3).map(tuple) if later else st.just(())
    choices = [
        st.builds(Connack, st.just(False), st.sampled_from(connack), properties("connack", level)),
        st.builds(Connack, st.just(level > 3), st.just(0), properties("connack", level)),
        publishes(level, "server"),
        acks(level),
        st.builds(
            Suback,
            u16_positive,
            st.lists(suback, min_size=1, max_size=3).map(tuple),
            properties("answer", level),
        ),
        st.builds(Unsuback, u16_positive, some, properties("answer", level)),
        st.just(Pingresp()),
    ]
    if not later:
        return st.one_of(*choices)
    leave = st.sampled_from(sorted(reasons.SERVER_DISCONNECT_REASONS))
    auth = st.sampled_from(sorted(reasons.SERVER_AUTH_REASONS))
    return st.one_of(
        *choices,
        st.builds(Disconnect, leave, properties("disconnect from server", level)),
        st.builds(Auth, auth, properties("auth", level, "auth_method")) | st.just(Auth()),
    )


_MESSAGE = Properties(
    payload_format=1,
    message_expiry=60,
    content_type="text/plain",
    response_topic="r/1",
    correlation_data=b"\x00\x01",
    user_properties=(("a", "1"), ("é", ""), ("a", "2")),
)
_USER = Properties(user_properties=(("deliver-in", "30"), ("k", "v")))
_ANSWER = Properties(reason_string="why", user_properties=(("a", "b"),))
_WILL = Will(b"will/t", b"gone", 1, True)

CLIENT_SAMPLES: list[tuple[int, Packet]] = [
    (3, Connect(3, "old", username="u", password=b"p")),
    (4, Connect(4, "c", keep_alive=30, username="u", password=b"p", will=_WILL)),
    (5, Connect(5, "", clean_start=False, password=b"only")),
    (
        5,
        Connect(
            5,
            "c5",
            will=Will(b"w", b"", 2, False, Properties(will_delay=5, payload_format=0)),
            properties=Properties(session_expiry=60, receive_maximum=10, auth_method="m", auth_data=b"d"),
        ),
    ),
    *[(level, Publish(b"a/b", b"hello")) for level in (3, 4, 5)],
    *[(level, Publish(b"a/b", b"", 1, True, True, 258)) for level in (4, 5)],
    (4, Publish("ä/b".encode(), b"x" * 130, 2, False, False, 7)),
    (5, Publish(b"a", b"p", 1, False, False, 1, _USER)),
    (5, Publish(b"a", b"p", 1, False, False, 1, _MESSAGE)),
    (5, Publish(b"", b"p", 0, properties=Properties(topic_alias=3, message_expiry=9))),
    (5, Publish(b"a", b"p", 0, properties=Properties(user_properties=(("k" * 70, "v" * 70),)))),
    *[(level, Ack(kind, 77)) for level in (4, 5) for kind in (4, 5, 6, 7)],
    (5, Ack(wire.PUBACK, 77, 0x10)),
    (5, Ack(wire.PUBREL, 77, 0x92, _ANSWER)),
    (4, Subscribe(9, (("a/+", SubscribeOptions(1)), ("#", SubscribeOptions(0))))),
    (
        5,
        Subscribe(
            9,
            (("$share/g/a", SubscribeOptions(2, False, True, 2)), ("b", SubscribeOptions(1, True))),
            Properties(subscription_ids=(300,), user_properties=(("replay-from", "1h"),)),
        ),
    ),
    (4, Unsubscribe(9, ("a", "b/#"))),
    (5, Unsubscribe(9, ("a", "b/#"), Properties(user_properties=(("x", "y"),)))),
    *[(level, packet) for level in (4, 5) for packet in (Pingreq(), Disconnect())],
    (5, Disconnect(4)),
    (5, Disconnect(0, Properties(session_expiry=0))),
    (5, Auth(0x18, Properties(auth_method="m", auth_data=b"x"))),
]
SERVER_SAMPLES: list[tuple[int, Packet]] = [
    *[(level, Connack()) for level in (3, 4, 5)],
    (4, Connack(True, 0)),
    (4, Connack(False, 5)),
    (
        5,
        Connack(
            True,
            0,
            Properties(
                receive_maximum=100,
                maximum_qos=1,
                retain_available=False,
                maximum_packet_size=1000,
                assigned_client_id="x",
                topic_alias_maximum=10,
                reason_string="r",
                wildcard_available=True,
                subscription_ids_available=True,
                shared_available=False,
                server_keep_alive=9,
                response_info="i",
                server_reference="s",
            ),
        ),
    ),
    (4, Publish(b"a/b", b"hello", 1, False, False, 2)),
    (5, Publish(b"a/b", b"hello", 1, False, False, 2, Properties(subscription_ids=(1, 300)))),
    (5, Ack(wire.PUBREC, 77, 0x97, _ANSWER)),
    (4, Suback(9, (0, 1, 2, 0x80))),
    (5, Suback(9, (2, 0x8F), _ANSWER)),
    (4, Unsuback(9)),
    (5, Unsuback(9, (0, 0x11), _ANSWER)),
    *[(level, Pingresp()) for level in (4, 5)],
    (5, Disconnect(0x8E, Properties(server_reference="other"))),
    (5, Auth()),
    (5, Auth(0x00, Properties(auth_method="m"))),
]
SAMPLES: list[tuple[Role, int, Packet]] = [
    *[("server", level, packet) for level, packet in CLIENT_SAMPLES],
    *[("client", level, packet) for level, packet in SERVER_SAMPLES],
]


def decoder(role: Role, level: int, first: int, limit: int = LIMIT) -> Decoder:
    """A decoder that is ready for a packet beginning with byte `first`."""
    return Decoder(limit, 0 if first >> 4 == wire.CONNECT and role == "server" else level, role)


def sample_id(value: object) -> str:
    """Test ids: the struct's name for packets."""
    return type(value).__name__ if isinstance(value, Packet) else str(value)

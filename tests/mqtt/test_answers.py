"""What the answers say: bare acks, refusals by level, and settings that only an answer can tell of."""

import pytest

from server.mqtt import wire
from server.mqtt.packets import Ack
from tests.mqtt.rig import Rig


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("watched", [False, True])
def test_the_ack_of_a_plain_publish_is_bare(qos: int, retain: bool, watched: bool) -> None:
    """[MQTT-3.4.2.1]: stored or not, 2 bytes behind the fixed header when there is nothing to say."""
    rig = Rig()
    watch = rig.lasting("w") if watched else rig.connected("w")
    watch.subscribe("t")
    peer = rig.lasting("a")
    peer.raw.clear()
    packet_id = peer.publish("t", "x", qos, retain=retain)
    kind = b"\x40" if qos == 1 else b"\x50"
    assert peer.raw == [kind + b"\x02" + packet_id.to_bytes(2)]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize(
    ("topic", "users"),
    [
        ("$delayed/5/t", ()),
        ("t", (("deliver-in", "5s"),)),
        ("t", (("idempotency-key", "k"),)),
    ],
)
def test_the_ack_of_a_delayed_or_keyed_one_names_it(
    topic: str, users: tuple[tuple[str, str], ...], qos: int
) -> None:
    peer = Rig().lasting("a")
    packet_id = peer.publish(topic, "x", qos, user_properties=users)
    ack: Ack = peer.take_ack(wire.PUBACK if qos == 1 else wire.PUBREC, packet_id)
    assert ack.properties is not None
    assert len(ack.properties.user("fasti-id") or "") == 32

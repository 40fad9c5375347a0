"""A correct client as a model: what MQTT makes it remember survives connections, and it does one thing at a
time, so that everything can happen between any two of them.

`got` is what its user was handed: at QoS 2 each message once, by the rules of [MQTT-4.3.3].
"""

from collections.abc import Callable

from server.codec import wire
from server.codec.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Publish,
    Suback,
    Subscribe,
    SubscribeOptions,
    Unsuback,
)
from tests.support.rig import LONG_S, Peer, Rig, props

PUBLISHED, RELEASED = "published", "released"


class Client:
    """`loses`: asked at each packet that it sends whether the connection breaks instead."""

    def __init__(
        self,
        name: str,
        filters: dict[str, int] | None = None,
        *,
        window: int = 65_535,
        loses: Callable[[], bool] = lambda: False,
    ) -> None:
        self.name = name
        self.filters = filters or {}
        self.window = window
        self.loses = loses
        self.peer: Peer | None = None
        self.got: list[str] = []
        self.known: set[int] = set()
        """Packet ids of QoS 2 deliveries that are handed on and not released."""
        self.outgoing: dict[int, tuple[str, Publish]] = {}
        self.acked: list[str] = []
        """Payloads of publishes that the server has taken over."""
        self.had_session = False
        self.is_ready = False
        """Connected, and its filters are granted (once is enough)."""
        self._next_id = 0
        self._is_asked = False

    @property
    def is_connected(self) -> bool:
        return self.peer is not None and not self.peer.is_closed

    def connect(self, rig: Rig) -> None:
        self.peer = rig.peer()
        self._is_asked = False
        asked = props(session_expiry=LONG_S, receive_maximum=self.window)
        self._send(Connect(5, self.name, clean_start=False, properties=asked))

    def drop(self) -> None:
        if self.peer is not None:
            self.peer.drop(pump=False)

    def publish(self, topic: str, payload: str, qos: int) -> None:
        packet_id = 0
        if qos:
            self._next_id += 1
            packet_id = self._next_id
        packet = Publish(topic.encode(), payload.encode(), qos, packet_id=packet_id)
        if qos:
            self.outgoing[packet_id] = (PUBLISHED, packet)
        if self.is_connected and self._is_asked:
            self._send(packet)

    def react(self) -> bool:
        """Look at one packet; False if there is none."""
        if self.peer is None or self.peer.is_closed or not self.peer.inbox:
            return False
        self._on(self.peer.inbox.pop(0))
        return True

    def _on(self, packet: Packet) -> None:
        if isinstance(packet, Connack):
            self._on_connack(packet)
        elif isinstance(packet, Publish):
            self._on_publish(packet)
        elif isinstance(packet, Ack):
            self._on_ack(packet)
        elif isinstance(packet, Suback):
            self.is_ready = True
        else:
            assert isinstance(packet, Unsuback | Disconnect), packet

    def _on_connack(self, packet: Connack) -> None:
        assert packet.reason == 0, packet
        assert packet.session_present or not self.had_session, f"the session of {self.name} is gone"
        self.had_session = True
        if not packet.session_present:
            self.known.clear()
        self._is_asked = True
        for packet_id, (phase, publish) in list(self.outgoing.items()):
            if phase == RELEASED:
                self._send(Ack(wire.PUBREL, packet_id))
            else:
                self._send(
                    Publish(publish.topic, publish.payload, publish.qos, dup=True, packet_id=packet_id)
                )
        if self.filters:
            wanted = tuple((text, SubscribeOptions(qos)) for text, qos in self.filters.items())
            self._send(Subscribe(60_000, wanted))
        else:
            self.is_ready = True

    def _on_publish(self, packet: Publish) -> None:
        if packet.qos < 2:
            self.got.append(packet.payload.decode())
            if packet.qos:
                self._send(Ack(wire.PUBACK, packet.packet_id))
            return
        if packet.packet_id not in self.known:
            self.known.add(packet.packet_id)
            self.got.append(packet.payload.decode())
        else:
            assert packet.dup
        self._send(Ack(wire.PUBREC, packet.packet_id))

    def _on_ack(self, packet: Ack) -> None:
        kind, packet_id = packet.kind, packet.packet_id
        if kind == wire.PUBREL:
            self.known.discard(packet_id)
            self._send(Ack(wire.PUBCOMP, packet_id))
            return
        phase, publish = self.outgoing[packet_id]
        assert packet.reason in (0, 0x10) or kind == wire.PUBCOMP, packet
        if kind == wire.PUBREC:
            if phase == PUBLISHED:
                self.acked.append(publish.payload.decode())
            self.outgoing[packet_id] = (RELEASED, publish)
            self._send(Ack(wire.PUBREL, packet_id))
            return
        assert kind == (wire.PUBACK if publish.qos == 1 else wire.PUBCOMP), packet
        if kind == wire.PUBACK:
            self.acked.append(publish.payload.decode())
        del self.outgoing[packet_id]

    def _send(self, packet: Packet) -> None:
        if self.loses():
            self.drop()
        elif self.peer is not None:
            self.peer.send(packet, pump=False)


def finish(rig: Rig, clients: list[Client]) -> None:
    """Everybody connects and everything comes to its end."""
    for client in clients:
        client.loses = lambda: False
    for _ in range(10_000):
        for client in clients:
            if not client.is_connected:
                client.connect(rig)
        rig.pump()
        moved = [client.react() for client in clients]
        if not any(moved) and not _wait_for_a_retry(rig):
            break
    else:
        raise AssertionError("it does not come to an end")
    assert not any(client.outgoing for client in clients)
    for client in clients:
        assert not client.known, client.known


def _wait_for_a_retry(rig: Rig) -> bool:
    """What came to nothing comes again later, and what members had before a start: let that time pass. False:
    nothing waits."""
    if rig.core.settling.former:
        rig.lapse()
        return True
    next_ms = rig.core.retries.next_ms
    if next_ms is not None:
        rig.pass_ms(next_ms + 1 - rig.clock.now_ms)
    return next_ms is not None

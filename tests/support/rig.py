"""A whole MQTT server without a socket, a thread or a disk: every step is the test's.

`Rig` drives a `Core` over the memory store and a clock that stands still until it is set. `Peer` is a
connection with the codec's client side at the other end. `pump` runs everything to a standstill; a test that
looks at one step at a time calls `compose`, `settle`, `turn` and `deliver` itself, or `micro`, which does the
next thing that can be done. `crash(k)` comes back with what was durable and k more batches, as a killed
server could.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from server.auth.keyring import Keyring
from server.codec import wire
from server.codec.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
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
from server.core import Core
from server.delivery.link import Closing
from server.delivery.session_rows import cursor_row, group_row, session_row
from server.delivery.settling.settling import HELD_MS
from server.delivery.shared import Group
from server.delivery.subscriber import Subscriber
from server.mqtt.authenticator import Authenticator
from server.mqtt.state import Connection
from server.observe.tracing import Traces
from server.settings.config import Config, Limits, Mqtt, Replay, Sessions
from shards.commit import Commit
from shards.errors import StoreFailed
from shards.store import Table
from shards.tables import cursor_row_of
from tests.support.clock import RigClock
from tests.support.encode import encode
from tests.support.memory_store import MemoryStore
from tests.support.stepper import Stepper
from timeline.key_order import KeyOrder
from timeline.position import START, Position

START_MS = 1_795_248_000_000
LONG_S = 3_600


def config(**keys: Any) -> Config:
    """The defaults with some keys set: `max_in_flight=5`, wherever the key lives."""
    made = Config()
    for name, value in keys.items():
        for section in ("mqtt", "sessions", "limits", "replay", "tail", "slices"):
            if hasattr(getattr(made, section), name):
                made = replace(made, **{section: replace(getattr(made, section), **{name: value})})
                break
        else:
            raise AssertionError(name)
    return made


__all__ = ["Limits", "Mqtt", "Peer", "Replay", "Rig", "Sessions", "about", "asking", "config", "props"]


def props(**values: Any) -> Properties:
    return Properties(**values)


def asking(**terms: str) -> tuple[tuple[str, str], ...]:
    """The user properties of a SUBSCRIBE with these terms: `ack_timeout="30s"`."""
    return tuple((name.replace("_", "-"), value) for name, value in terms.items())


def about(packet: Any) -> Properties:
    """What its properties say; of a packet without that is nothing."""
    return packet.properties or Properties()


class Peer:
    """A client at the other end of a connection. `inbox`: what it was sent and has not looked at."""

    def __init__(self, rig: "Rig", level: int, identity: str = "") -> None:
        self.rig = rig
        self.level = level
        self.planned: list[str] = []
        """What there was to write, each time that there was something."""
        self._turns: deque[Callable[[], None]] = deque()
        """What waits for a turn of its owner."""
        self.connection = Connection(
            rig.core.mqtt,
            rig.authenticator,
            peer="10.0.0.1:5",
            identity=identity,
            wake=lambda: self.planned.append("answers"),
            fill=lambda: self.planned.append("deliveries"),
            in_turn=self._turns.append,
        )
        self.decoder = Decoder(1 << 28, level, "client")
        self.inbox: list[Packet] = []
        self.raw: list[bytes] = []
        self.is_closed = False
        self.is_gone = False
        self.is_reading = True
        self._packet_id = 0
        rig.peers.append(self)

    # -- down

    def send(self, *packets: Packet, pump: bool = True) -> None:
        self.send_bytes(b"".join(encode(packet, self.level) for packet in packets), pump=pump)

    def send_bytes(self, data: bytes, *, pump: bool = True) -> None:
        if not (self.is_closed or self.is_gone):
            self.connection.receive(data)
        if pump:
            self.rig.pump()

    def next_id(self) -> int:
        self._packet_id += 1
        return self._packet_id

    def connect(
        self,
        client_id: str = "",
        *,
        clean: bool = True,
        expiry: int | None = None,
        keep_alive: int = 0,
        username: str | None = None,
        key: str | None = None,
        will: Will | None = None,
        pump: bool = True,
        **properties: Any,
    ) -> Connack:
        if expiry is not None:
            properties["session_expiry"] = expiry
        packet = Connect(
            level=self.level,
            client_id=client_id,
            username=username,
            password=None if key is None else key.encode(),
            clean_start=clean,
            keep_alive=keep_alive,
            will=will,
            properties=props(**properties) if properties else None,
        )
        self.send(packet, pump=pump)
        return self.take(Connack) if pump else Connack()

    def subscribe(
        self,
        *filters: str,
        qos: int = 2,
        no_local: bool = False,
        rap: bool = False,
        handling: int = 0,
        pump: bool = True,
        **properties: Any,
    ) -> tuple[int, ...]:
        options = SubscribeOptions(qos, no_local, rap, handling)
        wanted = tuple((text, options) for text in filters)
        asked = props(**properties) if properties else None
        self.send(Subscribe(self.next_id(), wanted, asked), pump=pump)
        return self.take(Suback).reasons if pump else ()

    def subscribed(self, *filters: str, **options: Any) -> "Peer":
        """The peer itself, once it is granted them; `options` as of `subscribe`."""
        assert max(self.subscribe(*filters, **options)) < 0x80
        return self

    def unsubscribe(self, *filters: str) -> tuple[int, ...]:
        self.send(Unsubscribe(self.next_id(), filters))
        return self.take(Unsuback).reasons

    def publish(
        self,
        topic: str,
        payload: str | bytes = "x",
        qos: int = 0,
        *,
        retain: bool = False,
        dup: bool = False,
        packet_id: int = 0,
        pump: bool = True,
        **properties: Any,
    ) -> int:
        """Send a PUBLISH; its packet id."""
        data = payload.encode() if isinstance(payload, str) else payload
        packet_id = packet_id or (self.next_id() if qos else 0)
        asked = props(**properties) if properties else None
        self.send(Publish(topic.encode(), data, qos, retain, dup, packet_id, asked), pump=pump)
        return packet_id

    def begin(self, topic: str, payload: str | bytes = "x", **options: Any) -> Ack:
        """The first half of a QoS 2 publish: its PUBREC."""
        return self.take_ack(wire.PUBREC, self.publish(topic, payload, 2, **options))

    def release(self, packet_id: int) -> Ack:
        """The other half: its PUBCOMP."""
        self.ack(wire.PUBREL, packet_id)
        return self.take_ack(wire.PUBCOMP, packet_id)

    def publish2(self, topic: str, payload: str = "x", **options: Any) -> None:
        """A whole QoS 2 publish."""
        received = self.begin(topic, payload, **options)
        assert received.reason < 0x80
        self.release(received.packet_id)

    def publish1(self, topic: str, payload: str = "x", **options: Any) -> Ack:
        packet_id = self.publish(topic, payload, 1, **options)
        return self.take_ack(wire.PUBACK, packet_id)

    def ack(self, kind: int, packet_id: int, reason: int = 0, *, pump: bool = True) -> None:
        self.send(Ack(kind, packet_id, reason), pump=pump)

    def nack(
        self, packet: Publish, wait: str = "", reason: str = "", *, pump: bool = True, **more: str
    ) -> None:
        """It could not be done. `wait`: `retry-in`."""
        said = {"retry-in": wait, **more, **({"reason": reason} if reason else {})}
        kind = wire.PUBACK if packet.qos == 1 else wire.PUBREC
        self.send(Ack(kind, packet.packet_id, 0x80, props(user_properties=tuple(said.items()))), pump=pump)

    def ping(self) -> None:
        self.send(Pingreq())

    def disconnect(self, reason: int = 0, expiry: int | None = None) -> None:
        asked = props(session_expiry=expiry) if expiry is not None else None
        self.send(Disconnect(reason, asked))

    def drop(self, *, pump: bool = True) -> None:
        """The network is gone. What has come before is still handled, in later steps if that takes some."""
        if not self.is_closed:
            self.is_gone = self.connection.outbox.is_blocked = True
            self._leave()
        if pump:
            self.rig.pump()

    def back(self, **options: Any) -> "Peer":
        """The connection is lost, and its client comes back to its session."""
        self.drop()
        return self.rig.lasting(self.connection.client_id, self.level, **options)

    # -- up

    def deliver(self) -> bool:
        """What the server has put on the wire arrives. True if there was something."""
        if self._turns:
            self._turns.popleft()()
            return True
        if self.is_gone and not self.is_closed:
            return self._leave()
        if self.is_closed or not self.is_reading:
            return False
        is_behind = self.connection.is_behind and not self.connection.is_waiting
        if is_behind:
            self.connection.receive(b"")
        out = self.connection.take_output()
        if out:
            data = b"".join(out)
            self.raw.append(data)
            self.inbox += self.decoder.feed(data)
        if self.connection.outbox.is_closed:
            self.is_closed = True
            self.connection.lost()
            return True
        if out:
            self.connection.drained()
        return bool(out) or is_behind

    def _leave(self) -> bool:
        """Nobody is there any more: handle what is left, then it is lost. Whether there was a step."""
        connection = self.connection
        is_step = connection.is_behind and not connection.is_waiting
        if is_step:
            connection.receive(b"")
        connection.take_output()
        if not connection.is_unfinished:
            self.is_closed = is_step = True
            connection.lost()
        return is_step

    def take(self, kind: type[Any]) -> Any:
        assert self.inbox, f"no {kind.__name__} has come"
        packet = self.inbox.pop(0)
        assert isinstance(packet, kind), packet
        return packet

    def take_ack(self, kind: int, packet_id: int | None = None) -> Ack:
        """The first packet, which must be that ack."""
        packet: Ack = self.take(Ack)
        assert packet.kind == kind, packet
        assert packet_id is None or packet.packet_id == packet_id, packet
        return packet

    def publishes(self) -> list[Publish]:
        """All that has come; nothing but PUBLISH may have."""
        found, self.inbox = self.inbox, []
        assert all(isinstance(packet, Publish) for packet in found), found
        return found  # type: ignore[return-value]

    def one(self) -> Publish:
        """All that has come, which is one PUBLISH."""
        (packet,) = self.publishes()
        return packet

    def payloads(self) -> list[str]:
        return [packet.payload.decode() for packet in self.publishes()]

    def deliveries(self, *, acks: bool = True, is_strict: bool = True) -> list[Publish]:
        """Everything, each taken through to its end with the acks that it needs, or left in flight.

        `is_strict`: nothing else may have come.
        """
        found = []
        while self.inbox:
            packet = self.inbox.pop(0)
            if isinstance(packet, Publish):
                found.append(packet)
                if packet.qos and acks:
                    self.ack(wire.PUBACK if packet.qos == 1 else wire.PUBREC, packet.packet_id)
            elif isinstance(packet, Ack) and packet.kind == wire.PUBREL:
                self.ack(wire.PUBCOMP, packet.packet_id)
            else:
                assert not is_strict, packet
        return found

    def take_all(self) -> list[str]:
        """Payloads of everything, each taken through to its end."""
        return [packet.payload.decode(errors="replace") for packet in self.deliveries()]

    @property
    def gone_with(self) -> int | None:
        """The reason of the DISCONNECT that came last; None: closed without, -1: not closed."""
        if not self.is_closed:
            return -1
        last = self.inbox[-1] if self.inbox else None
        return last.reason if isinstance(last, Disconnect) else None


class Rig:
    """A server and the connections to it."""

    def __init__(self, settings: Config | None = None, traces: Traces | None = None) -> None:
        self.clock = RigClock(START_MS)
        self.store = self.first_store()
        self.peers: list[Peer] = []
        self.is_held = False
        """No sync ends."""
        self.stepper = Stepper(self.store, self.clock, settings, traces=traces)
        self.pump()

    def first_store(self) -> MemoryStore:
        return MemoryStore()

    @property
    def core(self) -> Core:
        return self.stepper.core

    @property
    def keyring(self) -> Keyring:
        return self.stepper.keyring

    @property
    def authenticator(self) -> Authenticator:
        """Of its only listener."""
        settings = self.core.config
        return Authenticator(self.keyring, None, lets_anybody=settings.lets_anybody(settings.mqtt.listen[0]))

    def read_keys(self) -> None:
        """Read the files of keys again, as the server does."""
        self.keyring.take(self.keyring.read())
        self.review()

    def review(self) -> None:
        """Apply the keys to whoever is there, as the server does."""
        for peer in self.peers:
            peer.connection.review()
        self.core.review()
        for _ in self.core.subscriptions.review():
            pass
        self.pump()

    def peer(self, level: int = 5, identity: str = "") -> Peer:
        return Peer(self, level, identity)

    def connected(self, client_id: str = "", level: int = 5, **options: Any) -> Peer:
        peer = self.peer(level)
        connack = peer.connect(client_id, **options)
        assert connack.reason == 0, connack
        return peer

    def lasting(self, client_id: str, level: int = 5, **options: Any) -> Peer:
        """A connection to a persistent session, resumed if it is there."""
        if level == 5:
            options.setdefault("expiry", LONG_S)
        return self.connected(client_id, level, clean=False, **options)

    def send(self, topic: str, *payloads: str, qos: int = 1, **options: Any) -> None:
        """Somebody comes, publishes each, and goes."""
        peer = self.connected("publisher")
        for payload in payloads:
            (peer.publish, peer.publish1, peer.publish2)[qos](topic, payload, **options)
        peer.disconnect()

    # -- what the server has

    def group(self, text: str) -> Group:
        """It is there."""
        found = self.core.groups.get(text)
        assert found is not None, text
        return found

    def make(self, *texts: str, **terms: Any) -> None:
        """Groups with these terms, which nobody is in if they are new."""
        for text in texts:
            self.decide(partial(self.core.groups.make, text=text, **terms))

    def pause(self, text: str, *, is_paused: bool = True, pump: bool = True) -> None:
        group = self.group(text)
        self.decide(lambda commit: self.core.groups.pause(commit, group, is_paused=is_paused), pump=pump)

    def rewind(self, name: str, to: Position = START, *, pump: bool = True) -> None:
        """What `:replay` does, to a group by its filter or to a session."""
        place = self.core.groups.get(name) or self.session(name)
        self.decide(lambda commit: self.core.replay.rewind(commit, place, to), pump=pump)

    def order(self, text: str) -> KeyOrder:
        """What a group with rules of keys knows of them."""
        found = self.group(text).session.order
        assert found is not None, text
        return found

    def session(self, client_id: str) -> Subscriber:
        """It is there."""
        found = self.core.sessions.get(client_id)
        assert found is not None, client_id
        return found

    def decide(self, what: Callable[[Commit], object], *, pump: bool = True) -> list[Any]:
        """The writer decides it, in a request of its own: what that came to, once it has."""
        told: list[Any] = []
        self.core.writer.submit(what, told.append)
        if pump:
            self.pump()
        return told

    def opened(self, client_id: str, **options: Any) -> Peer:
        """Whose session is resumed: CONNACK has come, what was in flight has not been looked at."""
        peer = self.peer()
        peer.connect(client_id, clean=False, expiry=LONG_S, pump=False, **options)
        while peer.connection.is_opening:
            self.write()
        peer.deliver()
        peer.inbox.clear()
        return peer

    # -- one step

    def compose(self) -> bool:
        return self.stepper.compose()

    def settle(self) -> bool:
        return not self.is_held and self.stepper.settle()

    def turn(self) -> bool:
        return self.stepper.turn()

    def fail_sync(self) -> None:
        self.stepper.fail_sync()

    def recover(self) -> bool:
        return self.stepper.recover()

    def write(self) -> None:
        """What is queued is written as one group, which is synced and settled."""
        self.compose()
        self.settle()

    def write_all(self) -> None:
        """All that is queued, while nothing is dispatched."""
        while self.compose() or self.settle():
            """Another group."""

    def lose(self, survivors: int = 0) -> None:
        """A sync fails. The store is back at once, and of what was not durable it has so many batches."""
        self.fail_sync()
        self.store.survivors = survivors
        assert self.recover()

    def break_store(self) -> None:
        """From now on it takes nothing."""
        self.core.writer.fail(StoreFailed("told to"))
        self.store.fail_writes = True

    def mend_store(self) -> None:
        self.store.fail_writes = False
        assert self.recover()

    def deliver(self) -> bool:
        moved = False
        for peer in list(self.peers):
            moved = peer.deliver() or moved
        self.peers = [peer for peer in self.peers if not peer.is_closed]
        return moved

    def pump(self) -> None:
        """Everything until nothing moves."""
        for _ in range(100_000):
            if not any([self.compose(), self.settle(), self.turn(), self.deliver()]):
                return
        raise AssertionError("it does not come to rest")

    def micro(self) -> bool:
        """The next single thing that can be done; False when there is none."""
        steps: list[Callable[[], bool]] = [self.deliver, self.turn, self.compose, self.settle]
        return any(step() for step in steps)

    def take_steps(self, count: int) -> bool:
        """That many single things, one after another; whether there were so many."""
        return all(self.micro() for _ in range(count))

    # -- time and faults

    def pass_ms(self, by_ms: int) -> None:
        """Time passes in steps short enough for the durable bound."""
        target = self.clock.now_ms + by_ms
        while self.clock.now_ms < target:
            self.clock.now_ms = min(target, self.clock.now_ms + 900)
            self.pump()

    def jump(self, by_ms: int) -> None:
        """So much later at once, without the steps between."""
        self.clock.now_ms += by_ms
        self.pump()

    def crash(self, survivors: int = 0, settings: Config | None = None, *, pump: bool = False) -> None:
        """Killed: what was durable is there, and the first `survivors` batches that were not.

        `settings`: other than so far. `pump`: and it is at rest again.
        """
        for peer in self.peers:
            peer.is_closed = True
        self.peers.clear()
        self.store.crash(survivors)
        self.stepper.start(settings)
        if pump:
            self.pump()

    def start_again(self, how: str) -> None:
        """By `crash` or `restart`, and it is at rest again; or not at all, if it `stays`."""
        if how != "stays":
            getattr(self, how)()
            self.pump()

    def disown(self) -> None:
        """Nobody has what groups have in flight: so it is with posts, and in what older versions have stored.
        A start gives it to whoever comes."""
        for group in self.core.groups:
            for flight in group.session.flights.values():
                flight.end_lease()
            self.core.cursors.dirty.add(group)

    def lapse(self) -> None:
        """What members have had since before the start lapses, and its pause passes."""
        self.pass_ms(HELD_MS + 5_000)

    def kill(self) -> None:
        """Killed once everything is durable, and started again."""
        self.finish()
        self.pump()
        self.crash()
        self.pump()

    def finish(self) -> None:
        """The last groups of a server that stops: then the store lacks nothing of any session."""
        cursors, horizon = self.core.cursors, self.core.horizon.position
        cursors.finish()
        while True:
            self.core.writer.submit(lambda commit: None, lambda durable: None)
            while self.compose() or self.settle():
                pass
            if not cursors.is_behind or self.core.writer.broken is not None:
                break
        if self.core.horizon.position == horizon and self.core.writer.is_idle:
            self._check_stored()

    def _check_stored(self) -> None:
        horizon = self.core.horizon.position
        for one in (*self.core.sessions, *self.core.groups):
            key = one.session.client_id.encode()
            if one.session.is_persistent:
                row = group_row(one) if isinstance(one, Group) else session_row(one)
                assert self.store.get(Table.SESSIONS, key) == row, one.session.client_id
                cursor = self.store.get(Table.CURSORS, key) or b""
                assert cursor_row_of(cursor) == cursor_row_of(cursor_row(one, horizon)), one.session.client_id

    def restart(self, why: Closing = Closing.STOPPING) -> None:
        """Stopped in order and started again."""
        for peer in list(self.peers):
            peer.connection.close(why)
        self.pump()
        self.kill()

"""Told scripts: text files of commands and what came of them, that are documentation and test at once.

    # Prose, for whoever reads.
    publish bob t/1 "one" q1
        -> bob PUBACK id=1
        -> ann PUBLISH t/1 "one" q1 id=1

A line at the margin is a command, one that begins with `#` is prose, and the indented lines below a command
are all that it made the server send, one packet a line: client by client, as they connected, and for each one
in the order in which it came. Where nothing was sent it says `nothing`. `told` runs the commands of such a
text against a server without a socket (tests/support/rig.py) and gives the text back with what came now. It
tells what a client would act on, and leaves out ids of messages, times and the server's limits.

    connect NAME [id=ID] [level=4] [clean] [expiry=TIME] [window=N] [will="TOPIC TEXT"]
        CONNECT, at level 5 and with NAME as client id if it does not say, resuming a session if there is one.
        `expiry`: how long the session outlives its connection; `window`: Receive Maximum.
    subscribe NAME FILTER [q0|q1|q2] [from=TIME]
        SUBSCRIBE, at QoS 1 if it does not say. `from`: replay from so long ago.
    unsubscribe NAME FILTER
    publish NAME TOPIC "TEXT" [q0|q1|q2] [retain] [in=TIME] [expiry=TIME] [id=N] [dup]
        PUBLISH, at QoS 0 if it does not say. `in`: with that delay; `id` with `dup`: sent again.
    puback|pubrec|pubrel|pubcomp NAME ID...
        That ack of each packet id. Clients send none by themselves.
    leave NAME
        DISCONNECT.
    lose NAME
        The connection breaks without a word.
    wait TIME
        So much time passes. A TIME is `90s`, `15m`, `2h`, `3d`.
    hold
        From now on no sync ends, so that nothing more is durable.
    go
        They end again.
    kill [N] [down=TIME]
        kill -9 and, so much later, a start: what was durable is there, and N batches that were not.
    restart
        An orderly stop and a start.
    show ID
        The session of that client id, as the server has it.
"""

import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from server.codec import wire
from server.codec.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Properties,
    Publish,
    Suback,
    Subscribe,
    SubscribeOptions,
    Unsuback,
    Unsubscribe,
    Will,
)
from server.codec.reasons import Reason
from tests.support.rig import Peer, Rig

INDENT = "    "
UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
ACKS = {"puback": wire.PUBACK, "pubrec": wire.PUBREC, "pubrel": wire.PUBREL, "pubcomp": wire.PUBCOMP}


class Unreadable(ValueError):
    """A line that is no command."""


@dataclass
class Words:
    """The rest of a command: what stands by its place, `name=value`, and what stands by itself.

    Each is taken once; what is left in the end is a mistake of who wrote it.
    """

    placed: list[str] = field(default_factory=list)
    named: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, line: str, flags: frozenset[str] = frozenset({"clean", "retain", "dup", "q0", "q1", "q2"})
    ) -> "Words":
        found = cls()
        for word in shlex.split(line):
            name, is_named, value = word.partition("=")
            if word in flags or (is_named and name.isalpha()):
                found.named[name] = value
            else:
                found.placed.append(word)
        return found

    def next(self) -> str:
        if not self.placed:
            raise Unreadable("a word is missing")
        return self.placed.pop(0)

    def rest(self) -> list[str]:
        words, self.placed = self.placed, []
        return words

    def flag(self, name: str) -> bool:
        return self.named.pop(name, None) is not None

    def value(self, name: str, default: str = "") -> str:
        return self.named.pop(name, default)

    def seconds(self, name: str) -> int | None:
        return time_ms(self.value(name)) // 1_000 if name in self.named else None

    def qos(self, default: int) -> int:
        return next((qos for qos in range(3) if self.flag(f"q{qos}")), default)

    def end(self) -> None:
        if self.placed or self.named:
            raise Unreadable(f"nobody knows what to do with {[*self.placed, *self.named]}")


class Teller:
    """A server and its clients by name."""

    def __init__(self) -> None:
        self.rig = Rig()
        self.peers: dict[str, Peer] = {}
        self._seen_closed: set[str] = set()
        self._ids: Counter[str] = Counter()
        """Packet ids of each client: they go on over its connections."""

    def do(self, command: str) -> list[str]:
        """What came of one command, a line each. Raises Unreadable."""
        verb, _, line = command.partition(" ")
        words = Words.of(line)
        if verb in ACKS:
            self._ack(ACKS[verb], words)
            said: list[str] = []
        else:
            act: Callable[[Words], list[str] | None] | None = getattr(self, f"do_{verb}", None)
            if act is None:
                raise Unreadable(f"no command: {verb}")
            said = act(words) or []
        words.end()
        self.rig.pump()
        return [*said, *self._came()] or ["nothing"]

    # -- commands

    def do_connect(self, words: Words) -> None:
        name = words.next()
        will = None
        if text := words.value("will"):
            topic, _, payload = text.partition(" ")
            will = Will(topic.encode(), payload.encode(), 1)
        level = int(words.value("level", "5"))
        properties = None
        expiry_s, window = words.seconds("expiry"), words.value("window")
        if level == 5:
            properties = Properties(session_expiry=expiry_s, receive_maximum=int(window) if window else None)
        self.peers.pop(name, None)
        self._seen_closed.discard(name)
        self.peers[name] = self.rig.peer(level)
        self.peers[name].send(
            Connect(
                level,
                words.value("id", name),
                clean_start=words.flag("clean"),
                will=will,
                properties=properties,
            ),
            pump=False,
        )

    def do_subscribe(self, words: Words) -> None:
        packet_id, peer, topic_filter = self._next_id(words), self._peer(words), words.next()
        since = words.value("from")
        asked = Properties(user_properties=(("replay-from", since),)) if since else None
        wanted = ((topic_filter, SubscribeOptions(words.qos(1))),)
        peer.send(Subscribe(packet_id, wanted, asked), pump=False)

    def do_unsubscribe(self, words: Words) -> None:
        packet_id, peer = self._next_id(words), self._peer(words)
        peer.send(Unsubscribe(packet_id, (words.next(),)), pump=False)

    def do_publish(self, words: Words) -> None:
        qos, delay = words.qos(0), words.value("in")
        packet_id = int(words.value("id", "0")) or (self._next_id(words) if qos else 0)
        peer, topic, text = self._peer(words), words.next(), words.next()
        properties = Properties(
            message_expiry=words.seconds("expiry"),
            user_properties=(("deliver-in", delay),) if delay else (),
        )
        retain, dup = words.flag("retain"), words.flag("dup")
        packet = Publish(topic.encode(), text.encode(), qos, retain, dup, packet_id, properties)
        peer.send(packet, pump=False)

    def _ack(self, kind: int, words: Words) -> None:
        peer = self._peer(words)
        for packet_id in words.rest():
            peer.send(Ack(kind, int(packet_id)), pump=False)

    def do_leave(self, words: Words) -> None:
        self._gone(words, lambda peer: peer.send(Disconnect(), pump=False))

    def do_lose(self, words: Words) -> None:
        self._gone(words, lambda peer: peer.drop(pump=False))

    def do_wait(self, words: Words) -> None:
        self.rig.pass_ms(time_ms(words.next()))

    def do_hold(self, words: Words) -> None:
        self.rig.is_held = True

    def do_go(self, words: Words) -> None:
        self.rig.is_held = False

    def do_kill(self, words: Words) -> None:
        self.rig.is_held = False
        if away := words.value("down"):
            self.rig.clock.now_ms += time_ms(away)
        self.rig.crash(sum(map(int, words.rest())))

    def do_restart(self, words: Words) -> None:
        self.rig.restart()

    def do_show(self, words: Words) -> list[str]:
        name = words.next()
        found = self.rig.core.sessions.get(name)
        if found is None:
            return [f"{name} has no session"]
        wants = [f"{one.filter} q{one.qos}" for one in found.session.subscriptions.values()]
        flights = [str(packet_id) for packet_id in found.session.flights]
        return [
            f"{name} is {'away' if found.link is None else 'here'}",
            f"{name} wants {', '.join(wants) or 'nothing'}",
            f"{name} has in flight {' '.join(flights) or 'nothing'}",
        ]

    # -- leaves

    def _peer(self, words: Words) -> Peer:
        name = words.next()
        if name not in self.peers or self.peers[name].is_closed:
            raise Unreadable(f"{name} is not connected")
        return self.peers[name]

    def _next_id(self, words: Words) -> int:
        name = words.placed[0] if words.placed else ""
        self._ids[name] += 1
        return self._ids[name]

    def _gone(self, words: Words, how: Callable[[Peer], None]) -> None:
        """A client ends its own connection: that it is closed then is no news."""
        peer = self._peer(words)
        how(peer)
        self._seen_closed.update(name for name, other in self.peers.items() if other is peer)

    def _came(self) -> Iterator[str]:
        for name, peer in self.peers.items():
            packets, peer.inbox = peer.inbox, []
            yield from (f"-> {name} {in_words(packet, peer.level)}" for packet in packets)
            if peer.is_closed and name not in self._seen_closed:
                self._seen_closed.add(name)
                yield f"-> {name} is cut off"


def in_words(packet: Packet, level: int) -> str:
    """A packet that a client got, in one line: what a client would act on, defaults left out."""
    match packet:
        case Connack():
            told = ["CONNACK", *(["session-present"] * packet.session_present), *refusal(packet.reason)]
        case Publish():
            flags = [word for word, is_set in (("dup", packet.dup), ("retain", packet.retain)) if is_set]
            about = [f"q{packet.qos}", *([f"id={packet.packet_id}"] if packet.qos else []), *flags]
            topic, text = packet.topic.decode(), packet.payload.decode()
            told = ["PUBLISH", topic, f'"{text}"', *about, *said_with(packet.properties)]
        case Ack():
            name = next(name for name, kind in ACKS.items() if kind == packet.kind)
            told = [name.upper(), f"id={packet.packet_id}", *refusal(packet.reason)]
        case Suback():
            given = [f"q{r}" if r < 3 else reason_text(r) for r in packet.reasons]
            told = ["SUBACK", *given]
        case Unsuback():
            told = ["UNSUBACK", *(word for reason in packet.reasons for word in refusal(reason))]
        case Disconnect():
            told = ["DISCONNECT", *refusal(packet.reason)]
        case _:
            raise AssertionError(packet)
    return " ".join(told)


def said_with(properties: Properties | None) -> Iterator[str]:
    """Of a delivery's properties those that a story is about."""
    if properties is None:
        return
    if properties.message_expiry is not None:
        yield f"expiry={properties.message_expiry}s"
    for name in ("fasti-attempt", "fasti-dead-reason"):
        if text := properties.user(name):
            yield f"{name.removeprefix('fasti-')}={shlex.quote(text)}"


def refusal(reason: int) -> list[str]:
    return [reason_text(reason)] if reason else []


def reason_text(reason: int) -> str:
    return f"({Reason(reason).name.lower().replace('_', ' ')})"


def time_ms(text: str) -> int:
    """`90s`, `15m`, `2h`, `3d`."""
    if text[-1:] not in UNITS_MS or not text[:-1].isdigit():
        raise Unreadable(f"no time: {text}")
    return int(text[:-1]) * UNITS_MS[text[-1]]


def told(script: str) -> str:
    """The script with what came of its commands now. Raises Unreadable, with the line."""
    teller = Teller()
    lines: list[str] = []
    for number, line in enumerate(script.splitlines(), 1):
        if line.startswith(INDENT):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            try:
                lines += [INDENT + came for came in teller.do(line)]
            except (Unreadable, ValueError) as error:
                raise Unreadable(f"line {number}, {line}: {error}") from error
    return "\n".join(lines) + "\n"

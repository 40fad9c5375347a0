"""Records as they are stored: a server of JetStream pushes them, so that nobody asks 20 times a second.

    CONSUMER.CREATE      a consumer from one sequence on, in the server's RAM, without acks
    CONSUMER.MSG.NEXT    up to MANY messages, as they come, within PULL_S; else a status says that it is over

What is pushed is worth what a near server answers: it may lack records, or have damaged ones. When asked for
a trimmed sequence a consumer begins silently with the first that is left. So each message's sequence is
compared here, and chained.py sees whether the records fit. Whoever listens asks for what is missing, and now
and then for the end of the log. So a feed that has died silently, with its server, delays a record only.

Nothing is told to the server at the end: a consumer goes when nobody has asked it for KEPT_S.
"""

import secrets
import time
from typing import Any

import msgspec

from .nats import NatsConnection, NatsError, Reply, Request

MANY = 64
MANY_BYTES = 16 << 20
"""Maximum on their way."""
PULL_S = 5.0
LATE_S = 2.0
"""The status after PULL_S may be late by this."""
KEPT_S = 30.0
CREATE_S = 2.0
CONSUMER = b"$JS.API.CONSUMER"
OVER = (b"408", b"409")


class Feed:
    """One consumer, on the connection that it has for itself. Any error is its end."""

    def __init__(self, connection: NatsConnection, stream: bytes, seq: int) -> None:
        """From record `seq` on. Raises NatsError, OSError."""
        self.connection = connection
        name = secrets.token_hex(8)
        self._next = Request(
            b"%s.MSG.NEXT.%s.%s" % (CONSUMER, stream, name.encode()),
            b'{"batch":%d,"max_bytes":%d,"expires":%d}' % (MANY, MANY_BYTES, int(PULL_S * 1e9)),
        )
        config = {
            "name": name,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": seq,
            "ack_policy": "none",
            "replay_policy": "instant",
            "inactive_threshold": int(KEPT_S * 1e9),
            "num_replicas": 1,
            "mem_storage": True,
        }
        subject = b"%s.CREATE.%s.%s" % (CONSUMER, stream, name.encode())
        body = msgspec.json.encode({"stream_name": stream.decode(), "config": config})
        (reply,) = connection.ask([Request(subject, body)], CREATE_S)
        error = msgspec.json.decode(reply.data, type=dict[str, Any]).get("error")
        if error is not None:
            raise NatsError(f"no consumer: {error.get('description', '')}")
        self._subject = connection.listen()
        self._coming = 0
        self._over_at = 0.0

    def frames(self, seq: int, timeout_s: float) -> list[bytes] | None:
        """What has come from `seq` on, as soon as there is something. Empty: nothing in that time, or it was
        nudged. None: the feed lacks that record. Raises NatsError, OSError."""
        until = time.monotonic() + timeout_s
        found: list[bytes] = []
        if self._coming <= 0:
            self._ask()
        while True:
            for one in self.connection.take_pushed():
                wanted = seq + len(found)
                if one.status:
                    self._end(one)
                    continue
                self._coming -= 1
                at = _place(one.to)
                if at > wanted:
                    return None
                if at == wanted:  # else it was read otherwise
                    found.append(one.data)
            left_s = until - time.monotonic()
            if self._coming <= 0 or left_s < 0 or not self.connection.wait(0 if found else left_s):
                break
        if self._coming > 0 and not found and time.monotonic() > self._over_at:
            raise NatsError("a consumer says nothing")
        return found

    def _ask(self) -> None:
        self.connection.tell(self._next, self._subject)
        self._coming, self._over_at = MANY, time.monotonic() + PULL_S + LATE_S

    def _end(self, status: Reply) -> None:
        """The time is over, or the next message is beyond MANY_BYTES; else the consumer has ended."""
        if status.status not in OVER:
            raise NatsError(f"a consumer ends: {status.headers.decode(errors='replace').strip()}")
        self._coming = 0


def _place(to: bytes) -> int:
    """The sequence in the address of a message's ack: $JS.ACK.stream.consumer.tries.SEQ.…, or with domain and
    account in front."""
    words = to.split(b".")
    return int(words[5] if len(words) == 9 else words[7])

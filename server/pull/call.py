"""One call for messages: its request, its messages, its callback.

It is *full* when it has the requested number of messages, or ANSWER_BYTES of them. The message that exceeds
the bytes still belongs to it, so a message of any size is given.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..delivery.message import Message
from ..delivery.subscriber import Subscriber

ANSWER_BYTES = 4 << 20
"""Bytes of messages after which a call is full."""


class Given(NamedTuple):
    """A message of a call. `member`: the group's member that has it in flight."""

    text: str
    member: Subscriber
    packet_id: int
    message: Message
    attempt: int
    is_redelivered: bool = False


class Leased(NamedTuple):
    """A leased message in an answer, with its lease time. `number`: in its id."""

    given: Given
    until_ms: int
    number: int


LeaseAnswer = Sequence[Leased] | Exception


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """A request for messages. `lease_ms` None: the group's default."""

    most: int
    wait_ms: int
    lease_ms: int | None


class Call:
    """A call; it waits in a consumer of each of its groups."""

    __slots__ = ("answered", "bytes", "given", "is_gone", "request", "until_s")

    def __init__(
        self,
        request: LeaseRequest,
        until_s: float,
        is_gone: Callable[[], bool],
        answered: "Callable[[Call, LeaseAnswer], None]",
    ) -> None:
        """`until_s`: monotonic; then it is answered, perhaps with nothing.

        `is_gone`: whether the client is gone. `answered`: called once, with the call and the answer. It gets
        the call and must not hold it: the two would be a circle, which only the collector ends.
        """
        self.request = request
        self.until_s = until_s
        self.is_gone = is_gone
        self.answered = answered
        self.given: list[Given] = []
        self.bytes = 0

    @property
    def left(self) -> int:
        """How many more messages it may get."""
        return self.request.most - len(self.given)

    @property
    def is_full(self) -> bool:
        return self.left <= 0 or self.bytes >= ANSWER_BYTES

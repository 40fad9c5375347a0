"""One call for messages: what it asks for, what it has been given, whom to tell.

It is *full* when it has as many as it asked for, or ANSWER_BYTES of them; the message that goes beyond that
still belongs to it, so one of any size is given.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..delivery.message import Message
from ..delivery.subscriber import Subscriber

ANSWER_BYTES = 4 << 20
"""Of messages, after which a call is full."""


class Given(NamedTuple):
    """One message of a call. `member`: which of the group's members has it in flight."""

    text: str
    member: Subscriber
    packet_id: int
    message: Message
    attempt: int


class Leased(NamedTuple):
    """What a call is answered with: it is given for so long. `number`: as in its id."""

    given: Given
    until_ms: int
    number: int


Answer = Sequence[Leased] | Exception


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for. `lease_ms` None: as the group has it."""

    most: int
    wait_ms: int
    lease_ms: int | None


class Call:
    """It waits in each of the seats that it may be given something at."""

    __slots__ = ("answered", "bytes", "given", "is_gone", "until_s", "wish")

    def __init__(
        self, wish: Wish, until_s: float, is_gone: Callable[[], bool], answered: Callable[[Answer], None]
    ) -> None:
        """`until_s`: monotonic; then it is answered, with nothing if that is what there is.

        `is_gone`: whether nobody would read the answer. `answered`: called once, with it.
        """
        self.wish = wish
        self.until_s = until_s
        self.is_gone = is_gone
        self.answered = answered
        self.given: list[Given] = []
        self.bytes = 0

    @property
    def is_full(self) -> bool:
        return len(self.given) >= self.wish.most or self.bytes >= ANSWER_BYTES

    def take(self, given: Given) -> int:
        """Have one more message; its bytes."""
        self.given.append(given)
        size = given.message.size()
        self.bytes += size
        return size

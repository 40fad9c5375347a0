"""A server under attack: where it listens, how long the attack goes on, what it has opened."""

import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count, cycle

from .raw import Address, Peer

CUT = (OSError, EOFError)
"""How it shows that the server has ended a connection."""


class Sink:
    """One thread that reads what comes on many sockets, throws it away, and closes those that have ended."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._is_over = False
        self.bytes = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def add(self, found: socket.socket) -> None:
        self._selector.register(found, selectors.EVENT_READ)

    def close(self) -> None:
        self._is_over = True
        self._thread.join()
        self._selector.close()

    def _run(self) -> None:
        while not self._is_over:
            for key, _ in self._selector.select(0.1):
                found = key.fileobj
                assert isinstance(found, socket.socket)
                try:
                    count = len(found.recv(1 << 20))
                except OSError:
                    count = 0
                self.bytes += count
                if not count:
                    self._selector.unregister(found)
                    found.close()


def is_open(found: socket.socket) -> bool:
    """What has come is read away."""
    found.setblocking(False)
    try:
        while found.recv(1 << 16):
            pass
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def together(doings: Iterable[Callable[[], None]]) -> None:
    """Each in a thread of its own, until all have ended."""
    threads = [threading.Thread(target=doing) for doing in doings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@dataclass
class Scene:
    """A server, and the connections that an attack has made to it. Several attacks may share one."""

    pid: int
    mqtt: Address
    tls: Address
    ws: Address
    http: Address
    evil: str
    """A key for `evil/#`."""
    reader: str
    """A key that may only read, and of that only `evil/#`."""
    seconds: float
    sink: Sink = field(default_factory=Sink)
    opened: list[Peer | socket.socket] = field(default_factory=list)
    until: float = 0.0
    _numbers: Iterator[int] = field(default_factory=count)
    _strangers: Iterator[str] = field(default_factory=lambda: map("127.0.0.{}".format, cycle(range(2, 255))))

    def start(self) -> None:
        self.until = time.monotonic() + self.seconds

    def peer(
        self, name: str, *, lasting: bool = False, window: int = 0, keep_alive: int = 0, sinks: bool = False
    ) -> Peer:
        """A connection with the key; a number makes its name the only one."""
        name = f"{name}-{next(self._numbers)}"
        made = Peer(self.mqtt, name, self.evil, lasting=lasting, window=window, keep_alive=keep_alive)
        self.opened.append(made)
        if sinks:
            self.sink.add(made.socket)
        return made

    def stranger(self) -> str:
        """An address that nobody else comes from, until they have all been taken."""
        return next(self._strangers)

    def socket(self, at: Address, source: str) -> socket.socket:
        """A connection from the address `source`, with nothing said."""
        made = socket.create_connection(at, 10, (source, 0))
        self.opened.append(made)
        return made

    @property
    def is_on(self) -> bool:
        return time.monotonic() < self.until

    def close(self) -> None:
        self.sink.close()
        for one in self.opened:
            one.close()


Attack = Callable[[Scene], str]

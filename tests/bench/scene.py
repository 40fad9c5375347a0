"""A server under attack: where it listens, how long the attack goes on, what it has opened."""

import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from .raw import Address, Peer

CUT = (OSError, EOFError)
"""How it shows that the server has ended a connection."""


class Sink:
    """One thread that reads what comes on many sockets and throws it away."""

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


@dataclass
class Scene:
    """A server, and the connections that an attack has made to it."""

    pid: int
    mqtt: Address
    tls: Address
    ws: Address
    http: Address
    seconds: float
    sink: Sink = field(default_factory=Sink)
    opened: list[Peer | socket.socket] = field(default_factory=list)
    until: float = 0.0

    def start(self) -> None:
        self.until = time.monotonic() + self.seconds

    def peer(
        self, name: str, *, lasting: bool = False, window: int = 0, keep_alive: int = 0, sinks: bool = False
    ) -> Peer:
        made = Peer(self.mqtt, name, lasting=lasting, window=window, keep_alive=keep_alive)
        self.opened.append(made)
        if sinks:
            self.sink.add(made.socket)
        return made

    @property
    def is_on(self) -> bool:
        return time.monotonic() < self.until

    def close(self) -> None:
        self.sink.close()
        for one in self.opened:
            one.close()


Attack = Callable[[Scene], str]

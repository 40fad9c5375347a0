"""Ports of loopback for servers of the tests, which may stop and come back to them."""

import random
import socket

FIXED = range(10_000, 32_000)
"""Below those that systems give to connections, so that none takes one while its server is down."""

_ANY = random.SystemRandom()
"""Not the common one, which tests seed: two of them at a time would find the same ports."""


def free_ports(count: int) -> list[int]:
    """So many on which nobody listens now."""
    held: list[socket.socket] = []
    try:
        while len(held) < count:
            one = socket.socket()
            held.append(one)
            try:
                one.bind(("127.0.0.1", _ANY.choice(FIXED)))
            except OSError:
                held.pop().close()
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


def free_port() -> int:
    return free_ports(1)[0]

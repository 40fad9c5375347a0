"""Readers with a fault each: what a fuzzer that is worth its time finds."""

from .fuzzer import Target


def hidden(data: bytes) -> None:
    """Each letter that is right reaches a line more."""
    if not data.startswith(b"l"):
        return
    if not data.startswith(b"lo"):
        return
    if not data.startswith(b"loc"):
        return
    if not data.startswith(b"lock"):
        return
    raise ValueError("found")


def slow(data: bytes) -> int:
    return sum(one == other for one in data for other in data)


def stuck(data: bytes) -> None:
    while data.startswith(b"l"):
        pass


PLANTED = (
    Target("hidden", hidden, (b"x",), (b"c", b"k", b"l", b"o"), rooms=(__file__,)),
    Target("slow", slow, (b"x" * 8,), rooms=(__file__,)),
    Target("stuck", stuck, (b"x",), rooms=(__file__,)),
)

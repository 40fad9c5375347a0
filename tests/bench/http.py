"""HTTP as far as the load needs it: a request is bytes, an answer ends where its Content-Length says.

An answer of 300 or above ends the measurement.
"""

import time
from collections.abc import Iterable

from .exchange import Failed, Lines, line_to
from .process import Address, Server


def answer_end(data: bytes | bytearray) -> int:
    """Where the first answer (or request with a body) in `data` ends; 0 if its head is not complete."""
    head_end = data.find(b"\r\n\r\n")
    if head_end < 0:
        return 0
    head = data[:head_end].lower()
    at = head.find(b"content-length:")
    length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
    return head_end + 4 + length


def taken_end(data: bytes) -> int:
    """The same of an answer that says 2xx. Raises Failed if it says anything else."""
    end = answer_end(data)
    if 0 < end <= len(data) and data[9:10] != b"2":
        raise Failed(data[:500].decode(errors="replace"))
    return end


async def send_all(at: Address, requests: Iterable[bytes], in_flight: int) -> list[float]:
    """Send them over `in_flight` connections; how long each waited for its answer, seconds. Raises Failed."""
    lines = await Lines.open(at, in_flight, taken_end)
    try:
        return await lines.send_all(requests)
    finally:
        lines.close()


async def ask(at: Address, request: bytes) -> bytes:
    """One request, the body of its answer. Raises Failed, OSError."""
    line = await line_to(at, taken_end)
    try:
        answer = await line.ask(request)
        return answer[answer.index(b"\r\n\r\n") + 4 :]
    finally:
        line.close()


async def ready(server: Server) -> float:
    """Seconds from the start of the process until /readyz says 200."""
    server.listening()
    await ask(server.http, get("/readyz"))
    return time.monotonic() - server.started


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def post(path: str, body: bytes, content_type: str = "application/json") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

"""Answers as bytes, when aiohttp does not write them: with the headers that all answers have."""

import time
from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus

from ..net.browsers import Pages
from ..observe.metrics import Metrics
from .answers import SERVER
from .cors import opened, origin_in
from .problems import MEDIA_TYPE, Problem


class Written:
    """Writes them."""

    def __init__(self, metrics: Metrics, pages: Pages) -> None:
        """`pages`: the origins that may read answers."""
        self._metrics = metrics
        self._pages = pages
        self._date = (0, b"")

    def answer(self, status: int, headers: Mapping[str, str], body: bytes, media: str) -> bytes:
        """An answer."""
        more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"{_STATUS[status]}Content-Type: {media}\r\n{more}Content-Length: {len(body)}\r\n"
        return b"".join((head.encode(), self._dated(), body))

    def refusal(self, problem: Problem, head: bytes) -> bytes:
        """The last answer on a connection, counted; `head`: the received part of the refused request."""
        self._metrics.answers["", "", problem.status] += 1
        headers = {**opened(self._pages, origin_in(head)), **problem.headers, "Connection": "close"}
        return self.answer(problem.status, headers, problem.to_bytes(), MEDIA_TYPE)

    def _dated(self) -> bytes:
        """The headers Date and Server and the end of the head, cached for a second."""
        now_s = int(time.time())
        if self._date[0] != now_s:
            text = f"Date: {formatdate(now_s, usegmt=True)}\r\nServer: {SERVER}\r\n\r\n"
            self._date = (now_s, text.encode())
        return self._date[1]


_STATUS = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}

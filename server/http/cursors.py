"""Cursors: where the next page begins, as text. A position on the timeline, open or sealed; behind it, if
pages are read as of a moment (selection.py), that moment: (T, the last seq issued).

A position reveals when a message is due. If the caller may not see that message, the text is sealed with a
key of this process, and reveals no more than a random number. After a restart a sealed one cannot be opened
and is refused. All others are open and outlive the server.

    open      24 hex digits: the position; 48: the moment too
    sealed    a code of these bytes (16), and the bytes encrypted with a stream made of the code

Sealing is deterministic ("SIV"): the same cursor gives the same text, and the code of a forged text does not
fit.
"""

from hashlib import blake2b
from hmac import compare_digest

from timeline.position import END, Position

from .values.bodies import FieldError

PLACE_BYTES, CODE_BYTES = 12, 16
_SIZES = {extra + size for extra in (0, CODE_BYTES) for size in (PLACE_BYTES, 2 * PLACE_BYTES)}
_DIGITS = frozenset("0123456789abcdef")


class Cursors:
    """Converts positions to text and back."""

    def __init__(self, key: bytes) -> None:
        """`key`: random, 32 bytes."""
        self._key = key

    def text(self, place: Position, as_of: Position | None = None, *, is_hidden: bool = False) -> str:
        """The text of a position; `is_hidden`: sealed."""
        plain = place.to_bytes(PLACE_BYTES) + (b"" if as_of is None else as_of.to_bytes(PLACE_BYTES))
        if not is_hidden:
            return plain.hex()
        code = self._code(plain)
        return (code + self._under(code, plain)).hex()

    def place(self, text: str) -> tuple[Position, Position | None]:
        """The position of a text, and the moment if it has one. Raises FieldError."""
        if not _DIGITS.issuperset(text) or len(text) % 2 or len(text) // 2 not in _SIZES:
            raise FieldError("cursor", "was not issued by this server")
        code, plain = b"", bytes.fromhex(text)
        if len(plain) % PLACE_BYTES:
            code, plain = plain[:CODE_BYTES], plain[CODE_BYTES:]
            plain = self._under(code, plain)
            if not compare_digest(code, self._code(plain)):
                raise FieldError("cursor", "was not issued since this server started: begin without a cursor")
        place, as_of = (Position(int.from_bytes(part)) for part in (plain[:PLACE_BYTES], plain[PLACE_BYTES:]))
        if place == END:
            raise FieldError("cursor", "was not issued by this server")  # there is nothing behind it
        return place, as_of or None

    def _code(self, plain: bytes) -> bytes:
        return blake2b(plain, key=self._key, digest_size=CODE_BYTES, person=b"code").digest()

    def _under(self, code: bytes, text: bytes) -> bytes:
        stream = blake2b(code, key=self._key, digest_size=len(text), person=b"stream").digest()
        return bytes(one ^ other for one, other in zip(text, stream, strict=True))

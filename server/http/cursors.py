"""Where the next page begins, as text: a position in the timeline, in the open or sealed.

A position says when something is due. If it is that of a message which is not there for who asks, it must not
be told: then the text is sealed with a key of this process, and says as much as a random number. After a
restart nobody can open it, which is told as it is. Any other is in the open and outlives the server.

    open      24 hex digits: the position
    sealed    56: a code of the position (16 bytes), and the position hidden under a stream made of the code

Sealed deterministically ("SIV"): the same position gives the same text, and of a text that was made up the
code does not fit.
"""

from hashlib import blake2b
from hmac import compare_digest

from timeline.position import Position

from .values.bodies import FieldError

PLACE_BYTES, CODE_BYTES = 12, 16
_DIGITS = frozenset("0123456789abcdef")


class Cursors:
    """Texts of positions, and back."""

    def __init__(self, key: bytes) -> None:
        """`key`: at random, 32 bytes."""
        self._key = key

    def text(self, place: Position, *, is_hidden: bool = False) -> str:
        """What names the page behind a position; `is_hidden`: nobody is to learn it."""
        told = place.to_bytes(PLACE_BYTES)
        if not is_hidden:
            return told.hex()
        code = self._code(told)
        return (code + self._under(code, told)).hex()

    def place(self, text: str) -> Position:
        """The position behind which a page begins. Raises FieldError."""
        if not _DIGITS.issuperset(text) or len(text) not in (2 * PLACE_BYTES, 2 * (CODE_BYTES + PLACE_BYTES)):
            raise FieldError("cursor", "was not issued by this server")
        given = bytes.fromhex(text)
        code, told = given[:-PLACE_BYTES], given[-PLACE_BYTES:]
        if code:
            told = self._under(code, told)
            if not compare_digest(code, self._code(told)):
                raise FieldError("cursor", "was not issued since this server started: begin without a cursor")
        return Position(int.from_bytes(told))

    def _code(self, told: bytes) -> bytes:
        return blake2b(told, key=self._key, digest_size=CODE_BYTES, person=b"code").digest()

    def _under(self, code: bytes, text: bytes) -> bytes:
        stream = blake2b(code, key=self._key, digest_size=PLACE_BYTES, person=b"stream").digest()
        return bytes(one ^ other for one, other in zip(text, stream, strict=True))

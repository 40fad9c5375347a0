"""Message requests as the server reads them, each with all that it says."""

from server.http.values.batch_body import is_ndjson, read_whole
from server.http.values.bodies import FieldError
from server.http.values.message_body import ParsedMessage
from server.http.values.reader import Item, Reader
from server.settings.config import Limits


def parsed(item: Item) -> ParsedMessage:
    assert isinstance(item, ParsedMessage)
    return item


def parse_one(body: bytes, now_ms: int, limits: Limits, key: str | None = None) -> ParsedMessage:
    """The message in the body of one request. Raises RequestError."""
    return parsed(Reader(now_ms, limits, as_drafts=False).one(body, key))


def parse_each(
    body: bytes, content_type: str, now_ms: int, limits: Limits, max_batch: int, *, keep_ids: bool = False
) -> list[ParsedMessage | FieldError]:
    """The items of a batch, or what is wrong with them. Raises RequestError."""
    reader = Reader(now_ms, limits, as_drafts=False, keep_ids=keep_ids)
    reading = read_whole(body, is_ndjson(content_type), reader, max_batch)
    return [item if isinstance(item, FieldError) else parsed(item) for item in reading.items]

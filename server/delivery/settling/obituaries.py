"""Copies of dead letters at `$dead/{group}/{topic}`, for subscribers there."""

from urllib.parse import quote

import msgspec

from shards.commit import Commit, Refused
from shards.fields import Record
from shards.properties import user_property
from timeline.filters import TOPIC_BYTES_MAX, refused_character

from ..owners import Owners
from ..publish_request import PublishRequest
from ..publishing import Publishing

DEAD_REASON = "fasti-dead-reason"
"""User property with the reason, the last one of the copy."""


class Obituaries:
    """Publishes them."""

    def __init__(self, owners: Owners, publishing: Publishing) -> None:
        self._owners = owners
        self._publishing = publishing

    def tell(self, commit: Commit, name: str, record: Record, reason: str) -> bytes:
        """In the writer: publish that the session or group `name` has given up the message. Returns the
        topic.

        Does nothing if the message's owner may no longer send it. Raises Refused before anything is changed.
        """
        obituary = _obituary(name, record, reason)
        may = self._owners.allow_record(record)
        if may and self._publishing.place(commit, PublishRequest(obituary)) is None:
            raise Refused("over-quota", "too large to be announced at $dead")
        return obituary.topic


def _level(name: str) -> str:
    """A name as a level of a topic, which may not contain all that a client id may."""
    return "".join(quote(one, "") if one in "%/+#" or refused_character(one) else one for one in name)


def _obituary(name: str, record: Record, reason: str) -> Record:
    topic = f"$dead/{_level(name)}/".encode() + record.topic
    if len(topic) > TOPIC_BYTES_MAX:
        topic = topic[: TOPIC_BYTES_MAX - 3].decode(errors="ignore").encode()
    told = user_property(DEAD_REASON, reason)
    return msgspec.structs.replace(
        record,
        topic=topic,
        retain=False,
        due_ms=0,
        id=0,
        key=b"",
        owner=b"",  # the server's own: only it may send to the topic
        retry=None,
        deliver_to=b"",  # only a report of the message, so it is not posted
        properties=record.properties + told,
    )

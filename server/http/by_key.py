"""The message under an idempotency key: who may see and change it, and what the writer does with it.

The writer decides which message a key names, and whether the caller may change it, since another request may
take the key meanwhile.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from shards.commit import Commit
from shards.dedupe import Refused
from shards.draft import Control, Draft
from shards.read import Found
from shards.record import topic_of
from shards.tables import DedupeRow
from shards.upsert import Under, Upserted, Version, cancel_under, debounce, is_known, under, upsert
from timeline.position import MessageId, id_text

from .access import Sees
from .posting import Given, faults
from .problems import Problem
from .values.upsert_body import Wish

Act = Callable[[Commit, MessageId], Control]
SEES_ONLY = "The key may see this message but not change it."


class KeyedMessage(NamedTuple):
    """A message by its idempotency key, and what the caller may see."""

    key: str
    stored: bytes
    sees: Sees | None

    def judge(
        self, row: DedupeRow | None, found: Found | None, may_change: Sees | None = None
    ) -> Found | Problem:
        """The message, or the problem. `row`: what is stored under the key; `found`: the message that it
        names.

        The key is the caller's, so this reveals nothing about other clients' messages.
        """
        if row is None or not row.id:
            return self.unknown()
        if found is None:
            name = id_text(row.id)
            detail = f"{name}, the message under the key {self.key!r}, is past retention, or was lost."
            return Problem("gone", detail, id=name)
        return self._barred(found, may_change) or found

    def unknown(self) -> Problem:
        """No message is known under the key."""
        return Problem("not-found", f"No message is known under the key {self.key!r}.")

    def _barred(self, found: Found, may_change: Sees | None) -> Problem | None:
        """Why the caller may not see or change the message; None: it may."""
        topic = topic_of(found.value)
        if self.sees is not None and not self.sees(topic):
            return Problem("not-found", f"No message exists under the key {self.key!r}.")
        if may_change is not None and not may_change(topic):
            return Problem("forbidden", SEES_ONLY)
        return None

    def decide(
        self, commit: Commit, act: Act, may_change: Sees | None
    ) -> tuple[MessageId, Control] | Problem:
        """In the writer: `act` on the message. Returns its id and the outcome. Raises Refused, Corrupt."""
        row = commit.known_under(self.stored)
        found = None if row is None else commit.find_known(row)
        judged = self.judge(row, found, may_change)
        return judged if isinstance(judged, Problem) else (judged.id, act(commit, judged.id))

    def _under(self, commit: Commit, may_change: Sees | None) -> Under | Problem:
        """In the writer: what is known under the key, or why the caller may not change it."""
        what = under(commit, self.stored)
        problem = None if what.found is None else self._barred(what.found, may_change)
        return what if problem is None else problem

    def upsert(
        self,
        commit: Commit,
        drafts: Sequence[Draft],
        given: Given,
        *,
        wish: Wish,
        may_change: Sees | None,
    ) -> list[Upserted | Problem]:
        """In the writer: make or change the message, which is the only draft. Raises Refused, Corrupt."""
        (draft,) = drafts
        what = self._under(commit, may_change)
        if isinstance(what, Problem):
            return [what]
        if not is_known(what, wish.version):
            for index, field, why in faults(given._replace(late=())):
                raise Refused(field, why, index)
        return [upsert(commit, what, draft, wish.version, is_dropped=bool(given.late))]

    def debounce(
        self,
        commit: Commit,
        drafts: Sequence[Draft],
        given: Given,
        *,
        until_ms: int,
        may_change: Sees | None,
    ) -> list[Upserted | Problem]:
        """In the writer: make the message, which is the only draft, or put it in the place of the pending
        one. Raises Refused, Corrupt."""
        (draft,) = drafts
        what = self._under(commit, may_change)
        if isinstance(what, Problem):
            return [what]
        for index, field, why in faults(given):
            raise Refused(field, why, index)
        return [debounce(commit, what, draft, until_ms)]

    def cancel(self, commit: Commit, version: Version | None, may_change: Sees | None) -> Upserted | Problem:
        """In the writer: cancel the message, or remember that. Raises Refused, Corrupt."""
        what = self._under(commit, may_change)
        return what if isinstance(what, Problem) else cancel_under(commit, what, version)

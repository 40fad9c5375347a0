"""Damage of this node's data: who could lead in its place, and when it takes a copy.

    nothing found ──a read, the scrub or a copy's check meets damage──> damaged
    damaged, an heir is heard      it leads no longer, and replaces its data by a copy
    damaged, no heir is heard      it follows or leads on, as one server alone would, and says why
    copied                         nothing found

An *heir* is a node that is heard, has nothing to say against itself, has found no damage, and is nearly
as far as all others. While there is one, a leader's read of damage fails in a way that ends the term
(shards/replicated.py): what it wanted to read is dispatched by the heir, which has it whole.

Heirs are judged once a second. If an heir dies in that moment, this node leads again once it is gone.
"""

from collections.abc import Callable

from .members import TEXT_MAX, Members

LAG_RECORDS = 10_000
"""Maximum records by which a node that could take over may be behind."""
AGAIN_S = 60.0
"""Pause after a copy that failed: meanwhile the node follows with what it has."""


class Damage:
    """Damage in a node's own data."""

    def __init__(self, node: str, members: Members, mono: Callable[[], float]) -> None:
        self._node = node
        self._members = members
        self._mono = mono
        self._again_at = float("-inf")
        self.found = ""
        """The damage found, as text; empty: none."""
        self.heirs: tuple[str, ...] = ()

    def met(self, found: str) -> None:
        """Note damage; the first counts. Empty: none was met."""
        self.found = self.found or found[:TEXT_MAX]

    def look(self) -> None:
        """Judge who could lead in this node's place."""
        rows = [row for row in self._members.ours if row.is_alive]
        newest = max((row.member.applied for row in rows), default=0)
        self.heirs = tuple(
            row.member.node
            for row in rows
            if row.member.node != self._node
            and row.member.state in ("follower", "leader")
            and row.member.fit
            and not row.member.damage
            and newest - row.member.applied <= LAG_RECORDS
        )

    @property
    def fault(self) -> str:
        """Why this node does not lead; empty: it may."""
        if not self.found or not self.heirs:
            return ""
        return f"this node's data is damaged, {' or '.join(self.heirs)} can lead: {self.found}"

    @property
    def problem(self) -> str:
        """The damage as a sentence for the report; empty: none is known."""
        if not self.found:
            return ""
        return self.fault or f"this node's data is damaged, no other node is fit to lead: {self.found}"

    @property
    def needs_copy(self) -> bool:
        """Whether to replace the data now."""
        return bool(self.fault) and self._mono() >= self._again_at

    def copying(self) -> None:
        """A copy begins: if it fails, the next one waits."""
        self._again_at = self._mono() + AGAIN_S

    def mended(self) -> None:
        """The data has been replaced by a copy."""
        self.found, self._again_at = "", float("-inf")

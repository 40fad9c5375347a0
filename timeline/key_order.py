"""Keys within a group: which message of which key is given next. A `Rule` says when a key may have one more.

    order           of one key at most one message is out, in the order of positions, through retries
    most, per_ms    of one key at most so many messages are out, or are given in a time (key_tokens.py)
    is_fair         keys take turns, whatever one of them has dumped (key_turns.py)

A group reads the timeline by one read position. A key that is behind or in trouble gets a position of its
own, one small *key row*, however many messages of it follow:

    key row     next    nothing of the key in [next, read] has been given; none: all of it has
                root    its head, which waits for its next try or is a dead letter: nothing of the key is
                        given before it
                by hand somebody holds the key: nothing of it is given
    index row   (key, position): one more message of the key at or behind `next`. Derived

The *head* of a key is its message that is in flight, or rests: at most one. One that rests is a delivery, and
its row says whether it waits for its next try or is dead: the key row says only which one it is. A letter
that is no head holds nothing. An example, one key, where 1 is in flight and the reader comes to 4, 7 and 9:

    meet 4    the key has a head: passed over, key row (next 4)
    meet 7    the key is behind: passed over, index row 7; so is 9
    land 1    the key is free: 4 is given, key row (next 7)
    head 4    4 has failed: key row (next 7, root 4); 7 waits for the try of 4
    launch    the retry is out: key row (next 7)
    land 4    7 is given, then 9, then the key row goes

The reader stops at the bound of key rows, before a key that has none: whatever it gives may fail and need
one. Keys that have one go on, so the reader goes on later. Without order a failed message is no head: its key
goes on, and its retry waits for its key like any other when it is due (key_lines.py).

A fair group passes over a message whose key has as much out as there is room left, or is behind, even while
there is no room at all. So the reader soon stands before a message of a key that has nothing out, or has read
all. Messages without a key take turns as one key, NO_KEY, for which nothing else of a rule counts.

A replay ends what comes again: each `next` and each head after its position. A key is looked at when
something happens to it (`find`), and some keys with each cursor. Until then a stored row counts only up to
the read position: what is after that is read again. If the reader has passed `next` or `root`, the row is
right again: a key that was not looked at has been given nothing since.

All rows are written in the batch of the cursor that they belong to (unwritten.py); so after a kill the cursor
and the key rows say all. What is before `next` in the index is garbage.

Only the first KNOWN_MAX followers of a key are known here, so RAM is bounded by the keys: 750 bytes each. The
caller reads more of them from the index when these are used up (`learn`). It says what has become of each
head, and gives what `free` and its retries name. Nothing here knows what a message is: an unwanted one is
passed on (`drop`).

Walked at random against an oracle, with kills at any point: tests/model/order.py, which also says what is
always true.
"""

from collections.abc import Iterable
from enum import Enum, auto
from typing import Final

from .finished import Finished
from .key_firsts import KNOWN_MAX, Key, KeyFirsts
from .key_lines import KeyLines
from .key_rows import (
    NO_KEY,
    NO_RULE,
    NO_SHARD,
    NOWHERE,
    ORDERED,
    Address,
    Changes,
    KeyBound,
    KeyRoom,
    KeyRow,
    Rule,
)
from .key_tokens import KeyTokens
from .key_turns import KeyTurns
from .position import END, Position
from .unwritten import Unwritten

LOOKED_MAX = 500
"""Keys that are looked at with each cursor after a replay: about 5 ms, most of it for writing."""


class Meeting(Enum):
    """Action of the reader for the next message."""

    GIVE = auto()
    PASS = auto()
    """Remember it, and deliver it later."""
    STOP = auto()
    """Stop reading: there is no room for another key in trouble."""


class KeyOrder:
    """The keys of a group. A key is bytes. One group has at most one key row for each flight beyond the
    bound."""

    def __init__(self, bound: KeyBound, rule: Rule = ORDERED, *, is_on: bool = True) -> None:
        self.is_on = is_on
        """False: keys do not count, and there is none."""
        self.rule = rule
        self.out: dict[bytes, int] = {}
        """How many messages of a key are in flight."""
        self.free: dict[bytes, None] = {}
        """Keys that are behind and may have one more, the one that waits longest first. After a replay some
        may be free no more: `find` tells."""
        self.held: set[bytes] = set()
        """Keys that a dead letter or somebody holds."""
        self.heads: dict[Position, bytes] = {}
        """Keys by their heads that rest, some of them as they were before a replay."""
        self._keys: dict[bytes, Key] = {}
        self.firsts = KeyFirsts(self._keys)
        self.room = KeyRoom(bound)
        self.lines = KeyLines(self.room)
        self.tokens = KeyTokens(self.room, rule.per_ms, self._settle)
        self.turns = KeyTurns(is_fair=rule.is_fair)
        self.unwritten = Unwritten()
        self.passed = 0
        """Messages that the reader has passed over since one was given."""
        self.past: dict[bytes, None] = {}
        """Keys to look at since a replay, ..."""
        self._back = NOWHERE
        """... its position, ..."""
        self._finished = Finished()
        """... and what was finished after that."""
        self._skipped = NOWHERE
        """Up to here followers were given up: a burial reads them in the index."""
        self.is_awaited = False
        """Whether the reader waits for its rows to be written."""

    def change_rule(self, rule: Rule) -> None:
        """From now on another rule counts. O(keys in flight or behind). Without order no key waits for a
        retry, unless somebody holds it."""
        if rule != self.rule:
            self.rule, self.turns = rule, KeyTurns(is_fair=rule.is_fair)
            self.tokens.change(rule.per_ms)
            for key in [] if rule.is_ordered else [*self.heads.values()]:
                if not (self._keys[key].by_hand or self._keys[key].is_dead):
                    self.end_head(key)
            for key in [*self.out, *self._keys, *self.lines.keys]:
                self._settle(key)

    def restore(self, rows: Iterable[tuple[bytes, KeyRow]]) -> None:
        """At start: the key rows as stored. The caller calls `launch` for each flight of the cursor, and says
        what the heads are that rest (`set_head`)."""
        for key, row in rows:
            known = [(row.next, row.shard)] if row.shard != NO_SHARD else []
            found = Key(row.next, known, row.next == NOWHERE, row.root, by_hand=row.by_hand)
            self._keys[key] = found
            if row.root != NOWHERE:
                self.heads[row.root] = key
            self.room.add(1)
            self.firsts.note(key, found)
            self._settle(key)

    def leave(self) -> None:
        """The group has ended: its rows count no more. `take` still gives those that are not written."""
        self.lines.clear()
        self.room.leave()
        self.free.clear()
        self.held.clear()
        self.heads.clear()

    @property
    def is_over(self) -> bool:
        """Whether nothing is left of it, here and as stored."""
        return not (self._keys or self.lines) and self.unwritten.is_empty

    # -- a key

    def find(self, key: bytes) -> Key | None:
        """A key that is behind, in trouble or held, with a replay applied. All callers find it here."""
        if key in self.past:
            del self.past[key]
            self._look(key)
        return self._keys.get(key)

    def row(self, key: bytes) -> KeyRow:
        """The row to store for a key."""
        found = self.find(key)
        return KeyRow() if found is None else found.row

    def key_of(self, ordering_key: bytes) -> bytes:
        """The key of a message; empty: it has none, and waits for nothing. While messages without a key are
        behind they go by theirs, also if the group is fair no more."""
        if ordering_key or not self.is_on:
            return ordering_key if self.is_on else b""
        return NO_KEY if self.rule.is_fair or NO_KEY in self._keys or NO_KEY in self.lines else b""

    @property
    def keys(self) -> list[bytes]:
        """The ordering keys that are behind, or in trouble, or held."""
        return [key for key in self._keys if key != NO_KEY]

    @property
    def blocked(self) -> int:
        """Number of these."""
        return len(self._keys) - (NO_KEY in self._keys)

    def is_behind(self, key: bytes, place: Position) -> bool:
        """Whether a message of the key, which the reader has passed, is still to be given."""
        found = self.find(key or NO_KEY)
        return found is not None and NOWHERE < found.next <= place

    def read_from(self, read: Position) -> Position:
        """Where the messages that are not given begin; `read`: the read position."""
        return Position(min(self.firsts.needed, Position(read + 1)) - 1)

    def _in_trouble(self, key: bytes) -> Key:
        """The row of a key, which is made if there is none."""
        assert self.is_on, "keys count"
        found = self.find(key)
        if found is None:
            found = self._keys[key] = Key()
            self.room.add(1)
        return found

    def _settle(self, key: bytes) -> None:
        """After a change: a key is free, or has no row, or neither."""
        found = self._keys.get(key)
        is_behind = found is not None and found.next != NOWHERE
        is_held = found is not None and found.is_held
        is_resting = is_held or (found is not None and found.root != NOWHERE)
        if is_held:
            self.held.add(key)
        else:
            self.held.discard(key)
        if (is_behind or key in self.lines) and not is_resting and self._may_go(key):
            self.free.setdefault(key)
        else:
            self.free.pop(key, None)
        if found is not None and not is_behind and not is_resting:
            del self._keys[key]
            self.room.add(-1)
            self.unwritten.keys.add(key)

    def _change(self, key: bytes) -> None:
        """The row of the key has changed."""
        self.unwritten.keys.add(key)
        self._settle(key)

    # -- the reader

    def meet(self, key: bytes, place: Position, shard: int, room: int = 1) -> Meeting:
        """The reader has come to a message of a key. GIVE: give it (`launch`), or nobody wants it.

        `room`: for how many messages there is room; counts in a fair group only.
        """
        found = self.find(key) if self.past else self._keys.get(key)
        if found is None:
            may_start = self.may_start(key, room)
            if (not may_start or (self.rule.is_counted and key != NO_KEY)) and self.room.is_full:
                self.room.stop()
                return Meeting.STOP
            if may_start:
                return Meeting.GIVE
            found = self._in_trouble(key)
        self.passed += 1
        if found.next == NOWHERE:
            found.next, found.known, found.is_whole = place, [(place, shard)], True
            self.firsts.note(key, found)
            self._change(key)
            return Meeting.PASS
        assert place >= found.next, "the reader is before no message of the key that is to be given"
        self.unwritten.follows(key, (place, shard))
        if found.is_whole and len(found.known) < KNOWN_MAX:
            found.known.append((place, shard))
        else:
            found.is_whole = False
        return Meeting.PASS

    def may_start(self, key: bytes, room: int) -> bool:
        """Whether nothing of the key waits, and it may have one more."""
        if (key in self._keys and self.find(key)) or key in self.lines or not self._may_go(key):
            return False
        return not self.rule.is_fair or self.out.get(key, 0) < max(1, room)

    def _may_go(self, key: bytes) -> bool:
        """Whether the rule gives the key one more."""
        if key == NO_KEY:
            return True
        if self.rule.most and self.out.get(key, 0) >= self.rule.most:
            return False
        return self.tokens.has_one(key)

    @property
    def next_ms(self) -> float | None:
        """When keys that something waits for have tokens again; None: nothing waits for them."""
        is_idle = not (self._keys or self.lines or self.room.is_stopped)
        return None if is_idle else self.tokens.next_ms

    # -- heads

    def launch(self, key: bytes) -> None:
        """A message of the key is in flight."""
        self.passed = 0
        self.out[key] = self.out.get(key, 0) + 1
        if key in self.free:
            del self.free[key]  # it goes behind the others, if it is free still
            self._settle(key)

    def land(self, key: bytes) -> None:
        """A message in flight has ended."""
        left = self.out[key] - 1
        if left:
            self.out[key] = left
        else:
            del self.out[key]
        if key in self._keys or key in self.lines:
            self._settle(key)

    def set_head(self, key: bytes, root: Position, *, is_dead: bool = False) -> None:
        """The head of the key rests: it waits for its next try, or is a dead letter that holds the key. One
        that rests already stays: more than one may have been in flight when the group began to order."""
        found = self._in_trouble(key)
        if found.root == NOWHERE:
            found.root = root
            self.heads[root] = key
            self.unwritten.keys.add(key)
        if found.root == root:
            found.is_dead = is_dead
        self._settle(key)

    def end_head(self, key: bytes) -> None:
        """The head that rested has ended, or is in flight again, or holds the key no more."""
        found = self.find(key)
        if found is not None:
            self.heads.pop(found.root, None)
            found.root, found.is_dead = NOWHERE, False
            self._change(key)

    def head_of(self, root: Position) -> bytes | None:
        """The key whose head is that message, which rests; None: there is none."""
        self.find(self.heads.get(root, b""))
        return self.heads.get(root)

    def hold(self, key: bytes, *, by_hand: bool) -> None:
        """Somebody holds the key: what is in flight ends, and nothing more is given. Or nobody does."""
        self._in_trouble(key).by_hand = by_hand
        self._change(key)

    def stop(self, key: bytes) -> None:
        """Deliver nothing of the key until `go_on`: the open batch changes what holds it."""
        self._in_trouble(key).stops += 1
        self._settle(key)

    def go_on(self, key: bytes) -> None:
        """The change is durable, or is none."""
        self._in_trouble(key).stops -= 1
        self._settle(key)

    # -- retries in line

    def meet_retry(self, key: bytes, place: Position, room: int = 1) -> bool:
        """A retry is due that no key waits for. True: give it (`launch`). False: it stands in line."""
        if self.may_start(key, room):
            return True
        self.lines.stand(key, place)
        self._settle(key)
        return False

    def next_retry(self, key: bytes) -> Position | None:
        """The due retry that a free key gives next; None: it is the turn of its first follower."""
        place, found = self.lines.first(key), self._keys.get(key)
        if place is None or found is None or found.next == NOWHERE:
            return place
        is_ordered = self.rule.is_ordered and key != NO_KEY
        is_first = place < found.next if is_ordered else found.gives_retry
        return place if is_first else None

    def leave_line(self, key: bytes, place: Position) -> None:
        """The retry is to be given, or has gone. The key has its next turn after the others."""
        self.lines.leave(key, place)
        self.free.pop(key, None)
        if key in self._keys:
            self._keys[key].gives_retry = False
        self._settle(key)

    # -- followers

    def learn(self, key: bytes, places: Iterable[Address], read: Position, *, is_all: bool) -> None:
        """Followers from `next` up to `read`, as stored. `is_all`: these are all up to the read position.

        The caller reads KNOWN_MAX of them, and one more. Those that are not stored yet are known here; one
        may stand before a stored one, which is left from before a replay.
        """
        found = self._keys[key]
        assert not found.known, "the known ones come first"
        every = {*places, *self.unwritten.followers(key)}
        known = sorted([one for one in every if found.next <= one[0] <= read])
        found.known, found.is_whole = known[:KNOWN_MAX], is_all and len(known) <= KNOWN_MAX
        self._advance(key, found, found.next if is_all else Position(read + 1))

    def drop(self, key: bytes) -> Address:
        """Remove and return the first follower: it was delivered, or it is no longer wanted."""
        found = self._keys[key]
        address = found.known.pop(0)
        found.gives_retry = True
        self._advance(key, found, Position(address[0] + 1))
        return address

    def _advance(self, key: bytes, found: Key, place: Position) -> None:
        """Nothing before `place` is to be given. The key has its next turn after the others."""
        if found.known:
            place = found.known[0][0]
        elif found.is_whole:
            place = NOWHERE
        if place != found.next:
            assert place == NOWHERE or place > found.next, "what was given is not given again"
            found.next = place
            self.firsts.note(key, found)
            self.unwritten.keys.add(key)
        self.free.pop(key, None)
        self._settle(key)

    # -- the read position is set

    def rewind(self, to: Position, finished: Finished) -> None:
        """The group reads again from after `to`, without `finished`. A head that comes again by that is no
        longer the head of its key. O(keys) in C, 3 ms with 50,000: the keys are looked at later (`find`)."""
        if self._keys:
            self.firsts.forget(min(self.firsts.needed, Position(to + 1)))
            self._back, self._finished = to, finished
            self.past = dict.fromkeys(self._keys)

    def look_on(self) -> bool:
        """Look at some keys after a replay; False: all have been looked at."""
        is_left = bool(self.past)
        for _ in range(LOOKED_MAX - len(self.unwritten.keys)):
            if not self.past:
                break
            self._look(self.past.popitem()[0])
        return is_left

    def _look(self, key: bytes) -> None:
        """Forget what of the key comes again by the replay."""
        if not self.past:
            self.firsts.low = END
        found, to = self._keys[key], self._back
        before, is_changed = found.next, found.root > to and found.root not in self._finished
        if is_changed:
            self.heads.pop(found.root, None)
            found.root, found.is_dead = NOWHERE, False
        if before > to:
            found.next, found.known, found.is_whole = NOWHERE, [], True
        elif found.known and found.known[-1][0] > to:
            found.known, found.is_whole = [one for one in found.known if one[0] <= to], True
        self.firsts.note(key, found)
        if is_changed or found.next != before:
            self._change(key)

    def skip(self, to: Position, most: int) -> list[tuple[bytes, KeyRow]]:
        """Followers up to `to` are given up, of at most `most` keys. Returns these keys, as they were. The
        caller has looked at all keys (`look_on`): else a message that comes again would be given up twice."""
        assert not self.past, "each key says what of it is behind"
        given_up: list[tuple[bytes, KeyRow]] = []
        while len(given_up) < most and (first := self.firsts.first) is not None and first[0] <= to:
            key, found = first[1], self._keys[first[1]]
            self._skipped = max(self._skipped, to)
            given_up.append((key, found.row))
            found.known = [one for one in found.known if one[0] > to]
            self._advance(key, found, Position(to + 1))
        return given_up

    def resting(self, to: Position, most: int) -> list[Position]:
        """At most `most` heads up to `to` that wait for their next try. O(heads)."""
        found: list[Position] = []
        for root, key in self.heads.items():
            if root <= to and not self._keys[key].is_dead:
                found.append(root)
                if len(found) == most:
                    break
        return found

    def has_upto(self, to: Position) -> bool:
        """Whether messages up to `to` wait for their keys, or for their next try."""
        return bool(self.past) or self.firsts.needed <= to or bool(self.resting(to, 1))

    # -- storage

    def take(self) -> Changes:
        """Take the changes to write with the cursor. Batches are written in the order of these calls."""
        self.look_on()
        every, skipped = self._keys, self._skipped

        def row(key: bytes) -> KeyRow:
            return every[key].row if key in every else KeyRow()

        def needs(key: bytes, one: Address) -> bool:
            """Whether it has not been given meanwhile, or was given up."""
            return one[0] <= skipped or (key in every and NOWHERE < every[key].next <= one[0])

        return self.unwritten.take(row, needs)


NO_ORDER: Final = KeyOrder(KeyBound(0), NO_RULE, is_on=False)
"""Shared by all places without order. It is never changed."""

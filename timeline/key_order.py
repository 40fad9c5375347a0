"""Keys within a group: which message of which key is given next. A `Rule` says when a key may have one more.

    order           of one key at most one message is out, in the order of positions, through retries
    most, per_ms    of one key at most so many messages are out, or are given in a time
    is_fair         keys take turns, whatever one of them has dumped

A group reads the timeline by one read position. A key that is behind or in trouble gets a position of its
own, one small *key row*, however many messages of it follow:

    key row     next    nothing of the key in [next, read] has been given; none: all of it has
                wait    the retry that the key waits for; before that nothing of the key is given
                root    the message that waits, or is a dead letter that holds its key
                letter  that dead letter
                by hand somebody holds the key: nothing of it is given
    index row   (key, position): one more message of the key at or behind `next`. Derived

The *head* of a key is its message that is in flight, waits or is held: at most one. An example, one key,
where 1 is in flight and the reader comes to 4, 7 and 9:

    meet 4    the key has a head: passed over, key row (next 4)
    meet 7    the key is behind: passed over, index row 7; so is 9
    land 1    the key is free: 4 is given, key row (next 7)
    rest 4    4 has failed: key row (next 7, wait 20, root 4); 7 waits for the try of 4
    resume    the retry is out: key row (next 7)
    land 4    7 is given, then 9, then the key row goes

The reader stops at the bound of key rows, before a key that has none: whatever it gives may fail and need
one. Keys that have one go on, so the reader goes on later. Without order a failed message is no head: its key
goes on, and its retry waits for its key like any other when it is due (`meet_retry`). These *lines* of due
retries are known here only: the caller can read them again.

A fair group passes over a message whose key has as much out as there is room left, or is behind, even while
there is no room at all. So the reader soon stands before a message of a key that has nothing out, or has read
all. It then gives READER messages for each one of the keys that are behind, which take turns: keys that ask
for little hardly wait for one that has dumped a million. Messages without a key take turns as one key,
NO_KEY, for which nothing else of a rule counts.

A replay ends what comes again: each `next` and each head after its position. A key is looked at when
something happens to it, and some keys with each cursor. Until then a stored row counts only up to the read
position: what is after that is read again. If the reader has passed `next` or `root`, the row is right again:
a key that was not looked at has been given nothing since.

A key whose rate is spent is known here until it has its tokens again, and counts like a key row. After a
start all keys have theirs. All rows are written in the batch of the cursor
that they belong to; so after a kill the cursor and the key rows say all. What is before `next` in the index
is garbage.

Only the first KNOWN_MAX followers of a key are known here, so RAM is bounded by the keys: 750 bytes each. The
caller reads more of them from the index when these are used up (`wants`, `learn`). It says what has become of
each head, and gives what `free` and its retries name. Nothing here knows what a message is: an unwanted one
is passed on (`drop`). When UNWRITTEN_MAX rows wait to be written the caller reads on after they are.

Walked at random against an oracle, with kills at any point: tests/model/order.py. `check` has what is always
true.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from heapq import heapify, heappop, heappush

from .finished import Finished
from .key_lines import KeyLines
from .key_rows import NO_KEY, NO_SHARD, NOWHERE, ORDERED, Address, Changes, KeyBound, KeyRoom, KeyRow, Rule
from .key_tokens import KeyTokens
from .key_turns import KeyTurns
from .position import END, Position
from .unwritten import Unwritten

KNOWN_MAX = 4
"""Followers of a key that are known without reading the index."""
LOOKED_MAX = 500
"""Keys that are looked at with each cursor after a replay: about 5 ms, most of it for writing."""


class Meeting(Enum):
    """What the reader does with the message that it has come to."""

    GIVE = auto()
    PASS = auto()
    """It is remembered, and given later."""
    STOP = auto()
    """There is no room for another key in trouble."""


@dataclass(slots=True)
class _Key:
    """A key that is behind or in trouble."""

    next: Position = NOWHERE
    known: list[Address] = field(default_factory=list)
    """Its first followers; the first of them stands at `next`."""
    is_whole: bool = True
    """`known` are all."""
    wait: Position = NOWHERE
    root: Position = NOWHERE
    letter: Position = NOWHERE
    by_hand: bool = False
    is_leaving: bool = False
    """Released by `let_go`, which is not durable yet."""
    gives_retry: bool = True
    """Without order: whether a retry in line goes before the followers, in turns."""

    @property
    def is_resting(self) -> bool:
        return self.wait != NOWHERE or self.letter != NOWHERE

    @property
    def is_held(self) -> bool:
        return self.by_hand or self.is_leaving or self.letter != NOWHERE

    @property
    def row(self) -> KeyRow:
        shard = self.known[0][1] if self.known else NO_SHARD
        return KeyRow(self.next, shard, self.wait, self.root, self.letter, self.by_hand)


class KeyOrder:
    """The keys of a group. A key is bytes. One group has at most one key row for each flight beyond the
    bound."""

    def __init__(self, bound: KeyBound, rule: Rule = ORDERED) -> None:
        self.rule = rule
        self.out: dict[bytes, int] = {}
        """How many messages of a key are in flight."""
        self.free: dict[bytes, None] = {}
        """Keys that are behind and may have one more, the one that waits longest first."""
        self.room = KeyRoom(bound)
        self.lines = KeyLines(self.room)
        self.tokens = KeyTokens(self.room, rule.per_ms)
        self.turns = KeyTurns(is_fair=rule.is_fair)
        self.unwritten = Unwritten()
        self.passed = 0
        """Messages that the reader has passed over since one was given."""
        self.held: set[bytes] = set()
        """Keys that a dead letter or somebody holds."""
        self.letters: dict[Position, bytes] = {}
        """Which dead letter holds which key."""
        self._keys: dict[bytes, _Key] = {}
        self._waits: dict[Position, bytes] = {}
        """Which key waits for which retry."""
        self._firsts: list[tuple[Position, bytes]] = []
        """A heap of each `next`, with some that have passed."""
        self._past: dict[bytes, None] = {}
        """Keys to look at since a replay, ..."""
        self._back = NOWHERE
        """... its position, ..."""
        self._finished = Finished()
        """... what was finished after that, ..."""
        self._low = END
        """... and a lower bound of their `next`."""
        self._skipped = NOWHERE
        """Up to here followers were given up: a burial reads them in the index."""
        self.is_awaited = False
        """Whether the reader waits for its rows to be written."""

    def __len__(self) -> int:
        """Number of key rows."""
        return len(self._keys)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits for its key."""
        return not self._keys and not self.lines

    def change_rule(self, rule: Rule) -> None:
        """From now on another rule counts. O(keys in flight or behind). Without order no key waits for a
        retry, unless somebody holds it."""
        if rule != self.rule:
            self.rule, self.turns = rule, KeyTurns(is_fair=rule.is_fair)
            self.tokens.change(rule.per_ms)
            if not rule.is_ordered:
                for key in list(self._waits.values()):
                    if not self._keys[key].by_hand:
                        self.release(key)
            for key in [*self.out, *self._keys, *self.lines.keys]:
                self._settle(key)

    def restore(self, rows: Iterable[tuple[bytes, KeyRow]]) -> None:
        """At start: the key rows as stored. The caller calls `launch` for each flight of the cursor."""
        for key, row in rows:
            known = [(row.next, row.shard)] if row.shard != NO_SHARD else []
            is_whole = row.next == NOWHERE
            found = _Key(row.next, known, is_whole, by_hand=row.by_hand)
            self._keys[key] = found
            self.room.add(1)
            self._note_first(key, found)
            self._set_head(key, found, row.root, row.wait, row.letter)
            self._settle(key)

    def leave(self) -> None:
        """The group has ended: its rows count no more. `take` still gives those that are not written."""
        self.lines.clear()
        self.room.leave()
        self.free.clear()
        self.held.clear()
        self.letters.clear()

    def has_row(self, key: bytes) -> bool:
        """Whether the key is behind, or in trouble, or held."""
        return self._find(key) is not None

    def _find(self, key: bytes) -> _Key | None:
        """A key that is behind, in trouble or held, with a replay applied. All callers find it here."""
        if key in self._past:
            del self._past[key]
            self._look(key)
        return self._keys.get(key)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left of it, here and as stored."""
        return not (self._keys or self.lines) and self.unwritten.is_empty

    @property
    def keys(self) -> list[bytes]:
        """The ordering keys that are behind, or in trouble, or held."""
        return [key for key in self._keys if key != NO_KEY]

    @property
    def blocked(self) -> int:
        """Number of these."""
        return len(self._keys) - (NO_KEY in self._keys)

    def known(self, key: bytes) -> tuple[int, bool]:
        """How many followers of a key are known here, and whether these are all."""
        found = self._keys[key]
        return len(found.known), found.is_whole

    def row(self, key: bytes) -> KeyRow:
        """What is known of a key."""
        found = self._find(key)
        return KeyRow() if found is None else found.row

    @property
    def first_needed(self) -> Position:
        """The first position behind the read position that is still to be given; END: none. A message that
        rests is in its retry, or in its dead letter."""
        firsts = self._firsts
        while firsts:
            place, key = firsts[0]
            found = self._keys.get(key)
            if found is not None and found.next == place:
                return min(place, self._low)
            heappop(firsts)
        return self._low

    def read_from(self, read: Position) -> Position:
        """Where the messages that are not given begin; `read`: the read position."""
        return Position(min(self.first_needed, Position(read + 1)) - 1)

    def is_behind(self, key: bytes, place: Position) -> bool:
        """Whether a message of the key, which the reader has passed, is still to be given."""
        found = self._find(key or NO_KEY)
        return found is not None and NOWHERE < found.next <= place

    def key_of(self, ordering_key: bytes) -> bytes:
        """The key of a message; empty: it has none, and waits for nothing. While messages without a key are
        behind they go by theirs, also if the group is fair no more."""
        if ordering_key:
            return ordering_key
        return NO_KEY if self.rule.is_fair or NO_KEY in self._keys or NO_KEY in self.lines else b""

    def rows(self) -> list[tuple[bytes, KeyRow]]:
        """All key rows, some of them as they were before a replay."""
        return [(key, found.row) for key, found in self._keys.items()]

    # -- the reader

    def meet(self, key: bytes, place: Position, shard: int, room: int = 1) -> Meeting:
        """The reader has come to a message of a key. GIVE: give it (`launch`), or nobody wants it.

        `room`: for how many messages there is room; counts in a fair group only.
        """
        found = self._find(key) if self._past else self._keys.get(key)
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
            self._note_first(key, found)
            self.unwritten.keys.add(key)
            self._settle(key)
            return Meeting.PASS
        assert place >= found.next, "the reader is before no message of the key that is to be given"
        self.unwritten.follows(key, (place, shard))
        if found.is_whole and len(found.known) < KNOWN_MAX:
            found.known.append((place, shard))
        else:
            found.is_whole = False
        return Meeting.PASS

    def meet_retry(self, key: bytes, place: Position, room: int = 1) -> bool:
        """A retry is due that no key waits for. True: give it (`launch`). False: it stands in line."""
        if self.may_start(key, room):
            return True
        self.lines.stand(key, place)
        self._settle(key)
        return False

    def may_start(self, key: bytes, room: int) -> bool:
        """Whether nothing of the key waits, and it may have one more."""
        if (key in self._keys and self._find(key)) or key in self.lines or not self._may_go(key):
            return False
        return not self.rule.is_fair or self.out.get(key, 0) < max(1, room)

    def _may_go(self, key: bytes) -> bool:
        """Whether the rule gives the key one more."""
        rule = self.rule
        if key == NO_KEY:
            return True
        if rule.most and self.out.get(key, 0) >= rule.most:
            return False
        return self.tokens.has_one(key)

    def _in_trouble(self, key: bytes) -> _Key:
        """The row of a key, which is made if there is none."""
        found = self._find(key)
        if found is None:
            found = self._keys[key] = _Key()
            self.room.add(1)
        return found

    # -- tokens

    def spend(self, key: bytes, now_ms: float) -> None:
        """A message of the key is given, of a group with a rate."""
        self.tokens.spend(key, now_ms)
        self._settle(key)

    def advance(self, now_ms: float) -> None:
        """Time has passed: keys have tokens again."""
        for key in self.tokens.advance(now_ms):
            self._settle(key)

    @property
    def next_ms(self) -> float | None:
        """When to advance; None: nothing waits for tokens."""
        return None if self.is_idle and not self.room.is_stopped else self.tokens.next_ms

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

    def rest(self, key: bytes, root: Position, wait: Position) -> None:
        """The message in flight has failed: the key waits for its retry, unless it waits for another one, as
        more than one was in flight when the group began to order."""
        self._rest(key, root, wait, NOWHERE)

    def hold(self, key: bytes, root: Position, letter: Position) -> None:
        """The same, and it is a dead letter that holds its key."""
        self._rest(key, root, NOWHERE, letter)

    def _rest(self, key: bytes, root: Position, wait: Position, letter: Position) -> None:
        found = self._in_trouble(key)
        if not found.is_resting:
            self._set_head(key, found, root, wait, letter)
            self.unwritten.keys.add(key)
        self.land(key)

    def bury(self, key: bytes, letter: Position) -> None:
        """The message that waits for its retry is a dead letter that holds its key."""
        found = self._keys[key]
        assert found.is_resting, "only what rests is buried"
        self._set_head(key, found, found.root, NOWHERE, letter)
        self.unwritten.keys.add(key)
        self._settle(key)

    def hold_by_hand(self, key: bytes) -> None:
        """Somebody holds the key: what is in flight ends, and nothing more is given until `let_go`."""
        self._in_trouble(key).by_hand = True
        self.unwritten.keys.add(key)
        self._settle(key)

    def let_go(self, key: bytes) -> None:
        """Release the key in the open batch; nothing of it is given until `go_on`. With order, a retry
        goes on waiting."""
        found = self._find(key)
        if found is not None:
            found.by_hand, found.is_leaving = False, True
            if found.letter != NOWHERE or not self.rule.is_ordered:
                self._end_rest(key, found)
            self.unwritten.keys.add(key)
            self._settle(key)

    def go_on(self, key: bytes) -> None:
        """The release is durable."""
        found = self._find(key)
        if found is not None:
            found.is_leaving = False
            self._settle(key)

    def undo_hold(self, key: bytes, before: KeyRow) -> None:
        """`hold_by_hand` or `let_go` was not written: the key is held as before."""
        found = self._in_trouble(key)
        found.by_hand, found.is_leaving = before.by_hand, False
        if before.letter != NOWHERE and not found.is_resting:
            self._set_head(key, found, before.root, NOWHERE, before.letter)
        self.unwritten.keys.add(key)
        self._settle(key)

    def requeue(self, key: bytes, wait: Position) -> None:
        """The head that waits or is held is tried at another time: of a dead letter, again."""
        found = self._keys[key]
        assert found.is_resting, "only what rests is tried again"
        self._set_head(key, found, found.root, wait, NOWHERE)
        self.unwritten.keys.add(key)
        self._settle(key)

    def resume(self, key: bytes) -> Position:
        """The retry that the key waits for is in flight; returns its root."""
        root = self._keys[key].root
        self.launch(key)
        self.release(key)
        return root

    def waiting_for(self, wait: Position) -> bytes | None:
        """The key that waits for that retry; None: none does."""
        self._find(self._waits.get(wait, b""))
        return self._waits.get(wait)

    def held_by(self, letter: Position) -> bytes | None:
        """The key that this dead letter holds; None: it holds none."""
        self._find(self.letters.get(letter, b""))
        return self.letters.get(letter)

    def release(self, key: bytes) -> None:
        """The head that waits or is held has ended: done late, dropped, buried, released."""
        found = self._find(key)
        if found is not None:
            self._end_rest(key, found)
            self.unwritten.keys.add(key)
            self._settle(key)

    def _end_rest(self, key: bytes, found: _Key) -> None:
        self._set_head(key, found, NOWHERE, NOWHERE, NOWHERE)

    def _set_head(self, key: bytes, found: _Key, root: Position, wait: Position, letter: Position) -> None:
        """The head of the key, which is not in flight: a retry, a dead letter, or none."""
        self._waits.pop(found.wait, None)
        self.letters.pop(found.letter, None)
        found.root, found.wait, found.letter = root, wait, letter
        if wait != NOWHERE:
            self._waits[wait] = key
        if letter != NOWHERE:
            self.letters[letter] = key

    # -- retries in line

    def next_retry(self, key: bytes) -> Position | None:
        """The due retry that a free key gives next; None: it is the turn of its first follower."""
        place, found = self.lines.first(key), self._keys.get(key)
        if place is None or found is None or found.next == NOWHERE:
            return place
        is_ordered = self.rule.is_ordered and key != NO_KEY
        is_first = place < found.next if is_ordered else found.gives_retry
        return place if is_first else None

    def leave_line(self, key: bytes, place: Position) -> None:
        """The retry is to be given, or has gone."""
        self.lines.leave(key, place)
        if key in self._keys:
            self._keys[key].gives_retry = False
        self._settle(key)

    # -- followers

    def first(self, key: bytes) -> Address | None:
        """The message to give next of a free key; None: `wants` says where to look for it."""
        found = self._find(key) if self._past else self._keys.get(key)
        return found.known[0] if found is not None and found.known else None

    def is_at(self, key: bytes, address: Address) -> bool:
        """Whether that message is the next one of a key that is free."""
        return key in self.free and self.first(key) == address

    def next_free(self) -> bytes:
        """The key that has been free for longest. After a replay it may no longer be free."""
        key = next(iter(self.free))
        self._find(key)
        return key

    def wants(self, key: bytes) -> Position:
        """From where on the index has the followers that are not known."""
        return self._keys[key].next

    def learn(self, key: bytes, places: Iterable[Address], read: Position, *, is_all: bool) -> None:
        """Followers from `wants` up to `read`, as stored. `is_all`: these are all up to the read position.

        The caller reads KNOWN_MAX of them, and one more. Those that are not stored yet are known here; one
        may stand before a stored one, which is left from before a replay.
        """
        found = self._keys[key]
        assert not found.known, "the known ones come first"
        every = {*places, *self.unwritten.followers(key)}
        known = sorted([one for one in every if found.next <= one[0] <= read])
        found.known, found.is_whole = known[:KNOWN_MAX], is_all and len(known) <= KNOWN_MAX
        self._advance(key, found, found.next if is_all else Position(read + 1))

    def give(self, key: bytes) -> Address:
        """The first follower is in flight."""
        address = self.drop(key)
        self.launch(key)
        return address

    def drop(self, key: bytes) -> Address:
        """The first follower is passed on: it is given, or nobody wants it any more."""
        found = self._keys[key]
        address = found.known.pop(0)
        found.gives_retry = True
        self._advance(key, found, Position(address[0] + 1))
        return address

    def _advance(self, key: bytes, found: _Key, place: Position) -> None:
        """Nothing before `place` is to be given."""
        if found.known:
            place = found.known[0][0]
        elif found.is_whole:
            place = NOWHERE
        if place != found.next:
            assert place == NOWHERE or place > found.next, "what was given is not given again"
            found.next = place
            self._note_first(key, found)
            self.unwritten.keys.add(key)
        self._settle(key)

    def _note_first(self, key: bytes, found: _Key) -> None:
        if found.next == NOWHERE:
            return
        heappush(self._firsts, (found.next, key))
        if len(self._firsts) > 2 * len(self._keys) + KNOWN_MAX:
            self._count_firsts()

    def _count_firsts(self) -> None:
        """Forget those that have passed. O(keys)."""
        self._firsts = [(one.next, name) for name, one in self._keys.items() if one.next != NOWHERE]
        heapify(self._firsts)

    def put_last(self, key: bytes) -> None:
        """A key that is free has its next turn after the others."""
        if key in self.free:
            del self.free[key]
            self.free[key] = None

    def _settle(self, key: bytes) -> None:
        """After a change: a key is free, or has no row, or neither."""
        found = self._keys.get(key)
        is_held = found is not None and found.is_held
        is_resting = is_held or (found is not None and found.wait != NOWHERE)
        is_behind = found is not None and found.next != NOWHERE
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

    # -- the read position is set

    def rewind(self, to: Position, finished: Finished) -> None:
        """The group reads again from after `to`, without `finished`. A head that comes again by that is no
        longer the head of its key. O(keys) in C, 3 ms with 50,000: the keys are looked at later (`_find`)."""
        self._low = min(self.first_needed, Position(to + 1)) if self._keys else END
        self._back, self._finished, self._firsts = to, finished, []
        self._past = dict.fromkeys(self._keys)

    def look_on(self) -> bool:
        """Look at some keys after a replay; False: all have been looked at."""
        is_left = self.is_set_back
        for _ in range(LOOKED_MAX - len(self.unwritten.keys)):
            if not self._past:
                break
            self._look(self._past.popitem()[0])
        return is_left

    @property
    def is_set_back(self) -> bool:
        """Whether there are keys to look at after a replay."""
        return bool(self._past)

    def _look(self, key: bytes) -> None:
        """Forget what of the key comes again by the replay."""
        if not self._past:
            self._low = END
        found, to = self._keys[key], self._back
        before, is_changed = found.next, found.root > to and found.root not in self._finished
        if is_changed:
            self._end_rest(key, found)
        if before > to:
            found.next, found.known, found.is_whole = NOWHERE, [], True
        elif found.known and found.known[-1][0] > to:
            found.known, found.is_whole = [one for one in found.known if one[0] <= to], True
        self._note_first(key, found)
        if is_changed or found.next != before:
            self.unwritten.keys.add(key)
            self._settle(key)

    def skip(self, to: Position, most: int) -> list[tuple[bytes, KeyRow]]:
        """Followers up to `to` are given up, of at most `most` keys. Returns these keys, as they were. The
        caller has looked at all keys (`look_on`): else a message that comes again would be given up twice."""
        assert not self._past, "each key says what of it is behind"
        given_up: list[tuple[bytes, KeyRow]] = []
        self._skipped = max(self._skipped, to)
        while len(given_up) < most and self.first_needed <= to:
            key = self._firsts[0][1]
            found = self._keys[key]
            given_up.append((key, found.row))
            found.known = [one for one in found.known if one[0] > to]
            self._advance(key, found, Position(to + 1))
        return given_up

    def resting(self, to: Position, most: int) -> list[tuple[bytes, KeyRow]]:
        """At most `most` keys whose message that waits stands up to `to`. O(keys), 5 ms with 50,000."""
        found: list[tuple[bytes, KeyRow]] = []
        for key, one in self._keys.items():
            if one.wait and one.root <= to:
                found.append((key, one.row))
                if len(found) == most:
                    break
        return found

    def has_upto(self, to: Position) -> bool:
        """Whether messages up to `to` wait for their keys, or for their next try."""
        return self.is_set_back or self.first_needed <= to or bool(self.resting(to, 1))

    # -- storage

    def take(self) -> Changes:
        """What is to be written with the cursor, as it is now. Batches are written in the order of taking."""
        self.look_on()
        return self.unwritten.take(self._row, self._needs)

    def _row(self, key: bytes) -> KeyRow:
        found = self._keys.get(key)
        return KeyRow() if found is None else found.row

    def _needs(self, key: bytes, one: Address) -> bool:
        """Whether it has not been given meanwhile, or was given up."""
        found = self._keys.get(key)
        return one[0] <= self._skipped or (found is not None and NOWHERE < found.next <= one[0])

    def check(self) -> None:
        """Assert what is true of each key."""
        waits = {found.wait: key for key, found in self._keys.items() if found.wait != NOWHERE}
        assert waits == self._waits, "each retry is known by its place"
        is_ordered = self.rule.is_ordered
        letters = {found.letter: key for key, found in self._keys.items() if found.letter != NOWHERE}
        assert letters == self.letters, "each dead letter is known by its place"
        for key, found in self._keys.items():
            assert found.next != NOWHERE or found.is_resting or found.is_held, "a key row says something"
            assert (found.root != NOWHERE) == found.is_resting, "what rests has a root"
            assert found.wait == NOWHERE or found.letter == NOWHERE, "a key has one head"
            assert not (is_ordered and found.is_resting and key in self.out), "a key has one head"
            assert not found.known or found.known[0][0] == found.next, "the first one stands at next"
            assert found.known == sorted(found.known), "followers are in order"
            assert len(found.known) <= KNOWN_MAX, "RAM is bounded"
            assert found.is_held == (key in self.held), "who is held is counted"
        for key in [*self._keys, *self.lines.keys]:
            found = self._keys.get(key, _Key())
            is_free = (found.next != NOWHERE or key in self.lines) and not found.is_resting
            is_free = is_free and not found.is_held
            assert (is_free and self._may_go(key)) == (key in self.free), "who may go on is free"
        assert self.free.keys() <= self._keys.keys() | {*self.lines.keys}, "only who is behind is free"
        assert self.held <= self._keys.keys(), "only who has a row is held"
        firsts = [found.next for found in self._keys.values() if found.next != NOWHERE]
        first = min(firsts, default=END)
        assert self.first_needed == first or self._past, "nothing before is to be given"
        assert self.first_needed <= first, "what is needed is kept"
        assert self._past.keys() <= self._keys.keys(), "only a key with a row is looked at"

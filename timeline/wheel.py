"""A hierarchical timing wheel: the near future in RAM, bounded.

Varghese & Lauck 1987, scheme 7, with two levels here and the slices on disk as the outermost one:

    level 0    1,024 slots of 1 ms      the block of 1,024 ms that `now` is in
    level 1    1,024 slots of 1,024 ms  the next 17 minutes, a slot a block
    overflow   the slices on disk       brought in by the loader

An entry goes to level 0 when its block is the one of `now`, else to the slot of its block. When `now`
enters a block, that block's slot cascades into level 0. Which slots hold something is one integer of
1,024 bits a level: the next one is found by shifting, so that an empty hour costs nothing.

Example: now = 5,000 (block 4: 4,096..5,119). An entry for 5,030 goes to level 0, slot 5,030 % 1,024 = 934;
one for 9,000 to level 1, slot 9,000 // 1,024 = 8. At 8,192 block 8 begins: slot 8 is emptied into level 0,
the entry lies in slot 9,000 % 1,024 = 808 and is returned when `advance` passes 9,000.

The wheel is the one who knows *loaded*: it holds every stored message between the horizon and `loaded`.
An entry beyond it is refused without loss, the loader will read it when it comes to it. At the bound the
far half is given back to the disk and `loaded` moves back with it, so that a burst, however large, never
holds more than the bound and never loses its order. A million messages in one millisecond are read,
fired and forgotten in runs.

An entry is (position, item); items are opaque. `cancel` forgets the item and leaves its position in the
slot, where it is passed over later; when more of these lie about than entries may, the slots are filled
anew. Not here: threads, clocks, callbacks.

Written for speed: an entry passes through here twice. Entries come in order mostly, and a slot that they come
to in order is not sorted; the bits are touched when a slot begins and ceases to hold something.
"""

from bisect import bisect_right
from collections.abc import Iterable
from typing import Generic, TypeVar

from .position import SEQ_BITS, Position, at_of, before

Item = TypeVar("Item")

BITS = 10
SLOTS = 1 << BITS
MASK = SLOTS - 1
REACH_MS = SLOTS * (SLOTS - 1)
"""The wheel takes entries less than this beyond `now`."""


class Wheel(Generic[Item]):
    """Entries by position, bounded in entries and bytes.

    `add` and `cancel` are O(1), `advance` O(slots passed that hold something + entries returned, sorted).
    """

    def __init__(self, start: Position, *, max_entries: int, max_bytes: int) -> None:
        self.loaded = start
        self.max_entries = max_entries
        self.max_bytes = max_bytes
        self.bytes = 0
        self.given_back = 0
        """Number of times that `loaded` has moved back, so that its former entries may have to be read
        again."""
        self._stale = 0
        """Cancelled positions that are still in slots."""
        self._now_ms = at_of(start)
        self._items: dict[Position, tuple[Item, int]] = {}
        self._fine: list[list[Position]] = [[] for _ in range(SLOTS)]
        self._coarse: list[list[Position]] = [[] for _ in range(SLOTS)]
        self._fine_bits = 0
        self._coarse_bits = 0
        self._is_sorted = False
        """Whether the slot of `now` is."""

    def __len__(self) -> int:
        return len(self._items)

    @property
    def is_full(self) -> bool:
        return len(self._items) >= self.max_entries or self.bytes >= self.max_bytes

    @property
    def reach(self) -> Position:
        """The position that the loader may fill the wheel up to."""
        return before(self._now_ms + REACH_MS)

    def add(self, place: Position, item: Item, size: int) -> bool:
        """Add an entry at or before `loaded`; False if it is beyond: the loader will add it.

        Adding a position twice changes nothing. At the bound the far half is dropped first.
        """
        if place > self.loaded:
            return False
        if self.is_full:
            self.shed()
            if place > self.loaded:
                return False
        self.load(place, item, size)
        return True

    def loaded_to(self, place: Position) -> None:
        """Note that the loader has loaded everything up to `place`."""
        assert place <= self.reach, "loaded beyond what the wheel can hold"
        if place > self.loaded:
            self.loaded = place

    def cancel(self, place: Position) -> None:
        """Remove the entry at `place`, if there is one."""
        found = self._items.pop(place, None)
        if found is not None:
            self.bytes -= found[1]
            self._stale += 1
            if self._stale > max(self.max_entries, SLOTS):
                self._rebuild()

    def clear(self, loaded: Position) -> None:
        """Remove all entries; the wheel is loaded up to `loaded`."""
        self._items.clear()
        self._rebuild()
        self.loaded = loaded
        self.given_back += 1

    def skip(self, place: Position) -> None:
        """Jump over a stretch in which nothing is stored, up to `place`. The wheel must be empty."""
        assert not self._items, "only an empty wheel can skip"
        if place > self.loaded:
            self.clear(place)
            self._now_ms = max(self._now_ms, at_of(place))

    def shed(self) -> None:
        """Give the far half back to the disk: `loaded` moves back to the last entry that is kept."""
        places = sorted(self._items)
        keep = len(places) // 2
        for place in places[keep:]:
            self.cancel(place)
        self.loaded = places[keep - 1] if keep else Position(places[0] - 1)
        self.given_back += 1

    def items(self) -> Iterable[tuple[Position, tuple[Item, int]]]:
        """(position, (item, size)) of every entry, in no order."""
        return self._items.items()

    def next_ms(self) -> int | None:
        """A time not later than the first entry's; None when the wheel is empty."""
        if not self._items:
            return None
        fine = self._fine_bits >> (self._now_ms & MASK)
        if fine:
            return self._now_ms + _lowest(fine)
        return self._next_block() << BITS

    def advance(self, to: Position, limit: int) -> list[tuple[Position, Item]]:
        """Move towards `to`; the entries up to there in position order, at most `limit` of them.

        When fewer than `limit` come back the wheel has reached `to`; else it stands at the last one. After a
        `skip` the horizon may still be held back behind `now`: then only what was entered late is returned.
        Raises AssertionError for a `to` past what is loaded.
        """
        to_ms = at_of(to)
        assert to <= self.loaded, "advance stays within what is loaded"
        due: list[tuple[Position, Item]] = []
        while True:
            self._drain(to, limit, due)
            if len(due) >= limit or not self._step(to_ms):
                return due

    def _rebuild(self) -> None:
        """Fill the slots again without the positions of cancelled entries, which would pile up in them."""
        items, self._items = self._items, {}
        self._fine = [[] for _ in range(SLOTS)]
        self._coarse = [[] for _ in range(SLOTS)]
        self._fine_bits = self._coarse_bits = self._stale = self.bytes = 0
        self._is_sorted = False
        for place, (item, size) in items.items():
            self.load(place, item, size)

    def load(self, place: Position, item: Item, size: int) -> None:
        """Take an entry, also from the loader, which says `loaded_to` when its run is complete."""
        items, now_ms = self._items, self._now_ms
        if place in items:
            return
        items[place] = (item, size)
        self.bytes += size
        at_ms = place >> SEQ_BITS
        if at_ms < now_ms:
            at_ms = now_ms
        block = at_ms >> BITS
        if block == now_ms >> BITS:
            slot = self._fine[at_ms & MASK]
            if not slot:
                self._fine_bits |= 1 << (at_ms & MASK)
            elif at_ms == now_ms and place < slot[-1]:
                self._is_sorted = False
            slot.append(place)
        else:
            assert block - (now_ms >> BITS) < SLOTS, "beyond the wheel's reach"
            slot = self._coarse[block & MASK]
            if not slot:
                self._coarse_bits |= 1 << (block & MASK)
            slot.append(place)

    def _drain(self, to: Position, limit: int, due: list[tuple[Position, Item]]) -> None:
        """Move due entries in the slot of `now` to `due`, at most up to `limit`."""
        slot = self._fine[self._now_ms & MASK]
        if not slot:
            return
        if not self._is_sorted:
            slot.sort()
            self._is_sorted = True
        ready = bisect_right(slot, to)
        taken = size = 0
        pop = self._items.pop
        while taken < ready and (room := limit - len(due)) > 0:
            run = slot[taken : min(ready, taken + room)]
            taken += len(run)
            for place in run:
                found = pop(place, None)
                if found is None:
                    self._stale -= 1
                else:
                    due.append((place, found[0]))
                    size += found[1]
        self.bytes -= size
        del slot[:taken]
        if not slot:
            self._fine_bits &= ~(1 << (self._now_ms & MASK))

    def _step(self, to_ms: int) -> bool:
        """Go to the next slot that holds something, at most to `to_ms`; False if there already."""
        if self._now_ms >= to_ms:
            return False
        ahead = self._fine_bits >> (self._now_ms & MASK) >> 1
        if ahead:
            next_ms = self._now_ms + 1 + _lowest(ahead)
        elif self._coarse_bits:
            next_ms = self._next_block() << BITS
        else:
            next_ms = to_ms
        self._enter(min(next_ms, to_ms))
        return True

    def _enter(self, at_ms: int) -> None:
        """Set `now`; when that enters a new block, cascade the block's slot into level 0."""
        block = at_ms >> BITS
        entered = block != self._now_ms >> BITS
        self._now_ms = at_ms
        self._is_sorted = False
        if not entered:
            return
        places = self._coarse[block & MASK]
        self._coarse[block & MASK] = []
        self._coarse_bits &= ~(1 << (block & MASK))
        fine = self._fine
        for place in places:
            at = max(at_ms, place >> SEQ_BITS) & MASK
            slot = fine[at]
            if not slot:
                self._fine_bits |= 1 << at
            slot.append(place)

    def _next_block(self) -> int:
        """The number of the next block whose slot in level 1 is not empty."""
        block = self._now_ms >> BITS
        turn = (block + 1) & MASK
        bits = self._coarse_bits
        rotated = bits >> turn | (bits & ((1 << turn) - 1)) << (SLOTS - turn)
        return block + 1 + _lowest(rotated)

    def check(self) -> None:
        """Assert the wheel's own invariants. For tests."""
        places: list[int] = []
        for level, bits in ((self._fine, self._fine_bits), (self._coarse, self._coarse_bits)):
            filled = [index for index, slot in enumerate(level) if slot]
            assert bits == sum(1 << index for index in filled)
            for index in filled:
                places += level[index]
        assert self._items.keys() <= set(places)
        assert self._stale == len(places) - len(self._items) <= max(self.max_entries, SLOTS)
        assert self.bytes == sum(size for _, size in self._items.values())
        assert all(place <= self.loaded for place in self._items)


def _lowest(bits: int) -> int:
    """The index of the lowest set bit."""
    return (bits & -bits).bit_length() - 1

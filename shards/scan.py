"""Guarded iterators over a RocksDB column family: one for a live family, one for a family at rest.

Used directly, the binding loses rows without an error in three ways, each reproduced in tests/store:

  - the iterator keeps a pointer to the bytes of its upper bound; once Python frees them the bound is garbage.
    The generator below owns the bound and the ReadOptions as long as it runs, in a `_Within` that it uses
    last: compiled code frees a local after its last use, and `del` does not count as one;
  - `set_iterate_lower_bound` sets the *upper* bound: never call it, the scan starts with a seek;
  - an iterator that meets a corrupt block just becomes invalid: the scan checks its status after the last
    row.

The binding's own loop over rows takes a fifth less time a row, but has no status. In a database at rest a
second iterator, which has one, repeats the last step: it meets whatever ended the loop.
"""

from collections.abc import Callable, Iterator
from typing import cast

from rocksdict import Rdict, RdictIter, ReadOptions

from .errors import Corrupt, ShardsError

Refusal = Callable[[str, Exception], ShardsError]
"""Makes the error to raise from (where the read stopped, the engine's error)."""
RUN = 256
"""Maximum rows read ahead: resuming the generator for each row was half the cost of a scan. The first run is
one row and each next one twice as long, so a caller that wants only the first row pays for one."""


class _Within:
    """What an iterator points into: the options, and in them the bound. Must live as long as the iterator."""

    __slots__ = ("_bound", "options")

    def __init__(self, end: bytes, *, fills: bool = True) -> None:
        """`fills`: whether what is read goes into the cache."""
        self._bound = bytes(end)
        self.options = ReadOptions()
        self.options.set_iterate_upper_bound(self._bound)
        if not fills:
            self.options.fill_cache(False)  # type: ignore[call-arg]  # as it is; the stub forgets the argument

    def check(self, rows: RdictIter, key: bytes, refusal: Refusal) -> None:
        """Raise `refusal` if the iterator ended because it failed.

        A scan calls this last, so the iterator's options live until then."""
        try:
            rows.status()
        except Exception as error:
            raise refusal(f"after key {key.hex()}", error) from error


def scan(family: Rdict, start: bytes, end: bytes, refusal: Refusal) -> Iterator[tuple[bytes, bytes]]:
    """The rows of [start, end) in key order. Raises `refusal`."""
    within = _Within(end)
    rows = family.iter(within.options)
    rows.seek(start)
    key, most = start, 1
    valid, key_of, value_of, step = rows.valid, rows.key, rows.value, rows.next
    while valid():
        run = []
        for _ in range(most):
            run.append((key_of(), value_of()))
            step()
            if not valid():
                break
        yield from run
        key, most = run[-1][0], min(2 * most, RUN)
    within.check(rows, key, refusal)


def scan_at_rest(family: Rdict, start: bytes, end: bytes, refusal: Refusal) -> Iterator[tuple[bytes, bytes]]:
    """`scan` of a database that nobody writes to: faster over many rows, and bypasses the cache."""
    within = _Within(end, fills=False)
    options = within.options
    rows = cast("Iterator[tuple[bytes, bytes]]", family.items(from_key=start, read_opt=options))
    row: tuple[bytes, bytes] | None = None
    for row in rows:
        yield row
    key = start if row is None else row[0]
    again = family.iter(options)
    again.seek(key)
    if row is not None and again.valid():
        again.next()
    within.check(again, key, refusal)
    if again.valid():
        raise refusal(f"after key {key.hex()}", Corrupt("Corruption: the rows ended before their end"))


def check(family: Rdict, start: bytes, end: bytes, most: int, refusal: Refusal) -> tuple[bytes | None, int]:
    """Read about `most` bytes of rows of [start, end), beside the cache: where the next ones begin, None if
    there are none, and how many bytes. Raises `refusal`.

    The engine checks the checksum of each block that it reads, also of those with replaced and deleted rows.
    """
    within = _Within(end, fills=False)
    within.options.set_verify_checksums(True)
    rows = family.iter(within.options)
    rows.seek(start)
    key, size = start, 0
    while rows.valid() and size < most:
        key = rows.key()
        size += len(key) + len(rows.value())
        rows.next()
    next_key = rows.key() if rows.valid() else None
    if next_key is None:
        within.check(rows, key, refusal)
    return next_key, size

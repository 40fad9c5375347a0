"""The one guarded iterator over a RocksDB column family.

Used raw, the binding loses rows without an error in three ways, each reproduced in tests/store:

  - the iterator keeps a pointer to the bytes of its upper bound; once Python frees them the bound is
    whatever lies there. The generator below owns the bound and the ReadOptions as long as it runs;
  - `set_iterate_lower_bound` sets the *upper* bound: it is never called, the scan starts with a seek;
  - an iterator that meets a corrupt block just becomes invalid: its status is asked after the last row.
"""

from collections.abc import Iterator

from rocksdict import Rdict, ReadOptions

from .errors import Corrupt

RUN = 256
"""Rows that are read before they are given out: a step of the generator for each row took half of a scan. It
begins with one, so that who wants the first row only does not pay for more."""


def scan(family: Rdict, start: bytes, end: bytes, name: str) -> Iterator[tuple[bytes, bytes]]:
    """The rows of [start, end) in key order. Raises Corrupt, naming table and key."""
    bound = bytes(end)
    options = ReadOptions()
    options.set_iterate_upper_bound(bound)
    rows = family.iter(options)
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
    try:
        rows.status()
    except Exception as error:
        raise Corrupt(f"table {name}, after key {key.hex()}: {error}") from error
    # The bound must outlive the iterator: naming it here keeps it.
    del rows, options, bound

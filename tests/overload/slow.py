"""A server on a disk whose every sync takes so many ms longer.

python -m tests.overload.slow MS --data DATA ...
"""

import sys
import time

from shards.rocks import RocksStore
from tests.support.parted import main


def slow_down(delay_s: float) -> None:
    """For this process, for good."""
    flush = RocksStore.flush

    def slow(self: RocksStore) -> None:
        time.sleep(delay_s)
        flush(self)

    RocksStore.flush = slow  # type: ignore[method-assign]


if __name__ == "__main__":
    slow_down(int(sys.argv[1]) / 1_000)
    sys.exit(main(sys.argv[2:]))

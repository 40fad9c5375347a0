"""Rows of cells (timeline/cells.py): a histogram of each slice's messages over time, for density without
reading.

Nothing is written per message. A row says which rows of the slice it counts: all of them, and how many are
live. A slice's rows only grow in number and its live rows only shrink. So a row whose two numbers equal the
slice's is exact; any other is out of date and ignored:

    saved        slice 100 rows, 90 live      row: 100, 90, when these 90 are
    killed       slice 103 rows, 93 live      the row is out of date: the slice is counted again

The server saves changed rows every few seconds and when it stops. After a kill, for data of an older version
and after a repair it counts slices again, in steps (`step`). Until then readers of the density read rows. A
crash leaves rows and numbers of the same moment, since one batch has both.
"""

from struct import Struct, error

from timeline.cells import Cells
from timeline.position import END, Position, before
from timeline.slices import CELLED_MAX, Directory, Slice

from . import keys
from .commit import Commit
from .read import Reader
from .record import is_stub
from .store import Store, Table
from .unreadable import readable

SAVE_BYTES = 256 << 10
_HEAD = Struct(">QQI")
"""Rows, live rows, width of a cell in ms; then the count of each cell (4)."""


def restore_cells(store: Store, directory: Directory) -> None:
    """Load the stored cells of every slice that they still fit; empty slices need none."""
    celled = 0
    for key, value in readable(store, Table.META, *keys.under(keys.CELLS)):
        home = keys.slice_of(key[len(keys.CELLS) :])
        piece = directory.get(home.start_ms)
        if piece is not None and piece.home == home and celled < CELLED_MAX:
            piece.cells = _cells_from(value, piece)
            celled += piece.cells is not None
    for piece in directory:
        if not piece.count and celled < CELLED_MAX:
            piece.cells = Cells(piece.start_ms, piece.end_ms)
            celled += 1


def _cells_from(value: bytes, piece: Slice) -> Cells | None:
    """The cells of the slice; None: the row is out of date."""
    try:
        rows, live, width_ms = _HEAD.unpack_from(value)
    except error:
        return None
    if (rows, live) != (piece.count, piece.live) or not width_ms:
        return None
    cells = Cells(piece.start_ms, piece.end_ms, width_ms)
    if len(value) != _HEAD.size + 4 * len(cells.counts):
        return None
    cells.counts = list(Struct(f">{len(cells.counts)}I").unpack_from(value, _HEAD.size))
    cells.saved = rows, 0
    return cells if cells.total == live else None


def is_changed(piece: Slice) -> bool:
    """Whether the slice's cells must be saved."""
    cells = piece.cells
    return cells is not None and cells.is_exact and cells.saved != (piece.count, cells.retired)


def save(commit: Commit, start_ms: int = 0, most: int = SAVE_BYTES) -> int:
    """Put rows for the changed slices from `start_ms` on. Returns where to continue; 0 at the end."""
    size = 0
    for piece in commit.directory.over(before(start_ms), END):
        cells = piece.cells
        if cells is None or not is_changed(piece):
            continue
        if size >= most:
            return piece.start_ms
        counts = Struct(f">{len(cells.counts)}I").pack(*cells.counts)
        value = _HEAD.pack(piece.count, piece.live, cells.width_ms) + counts
        commit.row(Table.META, keys.cells_key(piece.home), value)
        cells.saved = piece.count, cells.retired
        size += len(value)
    return 0


def step(reader: Reader, piece: Slice, seq: int, rows: int) -> bool:
    """Count `rows` more rows of a slice. Returns whether it is done; a slice with unreadable rows gets no
    cells.

    `seq`: the last one issued. Call it while no group is open: all rows have to be readable. Raises what
    reading raises.
    """
    cells = piece.cells
    if cells is None:
        cells = piece.cells = Cells(piece.start_ms, piece.end_ms)
        cells.begin(seq)
    for looked, (place, _, value) in enumerate(reader.read(cells.upto, before(piece.end_ms)), 1):
        if not is_stub(value):
            cells.add(place)
        if looked == rows:
            cells.upto = Position(place + 1)
            return False
    cells.upto = END
    if cells.total != piece.live:
        piece.cells = None
    return True

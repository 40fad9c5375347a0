"""Values as a table for people, as JSON or NDJSON for programs. Results go to stdout, all else to stderr.

JSON is the server's object as it came, so that a program sees every field; a table shows the chosen columns.
On a terminal a table, or one object, is as wide as that: texts of any length (`_CUT`) end in an ellipsis, and
what names something or is a number stays whole, if need be beyond the edge. `--wide`, or a pipe: nothing is
cut.

What others have written (topics, payloads, reasons) is shown with its control characters as escapes: it
neither breaks the table nor speaks to the terminal.
"""

from __future__ import annotations

import base64
import binascii
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from enum import StrEnum
from shutil import get_terminal_size
from typing import Any, Protocol

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

Row = Mapping[str, Any]


class Advance(Protocol):
    """Moves a progress bar. `total` None: as it was. `text`: in place of what is done and the count."""

    def __call__(self, count: int, total: int | None = None, /, text: str = "") -> None: ...


_UNBOUND = 1_000_000
"""Columns of a line that rich must not fold."""
_CUT = frozenset(
    {
        *("topic", "payload", "reason", "filter", "url", "detail", "subscriptions", "members"),
        *("when", "why", "failing"),
    }
)
_CUT_MIN = 8
_GAP = 2


class Format(StrEnum):
    """`-o`."""

    table = "table"
    json = "json"
    ndjson = "ndjson"


class Printer:
    """Prints in one format."""

    def __init__(self, format: Format, *, wide: bool = False) -> None:  # noqa: A002
        self.format = format
        self.errors = Console(stderr=True, highlight=False, soft_wrap=True)
        # Also with a height: otherwise rich overrides it for a dumb terminal.
        self._console = Console(highlight=False, soft_wrap=True, width=_UNBOUND, height=25)
        self._room = None if wide or not sys.stdout.isatty() else get_terminal_size().columns

    def one(self, row: Row, displayed: Row | None = None) -> None:
        """A single object: name and value, line by line, or JSON. `displayed`: in a table in its place."""
        if self.format is not Format.table:
            self.line(row)
            return
        row = row if displayed is None else displayed
        table = Table(box=None, show_header=False, pad_edge=False)
        room = _UNBOUND if self._room is None else self._room - _GAP - max(map(len, row), default=0)
        for name, value in _with_payload_text(row).items():
            cell = _cell(value)
            is_cut = name in _CUT or isinstance(value, list | dict)
            table.add_row(Text(name, "bold"), Text(_fitted(cell, max(room, _CUT_MIN)) if is_cut else cell))
        self._console.print(table)

    def many(self, rows: Sequence[Row], columns: Sequence[str]) -> None:
        """A list; a table has a column for each of `columns`."""
        if self.format is Format.ndjson:
            for row in rows:
                self.line(row)
        elif self.format is Format.json:
            sys.stdout.write(json.dumps(list(rows), indent=2, ensure_ascii=False, default=_plain) + "\n")
        elif rows:
            displayed = [_with_payload_text(row) for row in rows]
            cells = [[_cell(row.get(name)) for name in columns] for row in displayed]
            heads = [name.replace("_", " ") for name in columns]
            widths = self._widths(columns, [heads, *cells])
            table = Table(box=None, pad_edge=False, header_style="bold")
            for head in heads:
                table.add_column(head, no_wrap=True)
            for row_cells in cells:
                table.add_row(*(Text(_fitted(*pair)) for pair in zip(row_cells, widths, strict=True)))
            self._console.print(table)
        else:
            self.errors.print("none", style="dim")

    def _widths(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
        """Widths of the columns: the widest that can be cut are reduced first."""
        widths = [max(cell_len(row[n]) for row in rows) for n in range(len(columns))]
        if self._room is None:
            return widths
        cut = [n for n, name in enumerate(columns) if name in _CUT]
        for n in cut:  # a payload of megabytes would need as many of the steps below
            widths[n] = min(widths[n], max(self._room, _CUT_MIN))
        over = sum(widths) + _GAP * (len(columns) - 1) - self._room
        while over > 0 and cut:
            longest = max(cut, key=widths.__getitem__)
            if widths[longest] <= _CUT_MIN:
                break
            widths[longest] -= 1
            over -= 1
        return widths

    def count(self, found: int) -> None:
        """How many there are: the number, or an object with it."""
        self.text(str(found)) if self.format is Format.table else self.line({"count": found})

    def line(self, row: Row) -> None:
        """One object on one line of JSON, at once (for streams)."""
        sys.stdout.write(json.dumps(row, ensure_ascii=False, default=_plain) + "\n")
        sys.stdout.flush()

    def text(self, text: str) -> None:
        """A line for people, at once, its brackets printed as they are."""
        self._console.print(text, markup=False)

    def cut(self, text: str) -> None:
        """Print `text`, cut to the width of the terminal."""
        self.text(_fitted(text, self._room) if self._room else text)

    def complain(self, text: str) -> None:
        """A line to stderr, for people in any format."""
        self.errors.print(f"fasti: {printable(text)}", markup=False, style="red")

    def advise(self, *commands: str) -> None:
        """Commands that may help, to stderr, for people: one on a line."""
        if self.format is Format.table:
            for command in commands:
                self.errors.print(f"  {printable(command)}", markup=False)

    def failed(self, text: str, problem: Row) -> None:
        """Why there is no result, to stderr: in words, or as a problem document (RFC 9457) on one line."""
        if self.format is Format.table:
            self.complain(text)
        else:
            sys.stderr.write(json.dumps(problem, ensure_ascii=False, default=_plain) + "\n")


@contextmanager
def progress(out: Printer, doing: str, total: int | None) -> Iterator[Advance]:
    """A bar on stderr if that is a terminal; tell it how much is done, and of how much if that is news."""
    from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=out.errors, transient=True, disable=not out.errors.is_terminal) as bar:
        task = bar.add_task(doing, total=total)

        def advance(count: int, total: int | None = None, /, text: str = "") -> None:
            bar.update(task, completed=count, total=total, description=text or f"{doing} {count:,}")

        yield advance


def time_of(value: Any) -> Any:
    """The time in a position or fire, for a table."""
    return value["at"] if isinstance(value, dict) and "at" in value else value


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return str(value)


def payload_text(payload: bytes) -> str:
    """A payload for display: its text, or `base64:` and the encoded bytes."""
    with suppress(UnicodeDecodeError):
        text = payload.decode()
        if all(character.isprintable() or character in "\t\r\n" for character in text):
            return printable(text)
    return f"base64:{base64.b64encode(payload).decode()}"


def printable(text: str) -> str:
    """The text with unprintable characters escaped: `\\n`, `\\x1b`, `\\u202e`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _with_payload_text(row: Row) -> Row:
    """A row for display: a base64 payload is shown by its bytes."""
    payload = row.get("payload")
    if row.get("encoding") != "base64" or not isinstance(payload, str):
        return row
    try:
        displayed = payload_text(base64.b64decode(payload, validate=True))
    except binascii.Error:
        displayed = f"base64:{payload}"
    return {**row, "payload": displayed}


def _fitted(text: str, width: int) -> str:
    """The text, cut with an ellipsis if it is too wide."""
    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"


def _cell(value: Any) -> str:
    value = time_of(value)
    if value is None:
        return "-"
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, datetime):
        return str(_plain(value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return printable(json.dumps(value, ensure_ascii=False, default=_plain))

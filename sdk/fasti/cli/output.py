"""Values as a table for people, as JSON or NDJSON for programs. Results go to stdout, all else to stderr.

JSON is the server's object as it came, so that a program sees every field; a table shows the chosen columns.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn
from rich.table import Table

Row = Mapping[str, Any]


class Told(Protocol):
    """Moves a progress bar. `total` None: as it was."""

    def __call__(self, count: int, total: int | None = None, /) -> None: ...


PIPE_WIDTH = 1_000
"""Columns for what is no terminal: a table in a pipe is not folded."""


class Format(StrEnum):
    """`-o`."""

    table = "table"
    json = "json"
    ndjson = "ndjson"


class Printer:
    """Prints in one format."""

    def __init__(self, format: Format) -> None:  # noqa: A002
        self.format = format
        self.errors = Console(stderr=True, highlight=False, soft_wrap=True)
        width = None if sys.stdout.isatty() else PIPE_WIDTH
        self._console = Console(highlight=False, soft_wrap=True, width=width)

    def one(self, row: Row) -> None:
        """A single object: name and value, line by line, or JSON."""
        if self.format is not Format.table:
            self.line(row)
            return
        table = Table(box=None, show_header=False, pad_edge=False)
        for name, value in row.items():
            table.add_row(f"[bold]{name}[/bold]", _cell(value))
        self._console.print(table)

    def many(self, rows: Sequence[Row], columns: Sequence[str]) -> None:
        """A list; a table has a column for each of `columns`."""
        if self.format is Format.ndjson:
            for row in rows:
                self.line(row)
        elif self.format is Format.json:
            sys.stdout.write(json.dumps(list(rows), indent=2, ensure_ascii=False, default=_plain) + "\n")
        else:
            table = Table(box=None, pad_edge=False, header_style="bold")
            for name in columns:
                table.add_column(name.replace("_", " "), overflow="fold")
            for row in rows:
                table.add_row(*(_cell(row.get(name)) for name in columns))
            if rows:
                self._console.print(table)
            else:
                self.errors.print("none", style="dim")

    def line(self, row: Row) -> None:
        """One object on one line of JSON, at once (for streams)."""
        sys.stdout.write(json.dumps(row, ensure_ascii=False, default=_plain) + "\n")
        sys.stdout.flush()

    def text(self, text: str) -> None:
        """A line for people, at once, its brackets printed as they are."""
        self._console.print(text, markup=False)

    def complain(self, text: str) -> None:
        """To stderr."""
        self.errors.print(f"fasti: {text}", markup=False, style="red")


@contextmanager
def progress(out: Printer, doing: str, total: int | None) -> Iterator[Told]:
    """A bar on stderr if that is a terminal; tell it how much is done, and of how much if that is news."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=out.errors, transient=True, disable=not out.errors.is_terminal) as bar:
        task = bar.add_task(doing, total=total)

        def told(count: int, total: int | None = None, /) -> None:
            bar.update(task, completed=count, total=total, description=f"{doing} {count:,}")

        yield told


def time_of(position: Any) -> Any:
    """What a table shows of a position: its time."""
    return position.get("at") if isinstance(position, dict) else position


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return str(value)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        text = value
    elif isinstance(value, (datetime, bytes)):
        text = str(_plain(value))
    elif isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, int):
        text = f"{value:,}"
    else:
        text = json.dumps(value, ensure_ascii=False, default=_plain)
    return text.replace("[", "\\[")

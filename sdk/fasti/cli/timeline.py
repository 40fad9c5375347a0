"""`fasti timeline ...`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

import fasti
from fasti.wire import seconds

from .options import command_of
from .output import Format, Printer

app = typer.Typer(no_args_is_help=True)

ROWS_MAX = 48
BAR_CHARS = 60
_WIDTHS_S = (1, 5, 10, 30, 60, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400, 604_800)


@command_of(app)
async def density(
    client: fasti.Client,
    out: Printer,
    ahead: Annotated[str, typer.Option("--next", help="Time span to show: 24h, 90m, 7d.")] = "24h",
    bucket: Annotated[
        str | None, typer.Option(help="Width of a bar: 15m. Default: what fits the page.")
    ] = None,
    topic: Annotated[str | None, typer.Option(help="Topic filter.")] = None,
) -> None:
    """Show how many messages are pending when, as a bar chart."""
    length = span_of("ahead", ahead)
    width = fitting(length) if bucket is None else span_of("bucket", bucket)
    now = (await client.info()).now
    start = datetime.fromtimestamp(now.timestamp() // width.total_seconds() * width.total_seconds(), UTC)
    found = await client.timeline.density(start=start, end=now + length, bucket=width, topic=topic)
    if out.format is Format.table:
        for line in chart(found):
            out.text(line)
    else:
        out.line(found.raw)


def span_of(argument: str, text: str) -> timedelta:
    """`1d12h` as a timedelta. Raises BadArgument."""
    found = timedelta(seconds=seconds(argument, text))
    if not found:
        raise fasti.BadArgument(argument, "must not be zero")
    return found


def fitting(length: timedelta) -> timedelta:
    """The shortest usual width with which a chart of this length fits a page."""
    widths = (timedelta(seconds=width_s) for width_s in _WIDTHS_S)
    return next((width for width in widths if length / width <= ROWS_MAX), length / ROWS_MAX)


def chart(found: fasti.Density) -> list[str]:
    """A line for each bucket, in local time; the longest bar is the fullest one."""
    most = max((bucket.count for bucket in found.buckets), default=0)
    form = "%Y-%m-%d" if found.bucket >= timedelta(days=1) else "%d %b %H:%M"
    if found.bucket < timedelta(minutes=1):
        form = "%H:%M:%S"
    lines = []
    for bucket in found.buckets:
        eighths = -(-bucket.count * BAR_CHARS * 8 // most) if most else 0
        bar = "█" * (eighths // 8) + ("", *"▏▎▍▌▋▊▉")[eighths % 8]
        lines.append(f"{bucket.at.astimezone():{form}}  {bar} {bucket.count or ''}".rstrip())
    return [*lines, f"{found.total:,} pending"]

"""Work over a list as Spark tasks: one task per item, each returning a line of JSON.

`range(n)` in n partitions makes exactly one task per item, on every kind of cluster; the work of a task is in
its closure. Rows of messages never enter the JVM: tasks read and write files, and results are small.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

Line = dict[str, Any]
Lines = list[Line]
Thing = TypeVar("Thing")
Made = TypeVar("Made", Line, Lines)
TASK_ROWS = 250_000
SCHEMA = "number long, line string"


def grouped(
    things: Sequence[Thing], rows_of: Callable[[Thing], int], most: int = TASK_ROWS
) -> list[list[Thing]]:
    """Group neighbours, up to `most` rows: each task opens the checkpoint once."""
    groups: list[list[Thing]] = []
    room = 0
    for thing in things:
        rows = rows_of(thing)
        if not groups or rows > room:
            groups.append([])
            room = most
        groups[-1].append(thing)
        room -= rows
    return groups


def each(session: SparkSession, things: Sequence[Thing], work: Callable[[Thing], Made]) -> list[Made]:
    """`work(thing)` for each, in order. `work` may run twice for a thing: a failed task is tried again."""
    if not things:
        return []

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            numbers = batch.column(0).to_pylist()
            lines = [json.dumps(work(things[number])) for number in numbers]
            yield pa.RecordBatch.from_arrays(
                [pa.array(numbers, pa.int64()), pa.array(lines, pa.string())], ["number", "line"]
            )

    count = len(things)
    rows = session.range(0, count, 1, count).mapInArrow(run, SCHEMA).collect()
    return [json.loads(row["line"]) for row in sorted(rows, key=lambda row: row["number"])]

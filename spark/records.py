"""Stored messages decoded a batch at a time: what `decode` of shards/record.py says of each, as arrays.

`decode` and lists of its results took 1.6 us a message, half of an archive's time. Here the values of a batch
lie one behind the other in a buffer, and each step is done for all rows at once: read the heads, then walk
over the optional fields, each for the rows whose flags have it. A field is two numbers a row: where it begins
and where it ends.

    buffer    head(13) a/b hello | head(13) hash(16) c/d hi       two messages, the second with a key
    topic     [13, 16)             [50, 53)
    payload   [16, 21)             [53, 55)

`cut` makes a column of a field. Arrow is told that the buffer is twice as many strings as rows, each field
and the gap behind it, and takes every other one: 9 ns a row, and Python touches none of them.

A row that is not as it should be is left to `decode`, which says what is wrong with it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shards import record
from shards.errors import Corrupt
from shards.properties import CONTENT_TYPE, CORRELATION, EXPIRY, PAYLOAD_FORMAT, RESPONSE_TOPIC, USER
from shards.read import Row
from timeline.position import AT_MAX, ID_BYTES

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

HEADERS = pa.map_(pa.string(), pa.string())
_HEAD = np.dtype([("version", "u1"), ("flags", ">u2"), ("topic", ">u2"), ("due", ">u8")])
_FIXED = np.full(256, -1)
"""Bytes of each kind of property; 0: a length comes first; -1: there is no such property."""
_FIXED[[CONTENT_TYPE, RESPONSE_TOPIC, CORRELATION, USER]] = 0
_FIXED[PAYLOAD_FORMAT], _FIXED[EXPIRY] = 1, 4


class Field(NamedTuple):
    """Where a field is in the buffer: [start, end) of each row that has it, in the order of the rows."""

    start: Ints
    end: Ints
    has: Bools


class Records:
    """The fields of rows; times in ms, 0: none. Raises Corrupt."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        # With room behind the last row: whatever has a fixed length can be read at any place of a row.
        values = pa.array([*[value for _, _, value in rows], bytes(ID_BYTES)], pa.large_binary())
        _, ends, self._data = values.buffers()
        offsets = np.frombuffer(ends, np.int64, len(rows) + 1)
        self._start, self._end = offsets[:-1], offsets[1:]
        self.size: Ints = self._end - self._start
        self._require(self.size >= _HEAD.itemsize)
        head = self._at(self._start, _HEAD)
        flags = head["flags"].astype(np.int64)
        self.qos = flags & record.QOS_MASK
        self.encoding = (flags & record.ENCODING_MASK) >> record.ENCODING_SHIFT
        self.retain, self.drop_late = flags & record.RETAIN != 0, flags & record.DROP_LATE != 0
        self.stub, self.moved = flags & record.STUB != 0, flags & record.MOVED != 0
        self.due_ms = head["due"].astype(np.int64)
        at = self._extension(head["version"])
        self.expires_ms, at = self._number(at, flags & record.EXPIRES != 0, ">u8")
        self.id, at = _fixed(at, flags & record.HAS_ID != 0)
        self.key, at = _fixed(at, flags & record.HAS_KEY != 0)
        self.publisher, at = self._counted(at, flags & record.PUBLISHER != 0, ">u1")
        self.properties, at = self._counted(at, flags & record.PROPERTIES != 0, ">u4")
        self.zone, at = self._counted(at, flags & record.ZONE != 0, ">u1")
        self.schedule, at = self._counted(at, flags & record.SCHEDULE != 0, ">u1")
        self.when_ms, at = self._number(at, self.stub, ">u8")
        end = at + head["topic"]
        self.topic, self.payload = _whole(at, end), Field(end, self._end, ~self.stub)
        is_in_time = (self.due_ms | self.expires_ms | self.when_ms).view(np.uint64) <= AT_MAX
        self._require((self.qos < 3) & (self.encoding < 3) & (end <= self._end) & is_in_time)

    def _extension(self, version: npt.NDArray[np.uint8]) -> Ints:
        """Read the fields of version 2; where those of version 1 begin."""
        at = self._start + _HEAD.itemsize
        has = version == record.EXTENDED
        size, at = self._number(at, has, ">u2")
        end = at + size
        more, at = self._number(at, has, ">u2")
        owner, at = self._counted(at, more & record.OWNER != 0, ">u1")
        self.deliver_to, at = self._counted(at, more & record.DELIVER_TO != 0, ">u2")
        self.ordering_key, at = self._counted(at, more & record.ORDERED != 0, ">u1")
        found = owner.has * record.OWNER | self.deliver_to.has * record.DELIVER_TO
        found |= self.ordering_key.has * record.ORDERED
        self._require((has | (version == record.VERSION)) & (found == more) & (has == (more != 0)))
        self._require((at == end) & (end <= self._end))
        return end

    def cut(self, field: Field) -> pa.Array:
        """The field as bytes, null for rows without it."""
        if not field.has.any():
            return pa.nulls(len(field.has), pa.large_binary())
        offsets = np.empty(2 * len(field.has) + 1, np.int64)
        offsets[:-1:2], offsets[1::2], offsets[-1] = field.start, field.end, field.end[-1]
        buffers = [None, pa.py_buffer(offsets), self._data]
        fields_and_gaps = pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
        return fields_and_gaps.take(pa.array(np.arange(0, len(offsets) - 1, 2), mask=~field.has))

    def text(self, field: Field) -> pa.Array:
        """The field as text. What is no UTF-8 is replaced, as over HTTP."""
        found = self.cut(field)
        try:
            return found.cast(pa.string())
        except pa.ArrowInvalid:
            texts = [None if one is None else one.decode("utf-8", "replace") for one in found.to_pylist()]
            return pa.array(texts, pa.string())

    def names(self, field: Field) -> Bytes:
        """The bytes of an id or a key, for the rows that have it: (rows, 16)."""
        return self._at(field.start[field.has], np.dtype(f"V{ID_BYTES}")).view(np.uint8).reshape(-1, ID_BYTES)

    def headers(self) -> tuple[pa.Array, pa.Array]:
        """(headers, content type). Of a repeated header the last value stands at its first place."""
        content_type, rows, (name, name_end, value, value_end) = self._properties()
        names, values = self.text(_whole(name, name_end)), self.text(_whole(value, value_end))
        codes = names.dictionary_encode().indices.to_numpy().astype(np.int64)
        _, first, same = np.unique(rows << 32 | codes, return_index=True, return_inverse=True)
        if len(first) < len(rows):
            last = np.empty_like(first)
            last[same] = np.arange(len(rows))
            order = np.argsort(first)
            names, values, rows = names.take(first[order]), values.take(last[order]), rows[first[order]]
        offsets = np.searchsorted(rows, np.arange(len(self._rows) + 1)).astype(np.int32)
        return pa.MapArray.from_arrays(pa.array(offsets), names, values), self.text(content_type)

    def _properties(self) -> tuple[Field, Ints, Sequence[Ints]]:
        """(content type, row of each header, where its name and its value begin and end).

        A step reads the next property of every row that has one more."""
        content_type = Field(self._start.copy(), self._start.copy(), np.zeros(len(self._rows), np.bool_))
        found = [np.zeros((5, 0), np.int64)]
        rows = np.flatnonzero(self.properties.has)
        at, ends = self.properties.start[rows], self.properties.end[rows]
        while len(rows):
            kind = self._read(at, ">u1")
            fixed = _FIXED[kind]
            is_counted, is_user, is_type = fixed == 0, kind == USER, kind == CONTENT_TYPE
            start = at + 1 + 2 * is_counted
            end = start + fixed + is_counted * self._read(at + 1, ">u2")
            value_end = end + is_user * (2 + self._read(end, ">u2"))
            self._require((fixed >= 0) & (value_end <= ends), rows)
            found.append(np.stack((rows, start, end, end + 2, value_end))[:, is_user])
            for of, what in zip(content_type, (start, end, is_type), strict=True):
                of[rows[is_type]] = what[is_type]
            going = value_end < ends
            rows, at, ends = rows[going], value_end[going], ends[going]
        headers = np.concatenate(found, axis=1)
        of_row, *spans = headers[:, np.argsort(headers[1])]
        return content_type, of_row, spans

    def _counted(self, at: Ints, has: Bools, kind: str) -> tuple[Field, Ints]:
        """A field with its length in front, and where the next one begins. An empty one counts as none."""
        length, start = self._number(at, has, kind)
        return Field(start, start + length, length > 0), start + length

    def _number(self, at: Ints, has: Bools, kind: str) -> tuple[Ints, Ints]:
        """A number, 0 where there is none; and where the next field begins."""
        number = np.zeros(len(at), np.int64)
        if has.any():
            number[has] = self._read(at[has], kind)
        return number, at + has * np.dtype(kind).itemsize

    def _read(self, at: Ints, kind: str) -> Ints:
        return self._at(at, np.dtype(kind)).astype(np.int64)

    def _at(self, at: Ints, kind: np.dtype[Any]) -> npt.NDArray[Any]:
        """What lies at these places of the buffer. Those of a corrupt row may be anywhere."""
        room = self._data.size - kind.itemsize
        found: npt.NDArray[Any] = np.ndarray((room + 1,), kind, self._data, strides=(1,))[
            np.minimum(at, room)
        ]
        return found

    def _require(self, holds: Bools, rows: Ints | None = None) -> None:
        """Raise Corrupt for the first row of which it does not hold. `rows`: their numbers."""
        if holds.all():
            return
        number = int(np.argmin(holds))
        place, _, value = self._rows[number if rows is None else int(rows[number])]
        why = f"record of {len(value)} bytes has a field that cannot be"
        try:
            record.decode(value)
        except Corrupt as error:
            why = str(error)
        raise Corrupt(f"message at {place:024x}: {why}")


def _fixed(at: Ints, has: Bools) -> tuple[Field, Ints]:
    """An id or a key, and where the next field begins."""
    end = at + has * ID_BYTES
    return Field(at, end, has), end


def _whole(start: Ints, end: Ints) -> Field:
    """A field that every row has."""
    return Field(start, end, np.ones(len(start), np.bool_))

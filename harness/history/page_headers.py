"""The headers of a Parquet file's pages, read without decoding a page.

The footer of a file says how large its columns are once decompressed; a reader allocates what each
page says of itself. Only a file in which both agree is bounded by its footer, but for texts: the
values of a dictionary stand in the file once, and a row repeats one by a few bits.
"""

from __future__ import annotations

from typing import BinaryIO, TypeAlias

import attrs
import pyarrow.parquet as pq

HEADER_BYTES = 64 << 10
"""Of one header: it may hold the least and the greatest value of its page."""
PAGES_ALWAYS = 1_000
PAGES_PER_BYTE = 1 / 40
"""The smallest file of a run has one to 135 bytes."""
DEPTH_MAX = 4
FIELDS_MAX = 64

# Types of Thrift's compact protocol, then the numbers of fields in ``parquet.thrift``.
_BOOLEANS, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, 12
_UNCOMPRESSED, _COMPRESSED, _VALUES = 2, 3, 1
_DATA, _DICTIONARY, _DATA_V2 = 5, 7, 8
_ENCODING = {_DATA: 2, _DATA_V2: 4}  # the place of the field, by the kind of page
# Of texts: each for itself, one after the other, or by its place in the dictionary. Another lets a
# text begin as the one before it does: a few bytes stand for as many as that has.
_OF_TEXTS = frozenset({0, 2, 6, 8})
_TEXT = "BYTE_ARRAY"

Fields: TypeAlias = "dict[int, int | Fields]"


class PageMismatch(Exception):
    """The pages of a file are not those that its footer tells of."""


@attrs.frozen(kw_only=True)
class RepeatedTexts:
    """A column chunk whose texts stand in a dictionary of so many bytes: the column's ``path``, the
    number of its row ``group``, and how many values refer to it.
    """

    path: str
    group: int
    values: int
    dictionary_bytes: int

    @property
    def most_bytes(self) -> int:
        """What all texts together have at most."""
        return self.values * self.dictionary_bytes


def require_agreement(
    file: BinaryIO, metadata: pq.FileMetaData, size_bytes: int
) -> list[RepeatedTexts]:
    """Return the column chunks whose texts stand in a dictionary.

    Raises ``PageMismatch`` where a column's pages are larger, or hold other numbers of values,
    than ``metadata`` says, or where texts are encoded as no run's are.
    """
    found = []
    left = PAGES_ALWAYS + int(PAGES_PER_BYTE * size_bytes)
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if not group.num_rows:  # nothing is read of it, and no column has an offset
            continue
        for place in range(group.num_columns):
            column = group.column(place)
            pages, dictionary_bytes = _require_chunk(file, column, size_bytes, left)
            left -= pages
            if dictionary_bytes and column.physical_type == _TEXT:
                found.append(
                    RepeatedTexts(
                        path=column.path_in_schema,
                        group=number,
                        values=column.num_values,
                        dictionary_bytes=dictionary_bytes,
                    )
                )
    return found


def _require_chunk(
    file: BinaryIO, column: pq.ColumnChunkMetaData, size_bytes: int, left: int
) -> tuple[int, int]:
    """The number of pages of a column chunk, at most ``left``, and the bytes of its dictionary."""
    begin = column.data_page_offset
    if column.has_dictionary_page and column.dictionary_page_offset is not None:
        # It stands before the data, and counts in the column's size.
        begin = min(begin, column.dictionary_page_offset)
    end = begin + column.total_compressed_size
    if not 0 <= begin <= end <= size_bytes:
        raise PageMismatch(f"a column from byte {begin} to {end} of {size_bytes}")
    at, pages, values, uncompressed, dictionary_bytes = begin, 0, 0, 0, 0
    while at < end:
        pages += 1
        if pages > left:
            raise PageMismatch("more pages than a file of its size holds")
        file.seek(at)
        fields, length = _header(file.read(min(HEADER_BYTES, end - at)))
        compressed = _integer(fields, _COMPRESSED)
        at += length + compressed
        uncompressed += length + _integer(fields, _UNCOMPRESSED)
        # The page of a dictionary counts as none: its values are only referred to.
        dictionary_bytes += _integer(fields, _UNCOMPRESSED) if _DICTIONARY in fields else 0
        for kind, encoding in _ENCODING.items():
            data = fields.get(kind)
            if isinstance(data, dict):
                values += _integer(data, _VALUES)
                if column.physical_type == _TEXT and data.get(encoding) not in _OF_TEXTS:
                    raise PageMismatch(f"texts in encoding {data.get(encoding)}")
    told = (column.total_uncompressed_size, column.num_values)
    # Smaller is harmless: the limits of the footer hold all the more.
    if at != end or uncompressed > told[0] or values != told[1]:
        raise PageMismatch(
            f"pages of {uncompressed} bytes and {values} values in a column of {told[0]} bytes and "
            f"{told[1]} values"
        )
    return pages, dictionary_bytes


def _integer(fields: Fields, name: int) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or value < 0:
        raise PageMismatch(f"a page without field {name}")
    return value


def _header(data: bytes) -> tuple[Fields, int]:
    """The fields of a page's header, and its length."""
    try:
        return _struct(data, 0, 0)
    except IndexError:
        raise PageMismatch("a page without an end of its header") from None


def _struct(data: bytes, at: int, depth: int) -> tuple[Fields, int]:
    """A struct in Thrift's compact protocol at ``at``, and where it ends. Of the types, those of
    page headers. Raises ``IndexError`` at the end of ``data``.
    """
    if depth > DEPTH_MAX:
        raise PageMismatch("a page with a header that is nested too deeply")
    found: Fields = {}
    field = 0
    for _ in range(FIELDS_MAX):
        head, at = data[at], at + 1
        if head == 0:
            return found, at
        # A number is told as the step from the last one, if that is from 1 to 15.
        if head >> 4:
            field += head >> 4
        else:
            field, at = _signed(data, at)
        kind = head & 15
        # Its type is its value: nothing follows.
        if kind in _BOOLEANS:
            continue
        if kind == _STRUCT:
            found[field], at = _struct(data, at, depth + 1)
        elif kind in _INTEGERS:
            found[field], at = _signed(data, at)
        elif kind == _BINARY:
            length, at = _varint(data, at)
            at += length
        elif kind in (_BYTE, _DOUBLE):
            at += 1 if kind == _BYTE else 8
        else:
            raise PageMismatch(f"a page with a header of type {kind}")
    raise PageMismatch("a page with a header of too many fields")


def _signed(data: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at  # zigzag, so that small negative numbers are short


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    # 64 bits take up to ten groups of seven.
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise PageMismatch("a page with an integer of more than 64 bits")

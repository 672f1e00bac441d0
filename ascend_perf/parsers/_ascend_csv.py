"""CSV files of the Ascend exporters as columns: everything is read as bytes, numbers are converted digit by digit.

A float parser would lose digits (epoch microseconds need 19) and would take `N/A` or a trailing TAB for an error; so
pyarrow only splits the cells, and each column is converted by what it is known to hold.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from ascend_perf import files
from ascend_perf.errors import InputError
from ascend_perf.model.table import NULL, Bools, Floats, Ints, Text
from ascend_perf.model.trace import Dropped
from ascend_perf.parsers._numbers import decimal_scaled

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_BYTES: Final = 16 << 20
"""Bytes that pyarrow parses at a time; a longer row falls back to the csv module. Status: assumed."""

MAX_NUMBER_CHARS: Final = 48
"""Cells longer than this hold no number."""

MISSING_WORDS: Final = frozenset({"", "N/A", "NA", "null", "NULL", "None", "nan", "NaN", "--"})
"""Texts that stand for an unknown value."""

MISSING_IDS: Final = (4294967295, 18446744073709551615, 9223372036854775807, -1)
"""Ids that stand for "none": -1 in 32 and 64 bits, and a clipped one."""


def header(head: bytes) -> tuple[str, ...]:
    """Column names of the first line of a CSV, stripped; a name used twice gets `.1`, `.2` ... from its second use."""
    line = head.removeprefix(b"\xef\xbb\xbf").split(b"\n", 1)[0].decode("utf-8", "replace").rstrip("\r")
    try:
        cells = next(csv.reader([line], delimiter=delimiter(head)), [])
    except csv.Error:
        return ()
    seen: dict[str, int] = {}
    names = []
    for cell in (c.strip() for c in cells):
        count = seen.get(cell, 0)
        seen[cell] = count + 1
        names.append(f"{cell}.{count}" if count else cell)
    return tuple(names)


def delimiter(head: bytes) -> str:
    """What parts the cells: a comma, or the semicolon or TAB of a file that a spreadsheet saved."""
    line = head.removeprefix(b"\xef\xbb\xbf").split(b"\n", 1)[0]
    return "," if b"," in line else next((word.decode() for word in (b";", b"\t") if word in line), ",")


@dataclass
class CsvFile:
    """The cells of one CSV file. Columns are asked for by any of their names; a column that is absent is unknown.

    `dropped` counts rows that were refused: those with more cells than the header, and a last row that is cut. Cells
    that other rows lack are unknown: old exporters leave the last cells of some rows out.
    """

    path: Path
    names: tuple[str, ...]
    rows: int
    ragged: int
    size_bytes: int
    _columns: dict[str, pa.DictionaryArray | pa.BinaryArray | NDArray[np.bytes_]] = field(default_factory=dict)
    torn: int = 0
    """1 when the file ends within a row: its last cell may be half a number, so the row is not used."""

    def name(self, *aliases: str) -> str | None:
        """The first of the names that the file has."""
        return next((alias for alias in aliases if alias in self._columns), None)

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """Rows refused while reading."""
        refused = (("row with more cells than the header", self.ragged), ("last row is cut", self.torn))
        return tuple(Dropped(reason=reason, count=count) for reason, count in refused if count)

    def text(self, *aliases: str, value_of: Callable[[str], str | None] | None = None) -> Text:
        """A text column, stripped, with the words for "unknown" as unknown; `value_of` maps distinct values."""
        name = self.name(*aliases)
        if name is None:
            return Text.full(self.rows, None)
        codes, values = _encoded(self._columns[name])
        words = [value.decode("utf-8", "replace").strip() for value in values]

        def label(word: str) -> str | None:
            if word in MISSING_WORDS:
                return None
            return word if value_of is None else value_of(word)

        return _mapped(codes, words, label)

    def scaled(self, decimals: int, *aliases: str) -> Ints:
        """A decimal column as int64 multiples of 10**-decimals (us with decimals 3 are ns), exact."""
        name = self.name(*aliases)
        if name is None:
            return np.full(self.rows, NULL, np.int64)
        return decimal_scaled(self.cells(name), decimals)

    def ids(self, *aliases: str) -> Ints:
        """An integer column in which the usual "none" values are unknown."""
        values = self.scaled(0, *aliases)
        for none in MISSING_IDS:
            if none <= np.iinfo(np.int64).max:
                values = np.where(values == none, NULL, values)
        return values

    def floats(self, *aliases: str) -> Floats:
        """A float column; what is no number is NaN."""
        name = self.name(*aliases)
        if name is None:
            return np.full(self.rows, np.nan)
        codes, values = _encoded(self._columns[name])
        table = np.array([*(_float(value) for value in values), np.nan], np.float64)
        return table[codes]

    def select(self, rows: Bools) -> CsvFile:
        """The file with some of its rows only; those that were refused stay counted."""
        import pyarrow as pa

        mask = pa.array(rows)
        columns = {
            name: column[rows] if isinstance(column, np.ndarray) else column.filter(mask)
            for name, column in self._columns.items()
        }
        return CsvFile(self.path, self.names, int(rows.sum()), self.ragged, self.size_bytes, columns, self.torn)

    @staticmethod
    def joined(parts: Sequence[CsvFile]) -> CsvFile:
        """The rows of the parts of one table, one part after the other; a column absent in a part is empty there."""
        if len(parts) == 1:
            return parts[0]
        names = tuple(dict.fromkeys(name for part in parts for name in part._columns))
        columns = {name: _end_to_end([(part._columns.get(name), part.rows) for part in parts]) for name in names}
        ragged, size = sum(part.ragged for part in parts), sum(part.size_bytes for part in parts)
        torn = sum(part.torn for part in parts)
        return CsvFile(parts[0].path, names, sum(part.rows for part in parts), ragged, size, columns, torn)

    def cells(self, name: str) -> NDArray[np.bytes_]:
        """The bytes of a column, shape (n,), for the conversion of numbers (long cells are cut)."""
        column = self._columns[name]
        if isinstance(column, np.ndarray):
            return column
        if hasattr(column, "dictionary"):
            codes, values = _encoded(column)
            table = np.array([value[:MAX_NUMBER_CHARS] for value in values] or [b""], np.bytes_)
            return table[codes]
        return _matrix(column)


def read_csv(path: Path, *, numbers: Sequence[str] = (), skip: Sequence[str] = ()) -> CsvFile:
    """The cells of a CSV file.

    Args:
        path: the file.
        numbers: columns with mostly distinct numbers; the others are dictionary-encoded, which suits words and
            numbers that repeat.
        skip: columns that are not read.

    Raises:
        InputError: the file cannot be read, or has no header line.
    """
    head = files.head(path)
    names = header(head)
    if len(names) < 2:
        raise InputError(f"{path} has no header line of a CSV file")
    size = path.stat().st_size
    wanted = [name for name in names if name not in skip]
    torn = 0
    try:
        columns, ragged = _split(path, names, wanted, frozenset(numbers), delimiter(head))
    except _Unsplittable:
        columns, ragged, torn = _split_slowly(path, names, wanted, delimiter(head))
    rows = len(next(iter(columns.values()))) if columns else 0
    return CsvFile(path, names, rows, ragged, size, columns, torn)


class _Unsplittable(Exception):
    """pyarrow refused the file."""


def _split(
    path: Path, names: tuple[str, ...], wanted: list[str], numbers: frozenset[str], by: str
) -> tuple[dict[str, pa.DictionaryArray | pa.BinaryArray | NDArray[np.bytes_]], int]:
    import pyarrow as pa
    from pyarrow import csv as pa_csv

    if not _is_utf8(path):
        # pyarrow shows a refused row to its handler as text, and prints a traceback when that cannot be decoded.
        raise _Unsplittable("invalid UTF-8")
    ragged = short = 0

    def refuse(row: pa_csv.InvalidRow) -> str:
        nonlocal ragged, short
        if row.actual_columns < row.expected_columns:
            short += 1
        ragged += 1
        return "skip"

    words = pa.dictionary(pa.int32(), pa.binary())
    types = {name: pa.binary() if name in numbers else words for name in wanted}
    try:
        table = pa_csv.read_csv(
            _plain(path),
            read_options=pa_csv.ReadOptions(
                column_names=list(names), skip_rows=1, use_threads=False, block_size=BLOCK_BYTES
            ),
            parse_options=pa_csv.ParseOptions(delimiter=by, newlines_in_values=True, invalid_row_handler=refuse),
            convert_options=pa_csv.ConvertOptions(column_types=types, include_columns=wanted, check_utf8=False),
        )
    except pa.ArrowInvalid as error:
        raise _Unsplittable(str(error)) from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    if short:
        # Old exporters leave the last cells of some rows out (AI CPU rows without counters): those rows count.
        raise _Unsplittable("short rows")
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if column.num_chunks == 0:
            columns[name] = np.empty(0, np.bytes_)
        elif name in numbers:
            columns[name] = pa.concat_arrays(column.chunks)
        else:
            columns[name] = pa.concat_arrays(column.unify_dictionaries().chunks)
    return columns, ragged


def _plain(path: Path) -> Path | io.BytesIO:
    """What pyarrow reads: the file itself, or its content when it is gzip, which pyarrow tells by the name only."""
    return io.BytesIO(b"".join(files.blocks(path))) if files.is_gzip(path) else path


def _is_utf8(path: Path) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for block in files.blocks(path):
            decoder.decode(block)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _split_slowly(
    path: Path, names: tuple[str, ...], wanted: list[str], by: str
) -> tuple[dict[str, pa.DictionaryArray | pa.BinaryArray | NDArray[np.bytes_]], int, int]:
    """The csv module reads what pyarrow refuses: short rows, invalid UTF-8, quotes that never close."""
    import pyarrow as pa

    text = b"".join(files.blocks(path)).removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").replace("\0", "")
    rows = []
    ragged = last = 0
    limit = csv.field_size_limit(len(text) + 1)
    try:
        for index, row in enumerate(csv.reader(io.StringIO(text, newline=""), delimiter=by)):
            if index == 0 or not row:
                continue
            if len(row) <= len(names):
                rows.append([*row, *[""] * (len(names) - len(row))])
                last = len(row)
            else:
                ragged += 1
    except csv.Error as error:
        raise InputError(f"{path} is no CSV file: {error}") from None
    finally:
        csv.field_size_limit(limit)
    torn = int(bool(rows) and last < len(names) and not text.endswith(("\n", "\r")))
    if torn:
        rows.pop()
    places = {name: place for place, name in enumerate(names)}
    return {name: pa.array([row[places[name]].encode() for row in rows], pa.binary()) for name in wanted}, ragged, torn


def _encoded(column: pa.DictionaryArray | pa.BinaryArray | NDArray[np.bytes_]) -> tuple[NDArray[np.int32], list[bytes]]:
    """Codes and distinct values of a column."""
    if isinstance(column, np.ndarray):
        values, codes = np.unique(column, return_inverse=True)
        return codes.astype(np.int32), values.tolist()
    if not hasattr(column, "dictionary"):
        column = column.dictionary_encode()
    codes = column.indices.to_numpy(zero_copy_only=False).astype(np.int32)
    return codes, column.dictionary.to_pylist()


def _end_to_end(
    parts: Sequence[tuple[pa.DictionaryArray | pa.BinaryArray | NDArray[np.bytes_] | None, int]],
) -> pa.DictionaryArray | pa.BinaryArray:
    """One column of the parts' columns, each with its number of rows."""
    import pyarrow as pa

    arrays = []
    for column, rows in parts:
        if column is None or isinstance(column, np.ndarray):
            column = pa.array([b""] * rows, pa.binary())
        arrays.append(column)
    if all(array.type == pa.binary() for array in arrays):
        return pa.concat_arrays(arrays)
    words = pa.dictionary(pa.int32(), pa.binary())
    encoded = [array if hasattr(array, "dictionary") else array.dictionary_encode() for array in arrays]
    return pa.concat_arrays(pa.chunked_array(encoded, words).unify_dictionaries().chunks)


def _mapped(codes: NDArray[np.int32], words: list[str], label_of: Callable[[str], str | None]) -> Text:
    index: dict[str, int] = {}
    table = np.full(len(words) + 1, -1, np.int32)
    for code, word in enumerate(words):
        label = label_of(word)
        if label is not None:
            table[code] = index.setdefault(label, len(index))
    return Text(table[codes], list(index))


def _matrix(column: pa.BinaryArray) -> NDArray[np.bytes_]:
    """A binary arrow array as numpy bytes of one width, without a Python object per cell."""
    n = len(column)
    if n == 0:
        return np.empty(0, np.bytes_)
    _, offset_buffer, data = column.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[column.offset : column.offset + n + 1].astype(np.int64)
    lengths = np.minimum(np.diff(offsets), MAX_NUMBER_CHARS)
    width = max(1, int(lengths.max()))
    content = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    at = np.arange(width)
    inside = at < lengths[:, None]
    source = (offsets[:-1, None] + at)[inside]
    matrix = np.zeros((n, width), np.uint8)
    matrix[inside] = content[source]
    return matrix.view(f"S{width}").reshape(n)


def _float(cell: bytes) -> float:
    try:
        value = float(cell)
    except ValueError:
        return float("nan")
    return value if np.isfinite(value) else float("nan")

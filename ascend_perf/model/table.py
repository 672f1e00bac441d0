"""Columnar tables: int64, float64, bool and dictionary-encoded text columns of one length.

Numpy inside, pandas at the border: a kernel table of a million rows is a handful of arrays, and the command line
need not import pandas. Unknown values are `NULL` in int columns, NaN in float columns, code -1 in text columns;
`to_pandas` turns all three into pandas' missing value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Selection = Bools | Ints | slice

NULL: Final = int(np.iinfo(np.int64).min)
"""Unknown in an int column."""

_T = TypeVar("_T")


class Kind(Enum):
    """What a column holds."""

    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    TEXT = "text"


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table specification."""

    name: str
    kind: Kind
    unit: str = ""
    required: bool = False
    doc: str = ""


def _next(values: Sequence[str], value: str, start: int) -> int | None:
    try:
        return values.index(value, start)
    except ValueError:
        return None


class Text:
    """A dictionary-encoded text column: `codes` (int32, -1 unknown) into `values`."""

    __slots__ = ("codes", "values")

    def __init__(self, codes: NDArray[np.int32], values: Sequence[str]) -> None:
        self.codes = np.asarray(codes, np.int32)
        self.values = values

    @classmethod
    def of(cls, items: Iterable[str | None]) -> Text:
        """Encode text; None is unknown."""
        index: dict[str, int] = {}
        codes = [-1 if item is None else index.setdefault(item, len(index)) for item in items]
        return cls(np.array(codes, np.int32), list(index))

    @classmethod
    def full(cls, length: int, value: str | None) -> Text:
        """The same value in each row."""
        return cls(np.full(length, -1 if value is None else 0, np.int32), [] if value is None else [value])

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, row: int) -> str | None:
        code = int(self.codes[row])
        return None if code < 0 else self.values[code]

    def __iter__(self) -> Iterator[str | None]:
        return iter(self.to_list())

    def take(self, rows: Selection) -> Text:
        """The selected rows, sharing the dictionary."""
        return Text(self.codes[rows], self.values)

    def to_list(self) -> list[str | None]:
        """Decoded rows."""
        table: list[str | None] = [*self.values, None]
        return [table[code] for code in self.codes.tolist()]

    def flags(self, test: Callable[[str], bool]) -> Bools:
        """Rows for which `test` holds; it is called once per distinct value. Unknown is False."""
        table = np.array([*(bool(test(value)) for value in self.values), False], bool)
        return table[self.codes]

    def equals(self, value: str) -> Bools:
        """Rows that hold exactly `value`."""
        # Asked once per group or name of thousands: the search is left to the sequence itself.
        places: list[int] = []
        while (place := _next(self.values, value, places[-1] + 1 if places else 0)) is not None:
            places.append(place)
        if len(places) == 1:
            return np.asarray(self.codes == places[0], bool)
        return np.isin(self.codes, places)

    def isin(self, wanted: Iterable[str]) -> Bools:
        """Rows that hold one of `wanted`."""
        return self.flags(frozenset(wanted).__contains__)

    def numbers(self, value_of: Callable[[str], float]) -> Floats:
        """A float per row, computed once per distinct value; unknown is NaN."""
        table = np.array([*(value_of(value) for value in self.values), np.nan], np.float64)
        return table[self.codes]

    def relabel(self, label_of: Callable[[str], str | None]) -> Text:
        """Text derived from each distinct value (equal results share a code)."""
        index: dict[str, int] = {}
        table = np.empty(len(self.values) + 1, np.int32)
        table[-1] = -1
        for code, value in enumerate(self.values):
            label = label_of(value)
            table[code] = -1 if label is None else index.setdefault(label, len(index))
        return Text(table[self.codes], list(index))

    def compact(self) -> Text:
        """The same rows with unused values dropped from the dictionary."""
        is_used = np.zeros(len(self.values) + 1, bool)
        is_used[self.codes] = True  # an unknown one uses the last place
        used = np.flatnonzero(is_used[:-1])
        if len(used) == len(self.values):
            return self
        table = np.full(len(self.values) + 1, -1, np.int32)
        table[used] = np.arange(len(used), dtype=np.int32)
        return Text(table[self.codes], [self.values[code] for code in used.tolist()])

    @staticmethod
    def concat(parts: Sequence[Text]) -> Text:
        """Rows of all parts, one after the other, with one dictionary."""
        index: dict[str, int] = {}
        codes: list[NDArray[np.int32]] = []
        for part in parts:
            table = np.array([*(index.setdefault(v, len(index)) for v in part.values), -1], np.int32)
            codes.append(table[part.codes])
        return Text(np.concatenate(codes) if codes else np.empty(0, np.int32), list(index))


Values = Ints | Floats | Bools | Text


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """Name, row meaning and columns of a table. `open` tables accept further float columns (counters)."""

    name: str
    row: str
    columns: tuple[Column, ...]
    open: bool = False

    def column(self, name: str) -> Column:
        """The column called `name`.

        Raises:
            KeyError: the table has no such column.
        """
        for column in self.columns:
            if column.name == name:
                return column
        if self.open:
            return Column(name=name, kind=Kind.FLOAT)
        known = ", ".join(column.name for column in self.columns)
        raise KeyError(f"table {self.name} has no column {name!r}; it has {known}")


class Table:
    """Columns of one length that fit a `TableSpec`; checked once, when made.

    Optional columns that were not given read as all unknown. Columns that `keeping` dropped cannot be read any more:
    what was known must not turn into unknown without a word.

    Raises:
        ValueError: lengths differ, a required column is missing, or a dtype is wrong.
    """

    __slots__ = ("_columns", "_dropped", "_length", "spec")

    def __init__(self, spec: TableSpec, columns: Mapping[str, Values]) -> None:
        lengths = {len(values) for values in columns.values()}
        if len(lengths) > 1:
            raise ValueError(f"{spec.name}: columns differ in length: { {k: len(v) for k, v in columns.items()} }")
        self.spec = spec
        self._length = lengths.pop() if lengths else 0
        self._dropped: frozenset[str] = frozenset()
        self._columns: dict[str, Values] = {}
        for name, values in columns.items():
            self._columns[name] = _checked(spec.name, spec.column(name), values)
        missing = [c.name for c in spec.columns if c.required and c.name not in columns]
        if missing and self._length:
            raise ValueError(f"{spec.name}: required columns are missing: {', '.join(missing)}")

    def __len__(self) -> int:
        return self._length

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that were given."""
        return tuple(self._columns)

    def has(self, name: str) -> bool:
        """Whether at least one row of the column is known."""
        self.spec.column(name)
        self._require(name)
        values = self._columns.get(name)
        if values is None or self._length == 0:
            return False
        return bool(known(values).any())

    def ints(self, name: str) -> Ints:
        """An int64 column; unknown rows are `NULL`."""
        values = self._of(name, Kind.INT)
        return np.full(self._length, NULL, np.int64) if values is None else values  # type: ignore[return-value]

    def floats(self, name: str) -> Floats:
        """A float64 column; unknown rows are NaN."""
        values = self._of(name, Kind.FLOAT)
        return np.full(self._length, np.nan) if values is None else values  # type: ignore[return-value]

    def bools(self, name: str) -> Bools:
        """A bool column (False where it was not given)."""
        values = self._of(name, Kind.BOOL)
        return np.zeros(self._length, bool) if values is None else values  # type: ignore[return-value]

    def text(self, name: str) -> Text:
        """A text column; unknown rows have code -1."""
        values = self._of(name, Kind.TEXT)
        return Text.full(self._length, None) if values is None else values  # type: ignore[return-value]

    def _of(self, name: str, kind: Kind) -> Values | None:
        column = self.spec.column(name)
        if column.kind is not kind:
            raise TypeError(f"{self.spec.name}.{name} is {column.kind.value}, not {kind.value}")
        self._require(name)
        return self._columns.get(name)

    def _require(self, name: str) -> None:
        if name in self._dropped:
            raise LookupError(f"{self.spec.name}.{name} was dropped; load the profile to read it")

    def ends_ns(self) -> Ints:
        """`start_ns + dur_ns` of each row; unknown where either is."""
        start, dur = self.ints("start_ns"), self.ints("dur_ns")
        return np.where((start == NULL) | (dur == NULL), NULL, start + np.where(dur == NULL, 0, dur))

    def keeping(self, names: Iterable[str]) -> Table:
        """The same rows with some of the columns only; to read another one that was there is an error from now on."""
        wanted = frozenset(names)
        columns = {name: values for name, values in self._columns.items() if name in wanted}
        return self._made(columns, self._dropped | (self._columns.keys() - wanted), self._length)

    def _made(self, columns: dict[str, Values], dropped: frozenset[str], length: int) -> Table:
        """A table from checked columns of one length."""
        made = Table.__new__(Table)
        made.spec, made._columns, made._dropped, made._length = self.spec, columns, dropped, length
        return made

    def compact(self) -> Table:
        """The same with the unused words of each text column dropped from its dictionary."""
        columns = {n: v.compact() if isinstance(v, Text) else v for n, v in self._columns.items()}
        return self._made(columns, self._dropped, self._length)

    def select(self, rows: Selection) -> Table:
        """The selected rows (mask, indexes or slice)."""
        columns: dict[str, Values] = {
            n: v.take(rows) if isinstance(v, Text) else v[rows] for n, v in self._columns.items()
        }
        if self._dropped:
            return self._made(columns, self._dropped, len(np.arange(self._length)[rows]))
        return Table(self.spec, columns)

    def sorted_by(self, name: str) -> Table:
        """Rows in ascending order of an int column (stable)."""
        return self.select(np.argsort(self.ints(name), kind="stable"))

    def with_columns(self, columns: Mapping[str, Values]) -> Table:
        """The same rows with columns added or replaced."""
        if not self._dropped:
            return Table(self.spec, {**self._columns, **columns})
        checked = {name: _checked(self.spec.name, self.spec.column(name), values) for name, values in columns.items()}
        if any(len(values) != self._length for values in checked.values()):
            raise ValueError(f"{self.spec.name}: columns differ in length")
        return self._made({**self._columns, **checked}, self._dropped - checked.keys(), self._length)

    @classmethod
    def empty(cls, spec: TableSpec) -> Table:
        """A table without rows."""
        return cls(spec, {})

    @classmethod
    def concat(cls, spec: TableSpec, parts: Sequence[Table]) -> Table:
        """Rows of all parts, one after the other; a column absent in a part is unknown there."""
        parts = [part for part in parts if len(part)]
        names = dict.fromkeys(name for part in parts for name in part.names)
        columns: dict[str, Values] = {}
        for name in names:
            kind = spec.column(name).kind
            if kind is Kind.TEXT:
                columns[name] = Text.concat([part.text(name) for part in parts])
            elif kind is Kind.INT:
                columns[name] = np.concatenate([part.ints(name) for part in parts])
            elif kind is Kind.FLOAT:
                columns[name] = np.concatenate([part.floats(name) for part in parts])
            else:
                columns[name] = np.concatenate([part.bools(name) for part in parts])
        dropped = frozenset[str]().union(*(part._dropped for part in parts))
        if dropped:
            return parts[0]._made(columns, dropped, sum(map(len, parts)))
        return cls(spec, columns)

    def to_pandas(self) -> pd.DataFrame:
        """A DataFrame with nullable Int64, float64, bool and categorical columns in the order of the spec."""
        import pandas as pd

        order = [c.name for c in self.spec.columns] + [
            n for n in self.names if n not in {c.name for c in self.spec.columns}
        ]
        data: dict[str, object] = {}
        for name in order:
            kind = self.spec.column(name).kind
            if kind is Kind.TEXT:
                text = self.text(name)
                categories = pd.Index(_distinct(text.values), dtype=object)
                data[name] = pd.Categorical.from_codes(text.codes, categories=categories)
            elif kind is Kind.INT:
                values = self.ints(name)
                data[name] = pd.arrays.IntegerArray(np.where(values == NULL, 0, values), values == NULL)
            elif kind is Kind.FLOAT:
                data[name] = self.floats(name)
            else:
                data[name] = self.bools(name)
        frame: pd.DataFrame = pd.DataFrame(data, index=pd.RangeIndex(len(self)))
        return frame


def known(values: Values) -> Bools:
    """Which rows of a column are known."""
    if isinstance(values, Text):
        return values.codes >= 0
    if values.dtype == np.int64:
        return np.asarray(values != NULL, bool)
    if values.dtype == np.float64:
        return ~np.isnan(values)
    return np.ones(len(values), bool)


def _distinct(values: Sequence[str]) -> list[str]:
    if len(set(values)) != len(values):
        raise ValueError("a text dictionary holds a value twice")
    return list(values)


_DTYPES: Final = {Kind.INT: np.dtype(np.int64), Kind.FLOAT: np.dtype(np.float64), Kind.BOOL: np.dtype(bool)}


def _checked(table: str, column: Column, values: Values) -> Values:
    if column.kind is Kind.TEXT:
        if not isinstance(values, Text):
            raise ValueError(f"{table}.{column.name} must be a Text column")
        return values
    if isinstance(values, Text) or values.dtype != _DTYPES[column.kind]:
        seen = "Text" if isinstance(values, Text) else str(values.dtype)
        raise ValueError(f"{table}.{column.name} must be {_DTYPES[column.kind]}, got {seen}")
    return values

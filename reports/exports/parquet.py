"""Apache Parquet: the tables of the trace for pandas, Polars, DuckDB and Spark."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ascend_perf.model.table import NULL, Column, Kind, Table
from ascend_perf.reports.exports._exporter import Exporter, Request
from ascend_perf.reports.exports._tables import Texts, columns_of, is_given, write_tables

GROUP_ROWS: Final = 1 << 18
"""Rows of a row group."""

_TYPES: Final = {
    Kind.INT: pa.int64(), Kind.FLOAT: pa.float64(), Kind.BOOL: pa.bool_(),
    Kind.TEXT: pa.dictionary(pa.int32(), pa.string()),
}  # fmt: skip


def write_parquet(request: Request, folder: Path) -> tuple[str, ...]:
    """One file per rank and table: integers and floats exact, texts with a dictionary, unknown as null.

    Units and descriptions of the columns are in the metadata of their fields (`unit`, `doc`) too.

    Raises:
        InputError: no table has rows.
    """
    return write_tables(request, folder, suffix="parquet", unknown="null", write=_write)


def _write(table: Table, names: dict[str, str], texts: Texts, file: BinaryIO) -> None:
    columns = list(columns_of(table))
    fields = [
        pa.field(names[c.name], _TYPES[c.kind], metadata={k: v for k, v in (("unit", c.unit), ("doc", c.doc)) if v})
        for c in columns
    ]
    schema = pa.schema(fields, metadata={"table": table.spec.name, "row": table.spec.row})
    made = pa.Table.from_arrays([_array(table, column, texts) for column in columns], schema=schema)
    pq.write_table(made, file, compression="zstd", row_group_size=GROUP_ROWS)


def _array(table: Table, column: Column, texts: Texts) -> pa.Array:
    if not is_given(table, column):
        return pa.nulls(len(table), _TYPES[column.kind])
    if column.kind is Kind.INT:
        ints = table.ints(column.name)
        return pa.array(ints, mask=ints == NULL)
    if column.kind is Kind.FLOAT:
        floats = table.floats(column.name)
        return pa.array(floats, mask=np.isnan(floats))
    if column.kind is Kind.BOOL:
        return pa.array(table.bools(column.name))
    text = texts.of(table.text(column.name))
    codes = pa.array(text.codes, mask=text.codes < 0)
    return pa.DictionaryArray.from_arrays(codes, pa.array(text.values, pa.string()))


EXPORTER: Final = Exporter(
    name="parquet",
    suffix="parquet",
    summary="a folder with every table of every rank as Parquet, and tables.json that describes the columns",
    write_folder=write_parquet,
)

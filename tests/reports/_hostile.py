"""Texts that a damaged or hostile trace may hold, and traces that hold them in every text field."""

from __future__ import annotations

from typing import Final

import numpy as np

from ascend_perf.model.table import Kind, Table, Text, Values
from ascend_perf.model.tables import ALL
from ascend_perf.model.trace import Meta, Trace

HOSTILE: Final = (
    "</script><script>alert(1)</script>", "\"quoted\" and 'quoted'", "back\\slash\\", "nul\x00bell\x07esc\x1b[31m",
    "\u202eright to left\u2066", "x" * 100_000, "\U0001f680 emoji \u4e2d\u6587", "lone \ud800 surrogate \udfff",
    "=HYPERLINK(\"http://a\")", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "a,b;c\r\nd\ne", "", " ", "../../etc/passwd",
    "/home/somebody/x", "C:\\Users\\x", "{\"a\":1}", "]]>&lt;<!--", "_x0041_", "\ufffe\uffff", "\u2028\u2029",
    "\x7f\x85",
    "{}", "%s %d", "NaN", "\ufeffmark",
)  # fmt: skip


def hostile_trace() -> Trace:
    """Rows of every table whose text columns hold each of `HOSTILE`, and whose other columns hold plain values."""
    count = len(HOSTILE)
    tables = {}
    for spec in ALL.values():
        columns: dict[str, Values] = {}
        for place, column in enumerate(spec.columns):
            if column.kind is Kind.TEXT:
                columns[column.name] = Text.of([HOSTILE[(row + place) % count] for row in range(count)])
            elif column.kind is Kind.INT:
                columns[column.name] = np.arange(count, dtype=np.int64) * 1000 + 1
            elif column.kind is Kind.FLOAT:
                columns[column.name] = np.arange(count) / 8
            else:
                columns[column.name] = np.arange(count) % 2 == 0
        if spec.open:
            columns["=counter\x00,\"x\""] = np.arange(count) / 4
        tables[spec.name] = Table(spec, columns)
    return Trace(tables, Meta(label="../\x00<label>", rank=None))

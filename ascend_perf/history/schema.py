"""Tables of the history; `migrations/versions` makes and changes them, and a test compares both."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

REVISION: Final = "0001"
"""Version of the tables that this module describes; the newest of `migrations/versions`."""

METADATA: Final = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _of(table: str, *, primary: bool = False) -> sa.Column[int]:
    """A column that goes away with the row it refers to."""
    reference = sa.ForeignKey(f"{table}.id", ondelete="CASCADE")
    name = "series_id" if table == "series" else "result_set_id"
    return sa.Column(name, sa.Integer, reference, primary_key=primary, nullable=False)


RESULT_SETS: Final = sa.Table(
    "result_sets",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("identity", sa.String(64), nullable=False, unique=True),  # of suite, branch, time, commit and machine
    sa.Column("content", sa.String(64), nullable=False),  # of everything in the file
    sa.Column("suite", sa.Text, nullable=False),
    sa.Column("branch", sa.Text, nullable=False),  # empty where unknown
    sa.Column("commit_id", sa.Text),
    sa.Column("created", sa.Text, nullable=False),  # as the file has it
    sa.Column("at_s", sa.Float, nullable=False),  # place in the trend: of the commit where known, else of the file
    sa.Column("machine", sa.String(12), nullable=False),
    sa.Column("fingerprint", sa.Text, nullable=False),  # JSON
    sa.Column("tool_version", sa.Text, nullable=False),
    sa.Column("benchmarks", sa.Integer, nullable=False),
    sa.Column("launches", sa.Integer, nullable=False),
    sa.Column("failed", sa.Integer, nullable=False),
    sa.Column("is_simulated", sa.Boolean, nullable=False),
    sa.Column("folder", sa.Text, nullable=False),  # where the file lay when it was added: reports are looked for there
    sa.Column("report_url", sa.Text),
    sa.Column("document", sa.LargeBinary, nullable=False),  # the file, zlib
    sa.Column("added", sa.Text, nullable=False),
    sa.Index(None, "suite", "branch", "machine", "at_s"),
    sa.Index(None, "at_s", "id"),
)

ATTACHMENTS: Final = sa.Table(
    "attachments",
    METADATA,
    _of("result_sets", primary=True),
    sa.Column("path", sa.String(400), primary_key=True),  # relative to the result file
    sa.Column("content", sa.LargeBinary, nullable=False),  # zlib
)
"""Snapshots of operators that a result file names: a baseline needs them."""

SERIES: Final = sa.Table(
    "series",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("identity", sa.String(64), nullable=False, unique=True),  # of all that follows
    sa.Column("suite", sa.Text, nullable=False),
    sa.Column("branch", sa.Text, nullable=False),
    sa.Column("machine", sa.String(12), nullable=False),
    sa.Column("benchmark", sa.Text, nullable=False),
    sa.Column("work", sa.String(12), nullable=False),  # of every setting: other work is another series
    sa.Column("metric", sa.Text, nullable=False),
    sa.Column("unit", sa.String(20), nullable=False),
    sa.Column("better", sa.String(10), nullable=False),
    sa.Column("is_exact", sa.Boolean, nullable=False),  # counts: no noise
    sa.Column("is_simulated", sa.Boolean, nullable=False),
    sa.Index(None, "suite", "branch", "machine"),
)

POINTS: Final = sa.Table(
    "points",
    METADATA,
    _of("series", primary=True),
    _of("result_sets", primary=True),
    sa.Column("value", sa.Float(53), nullable=False),  # median of the complete runs
    sa.Column("low", sa.Float(53), nullable=False),
    sa.Column("high", sa.Float(53), nullable=False),
    sa.Column("launches", sa.Integer, nullable=False),
    sa.Index(None, "result_set_id"),
    sqlite_with_rowid=False,  # values of a series lie together, whenever they were added
)

DECISIONS: Final = sa.Table(
    "decisions",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    _of("series"),
    _of("result_sets"),
    sa.Column("verdict", sa.String(10), nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("decided", sa.Text, nullable=False),
    sa.UniqueConstraint("series_id", "result_set_id"),
)
"""What people said of change points: accepted (a new level begins here) or dismissed (it is none)."""

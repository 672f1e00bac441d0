"""The first tables. Written out: later versions of `schema` must not change what an old database looks like."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make all tables."""
    op.create_table(
        "result_sets",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("identity", sa.String(64), nullable=False),
        sa.Column("content", sa.String(64), nullable=False),
        sa.Column("suite", sa.Text, nullable=False),
        sa.Column("branch", sa.Text, nullable=False),
        sa.Column("commit_id", sa.Text),
        sa.Column("created", sa.Text, nullable=False),
        sa.Column("at_s", sa.Float, nullable=False),
        sa.Column("machine", sa.String(12), nullable=False),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("tool_version", sa.Text, nullable=False),
        sa.Column("benchmarks", sa.Integer, nullable=False),
        sa.Column("launches", sa.Integer, nullable=False),
        sa.Column("failed", sa.Integer, nullable=False),
        sa.Column("is_simulated", sa.Boolean, nullable=False),
        sa.Column("folder", sa.Text, nullable=False),
        sa.Column("report_url", sa.Text),
        sa.Column("document", sa.LargeBinary, nullable=False),
        sa.Column("added", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_result_sets"),
        sa.UniqueConstraint("identity", name="uq_result_sets_identity"),
    )
    op.create_index(
        "ix_result_sets_suite_branch_machine_at_s", "result_sets", ["suite", "branch", "machine", "at_s"]
    )
    op.create_index("ix_result_sets_at_s_id", "result_sets", ["at_s", "id"])
    op.create_table(
        "attachments",
        sa.Column("result_set_id", sa.Integer, nullable=False),
        sa.Column("path", sa.String(400), nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("result_set_id", "path", name="pk_attachments"),
        _reference("attachments", "result_set_id", "result_sets"),
    )
    op.create_table(
        "series",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("identity", sa.String(64), nullable=False),
        sa.Column("suite", sa.Text, nullable=False),
        sa.Column("branch", sa.Text, nullable=False),
        sa.Column("machine", sa.String(12), nullable=False),
        sa.Column("benchmark", sa.Text, nullable=False),
        sa.Column("work", sa.String(12), nullable=False),
        sa.Column("metric", sa.Text, nullable=False),
        sa.Column("unit", sa.String(20), nullable=False),
        sa.Column("better", sa.String(10), nullable=False),
        sa.Column("is_exact", sa.Boolean, nullable=False),
        sa.Column("is_simulated", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_series"),
        sa.UniqueConstraint("identity", name="uq_series_identity"),
    )
    op.create_index("ix_series_suite_branch_machine", "series", ["suite", "branch", "machine"])
    op.create_table(
        "points",
        sa.Column("series_id", sa.Integer, nullable=False),
        sa.Column("result_set_id", sa.Integer, nullable=False),
        sa.Column("value", sa.Float(53), nullable=False),
        sa.Column("low", sa.Float(53), nullable=False),
        sa.Column("high", sa.Float(53), nullable=False),
        sa.Column("launches", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("series_id", "result_set_id", name="pk_points"),
        _reference("points", "series_id", "series"),
        _reference("points", "result_set_id", "result_sets"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_points_result_set_id", "points", ["result_set_id"])
    op.create_table(
        "decisions",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("series_id", sa.Integer, nullable=False),
        sa.Column("result_set_id", sa.Integer, nullable=False),
        sa.Column("verdict", sa.String(10), nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("decided", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_decisions"),
        sa.UniqueConstraint("series_id", "result_set_id", name="uq_decisions_series_id_result_set_id"),
        _reference("decisions", "series_id", "series"),
        _reference("decisions", "result_set_id", "result_sets"),
    )


def _reference(table: str, column: str, target: str) -> sa.ForeignKeyConstraint:
    name = f"fk_{table}_{column}"
    return sa.ForeignKeyConstraint([column], [f"{target}.id"], name=name, ondelete="CASCADE")

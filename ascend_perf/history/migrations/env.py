"""What Alembic runs: the migrations, on the connection that the store gives it."""

from __future__ import annotations

from alembic import context

from ascend_perf.history.schema import METADATA

# Batch mode: SQLite cannot alter columns, Alembic copies the table there.
context.configure(
    connection=context.config.attributes["connection"], target_metadata=METADATA, render_as_batch=True
)
context.run_migrations()

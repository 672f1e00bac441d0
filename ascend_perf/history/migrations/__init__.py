"""Versions of the tables of the history, made and changed by Alembic."""

"""Months of results: a database of result files, change points in their trends, and what a page of them shows."""

"""One module per question; see docs/analyzers.md."""

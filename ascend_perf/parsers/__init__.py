"""One module per format; see docs/parsers.md."""

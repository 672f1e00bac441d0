"""One module per source of measurements; see docs/collectors.md."""

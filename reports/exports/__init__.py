"""One module per format that `ascend-perf export` writes; see docs/report.md. Adding one needs no other file."""

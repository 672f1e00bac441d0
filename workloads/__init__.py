"""Reference workloads, one module each; see docs/workloads.md."""

"""Run a workload in a process of its own and keep what was measured in a run directory."""

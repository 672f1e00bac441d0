"""The vocabulary: tables, traces, runs, findings. Frozen, no input or output."""

"""The gate: whether HEAD does the same work as BASE without more of it, and not slower beyond doubt."""

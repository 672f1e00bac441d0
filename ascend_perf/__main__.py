"""`python -m ascend_perf`."""

from ascend_perf.cli import main

main()

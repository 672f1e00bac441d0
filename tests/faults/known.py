"""What is not reached, and why: printed in docs/evaluation.md. A kind leaves these lists when it is reached."""

from __future__ import annotations

from typing import Final

KNOWN_MISSES: Final[dict[str, str]] = {}
"""Kinds that are missed, come with a false finding, or too late in the list, at medium or strong strength."""

KNOWN_FALSE: Final[dict[str, tuple[str, ...]]] = {}
"""Codes of the false findings that come with these kinds; the planted cause is found beside them all the same."""

KNOWN_WEAK: Final[dict[str, str]] = {
    "autocast-casts": "row C-10 begins at 5 % of kernel time",
    "layout-copies": "row C-10 begins at 5 % of kernel time",
    "view-copies": "row C-10 begins at 5 % of kernel time",
    "preprocess-host": "idle time between steps counts from 1 ms; 4 % of these steps are 0.3 ms",
    "python-before-step": "in jobs with short steps: idle time between steps counts from 1 ms",
    "python-after-step": "in jobs with short steps: idle time between steps counts from 1 ms",
    "loader-slow": "in jobs with short steps: fetches of a batch count from 10 ms or a tenth of the step",
    "gc": "in jobs with short steps: row H-07 begins at collections of 1 ms",
    "sync-cpu": "in jobs with short steps: the host's own work behind the copies hides part of it",
    "loop-optimizer": "in jobs with short steps: row C-14 begins at 5 % of the step",
    "collectives-issued-late": "not all ranks pass 3 % of the step",
    "clock-constant": "row P-01 begins 5 % below the rated clock",
    "loss-oscillates": "row Q-02 begins at swings of 10 %; smoothed, a swing of 12 % is less",
    "experts-uneven": "row E-01 begins at 1.2 times the mean of the group",
    "service-cache-full": "in services of other sizes: row V-04 begins at 5 % of the requests' time",
    "service-dp-uneven": "in services of other sizes: row V-07 begins at a spread of 20 %",
    "micro-batches-few": "10 micro-batches on 2 stages wait 9 %, which is their ideal bubble; row L-01 begins at 10 %",
}
"""Kinds that are missed at weak strength: below the threshold of their row."""

KNOWN_GAINS: Final[dict[str, str]] = {
    "dispatch-slow": "weak: H-03 and H-01 share the idle time, and one half stays below its threshold",
    "loop-optimizer": "the bound counts the whole optimizer phase; a fused one still needs a part of it",
    "experts-one-by-one": "the bound is against the peaks of the device; the planted time is against a grouped product "
    "at 85 % of them",
    "copies-blocking": "the host's time between the copies is idle time, not theirs",
    "collectives-issued-late": "what the host is late for one collective hides behind the wait for another rank",
    "clock-constant": "kernels that memory bounds do not follow the clock",
}
"""Kinds whose predicted bound is more than 20 % off at some strength."""

KNOWN_NOISE: Final[dict[str, str]] = {}
"""Healthy jobs with a finding of medium severity or above."""

REAL_MISSES: Final[dict[str, str]] = {
    "late-peer": "beside a rank that all wait for much longer, row N-05 names another from 5 % of the step",
    "loader-slow+late-peer": "as late-peer",
    "gpu-loader-slow": "fetches of a batch count from 10 ms or a tenth of the step; H-01 names the idle time",
}
"""Kinds planted into real profiles that are missed at weak strength: below a threshold."""

REAL_FALSE: Final[dict[str, str]] = {}
"""Kinds planted into real profiles that come with a false finding: its code first, then why."""

REAL_GAINS: Final[dict[str, str]] = {
    "sync-item": "weak: the job's own synchronising calls, alone below the threshold, are named with the planted ones",
    "stage-products-memory": "the bound is the time of the MAC pipe: what the products lost before is named with it",
}
"""Kinds planted into real profiles whose finding grows by more than 20 % off the planted time at some strength."""

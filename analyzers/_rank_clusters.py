"""Ranks that spend their steps alike, and those that do not: single linkage over computing, communication and idle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ascend_perf.analyzers._communication import ranks_words
from ascend_perf.analyzers._stages import RankView
from ascend_perf.analyzers._tables import Col, result_table
from ascend_perf.model.finding import ResultTable, Words
from ascend_perf.model.table import Floats, Ints
from ascend_perf.units import format_ratio

ALIKE_RATIO: Final = 0.05
"""Two ranks are alike when none of their figures differs by more than this part of the median step. Source: the spread
from which ranks are uneven in msprof-analyze. Status: vendor."""
MAX_OUTLIER_RATIO: Final = 0.25
"""Clusters of at most this part of the ranks stand out, beside a larger one. Status: assumed."""
MIN_RANKS: Final = 3
"""Of fewer ranks none stands out. Status: assumed."""
_AT_ONCE: Final = 256
"""Ranks whose distances to all others are held in memory at a time."""
FIGURES: Final = ("computing", "communication_not_overlapped", "free")


@dataclass(frozen=True, kw_only=True)
class Clusters:
    """Clusters of ranks, the largest first, then by their lowest rank."""

    of: Ints
    """Number of the cluster of each rank, from 0."""
    profiles: Floats
    """Computing, exposed communication and idle time of each rank per step, ns; shape (ranks, 3)."""
    centres: Floats
    """The same of each cluster: medians."""
    is_outlier: tuple[bool, ...]

    @property
    def count(self) -> int:
        """Number of clusters."""
        return len(self.centres)


def profiles_of(views: tuple[RankView, ...]) -> Floats:
    """Computing, exposed communication and idle time of each rank per step, ns; shape (ranks, 3)."""
    rows = [
        [getattr(view.split, name) / max(1, view.steps) for name in ("computing_ns", "exposed_ns", "free_ns")]
        for view in views
    ]
    return np.array(rows, np.float64).reshape(len(views), 3)


def cluster(profiles: Floats) -> Clusters:
    """Ranks in one cluster are linked by a chain of ranks each of which is like the next.

    The distance of two ranks is the largest difference among their figures. Nothing depends on the order of ranks.

    Args:
        profiles: ns per step, shape (ranks, figures).
    """
    count = len(profiles)
    limit = ALIKE_RATIO * float(np.median(profiles.sum(axis=1))) if count else 0.0
    label = np.full(count, -1, np.int64)
    found = 0
    for first in range(count):
        if label[first] >= 0:
            continue
        label[first] = found
        open_rows = np.array([first])
        while len(open_rows):
            free = np.flatnonzero(label < 0)
            near = np.zeros(len(free), bool)
            for at in range(0, len(open_rows), _AT_ONCE):
                part = profiles[open_rows[at : at + _AT_ONCE]]
                near |= (np.abs(part[:, None, :] - profiles[free][None, :, :]).max(axis=2) <= limit).any(axis=0)
            open_rows = free[near]
            label[open_rows] = found
        found += 1
    sizes = np.bincount(label, minlength=found)
    order = sorted(range(found), key=lambda number: (-int(sizes[number]), number))
    place = np.empty(found, np.int64)
    place[order] = np.arange(found)
    of = place[label] if count else label
    centres = np.array([np.median(profiles[of == number], axis=0) for number in range(found)]).reshape(found, -1)
    sizes = sizes[order]
    outliers = tuple(
        count >= MIN_RANKS and int(size) <= MAX_OUTLIER_RATIO * count and int(size) < int(sizes[0]) for size in sizes
    )
    return Clusters(of=of, profiles=profiles, centres=centres, is_outlier=outliers)


def rank_clusters(views: tuple[RankView, ...]) -> ResultTable | None:
    """Table of the clusters; None for a single rank."""
    if len(views) < 2:
        return None
    found = cluster(profiles_of(views))
    ranks = np.array([view.rank for view in views], np.int64)
    members = [ranks[found.of == number] for number in range(found.count)]
    nearest = [
        int(members[number][int(np.argmin(np.abs(found.profiles[found.of == number] - centre).max(axis=1)))])
        for number, centre in enumerate(found.centres)
    ]
    apart = found.centres - found.centres[0]
    most = np.abs(apart).argmax(axis=1)
    step = float(np.median(found.profiles.sum(axis=1)))
    return result_table(
        "rank-clusters",
        Words("Ranks that behave alike", "行为相近的卡"),
        (
            Col("cluster", "Cluster", "聚类", list(range(1, found.count + 1))),
            Col("ranks", "Ranks", "Rank", [ranks_words(own.tolist()).en for own in members]),
            Col("count", "Number of ranks", "卡数", [len(own) for own in members], "count"),
            Col("class", "Stands out", "离群", ["outlier" if out else None for out in found.is_outlier]),
            Col("example", "Typical rank", "代表 Rank", nearest),
            Col("computing_ns", "Computing", "计算", found.centres[:, 0], "ns"),
            Col("exposed_ns", "Not overlapped", "未被掩盖的通信", found.centres[:, 1], "ns"),
            Col("free_ns", "Free", "空闲（Free）", found.centres[:, 2], "ns"),
            Col(
                "component", "Differs most in", "差异最大的部分",
                [None if number == 0 else FIGURES[int(at)] for number, at in enumerate(most)],
            ),
            Col(
                "difference_ratio", "By, share of the step", "差异占单步比例",
                [None if n == 0 or not step else float(apart[n, at]) / step for n, at in enumerate(most)], "ratio",
            ),
        ),
        note=Words(
            f"Per step. Ranks are alike when computing, exposed communication and idle time each differ by at most "
            f"{format_ratio(ALIKE_RATIO)} of the median step; a cluster is what such ranks link together. Differences "
            f"are against the largest cluster; clusters of at most {format_ratio(MAX_OUTLIER_RATIO)} of the ranks "
            "stand out.",
            f"均为每步数值。计算、未被掩盖的通信与空闲各自相差不超过单步中位数的 {format_ratio(ALIKE_RATIO)} "
            f"的卡视为相近，相近的卡相连成一类。差异相对于最大的一类；卡数不超过 "
            f"{format_ratio(MAX_OUTLIER_RATIO)} 的类标为离群。",
        ),
    )  # fmt: skip

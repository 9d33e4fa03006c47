"""The ranks that this process has started last: what `%%px` and a second `cluster` mean."""

from __future__ import annotations

from .cluster_ranks import ClusterRanks

_current: ClusterRanks | None = None


def current() -> ClusterRanks | None:
    """Those ranks, whether they run or have ended."""
    return _current


def stop_others(ranks: ClusterRanks) -> None:
    """Stop those that are not these: there is one cluster in a process."""
    if _current not in (None, ranks):
        _current.stop()


def are(ranks: ClusterRanks) -> None:
    """Let these be the ones."""
    global _current
    _current = ranks

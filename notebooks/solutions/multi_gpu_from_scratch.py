"""Solutions of the exercises of lesson 04; `tests/answers/test_checks.py` runs them."""

import torch


def shares(batch_size: int, speeds: list[float]) -> list[int]:
    """In proportion to the speeds; what rounding leaves over goes to the fastest."""
    counts = [
        int(batch_size * speed / sum(speeds)) for speed in speeds
    ]
    counts[speeds.index(max(speeds))] += batch_size - sum(counts)
    return counts


@torch.no_grad()
def all_reduce_buckets(grads: list[list[torch.Tensor]]) -> None:
    """One flat tensor a device: summed on the first, sent back, cut up again."""
    flats = [torch.cat([g.flatten() for g in rank]) for rank in grads]
    for flat in flats[1:]:
        flats[0] += flat.to(flats[0].device)
    for rank in grads:
        total = flats[0].to(rank[0].device)
        pieces = total.split([g.numel() for g in rank])
        for g, piece in zip(rank, pieces, strict=True):
            g.copy_(piece.view_as(g))


def accumulate(loss, X, y, params, pieces: int) -> None:
    """backward() adds to .grad, and frees the activations of its piece."""
    for X_piece, y_piece in zip(
        X.tensor_split(pieces), y.tensor_split(pieces), strict=True
    ):
        loss(X_piece, y_piece, params).backward()

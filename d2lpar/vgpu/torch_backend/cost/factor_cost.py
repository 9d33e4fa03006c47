"""What factorizations of matrices cost: their FLOP, and what they do column by column.

FLOP are those of LAPACK Working Note 41 (Blackford and Dongarra, 1999) and of Golub and Van Loan,
"Matrix Computations" (4th edition, 2013): §5.2 (QR), §8.3 (symmetric eigenvalues), §8.6 (singular
values), §7.5 (others). Each column waits for the one before; and half of what makes a matrix
tridiagonal, or bidiagonal, are products with a vector, which read all that is left of the matrix
for each column. As a rule libraries take longer, and of small matrices, whose columns take a few
kernels each, many times as long: no figure of a GPU was fitted. Vectors are computed also where
values are asked for alone, as torch does it for subclasses of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch

from ...sim.pricing.kernel_cost import Cost, Kernel
from ..private import torch_operators
from ..private.op_schema import aten


class FactorCost(Cost):
    """Its FLOP are not rounded to TF32: cuSOLVER and MAGMA do not."""

    __slots__ = ()

    def in_tf32(self) -> Cost:
        """Itself."""
        return self


def _lu(m: int, n: int) -> float:
    return n * n * (m - n / 3)


def _qr(m: int, n: int) -> float:
    return 2 * _lu(m, n)


def _svd(m: int, n: int) -> float:
    return min(14 * m * n * n + 8 * n**3, 6 * m * n * n + 20 * n**3)


# FLOP, and the numbers that products with a vector read, of m by n (the smaller).
_FACTORS: dict[object, Callable[[int, int], tuple[float, float]]] = {
    aten.linalg_cholesky_ex: lambda m, n: (n**3 / 3, 0),
    aten.linalg_ldl_factor_ex: lambda m, n: (n**3 / 3, 0),
    aten.cholesky_inverse: lambda m, n: (2 * n**3 / 3, 0),
    aten.linalg_lu_factor_ex: lambda m, n: (_lu(m, n), 0),
    aten.linalg_lu: lambda m, n: (_lu(m, n), 0),
    aten.linalg_inv_ex: lambda m, n: (2 * n**3, 0),
    torch_operators.solve: lambda m, n: (_lu(n, n), 0),
    torch_operators.determinant: lambda m, n: (_lu(n, n), 0),
    torch_operators.log_determinant: lambda m, n: (_lu(n, n), 0),
    aten.geqrf: lambda m, n: (_qr(m, n), 0),
    aten.linalg_householder_product: lambda m, n: (_qr(m, n), 0),
    aten.linalg_qr: lambda m, n: (2 * _qr(m, n), 0),
    aten.linalg_lstsq: lambda m, n: (_qr(m, n), 0),
    aten.linalg_pinv: lambda m, n: (_svd(m, n) + 2 * m * n * n, 2 * n**3 / 3),
    torch_operators.symmetric_eigenvalues: lambda m, n: (9 * n**3, n**3 / 6),  # a triangle
    torch_operators.singular_values: lambda m, n: (_svd(m, n), 2 * n**3 / 3),
    aten.linalg_eig: lambda m, n: (25 * n**3, n**3 / 2),
    torch_operators.eigenvalues: lambda m, n: (10 * n**3, n**3 / 2),
}

# Where the matrix and the right-hand sides stand among the arguments, and FLOP for each of these.
_SOLVES: dict[object, tuple[int, int, Callable[[int, int], float]]] = {
    aten.cholesky_solve: (1, 0, lambda m, n: 2 * n * n),
    aten.linalg_lu_solve: (0, 2, lambda m, n: 2 * n * n),
    aten.linalg_solve_triangular: (0, 1, lambda m, n: n * n),
    torch_operators.solve: (0, 1, lambda m, n: 2 * n * n),
    aten.linalg_lstsq: (0, 1, lambda m, n: 4 * m * n),
}


def factoring(
    packet: object,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    nbytes: int,
    dtype: str,
    times: int,
) -> Cost | None:
    """The cost of a factorization, or of solving by one; None for other operations."""
    if packet not in _FACTORS and packet not in _SOLVES:
        return None
    solves = _SOLVES.get(packet)
    a: torch.Tensor = args[solves[0] if solves else 0]
    n, m = sorted(a.shape[-2:])
    flops, read = _FACTORS[packet](m, n) if packet in _FACTORS else (0, 0)
    flops, read = prod(a.shape[:-2]) * flops, prod(a.shape[:-2]) * read
    if solves is not None:
        _, second, each = solves
        flops += each(m, n) * _right_sides(a, args[second], left=kwargs.get("left", True))
    by_columns = Kernel(0, int(read) * a.element_size(), serial_reads=n)
    return FactorCost(by_columns, Kernel(int(flops) * times, nbytes), dtype=dtype)


def _right_sides(a: torch.Tensor, b: torch.Tensor, *, left: bool) -> int:
    """How many a matrix is solved for, or each of several, which may share one another's."""
    if b.dim() == 1 or b.shape == a.shape[:-1]:  # a vector for each
        return prod(a.shape[:-2])
    return prod(torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])) * b.shape[-1 if left else -2]

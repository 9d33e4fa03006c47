"""What factorizations of matrices cost at least: their FLOP, and what they do column by column.

FLOP are those of LAPACK Working Note 41 (Blackford and Dongarra, 1999) and of Golub and Van Loan,
"Matrix Computations" (4th edition, 2013): §5.2 (QR), §8.3 (symmetric eigenvalues), §8.6 (singular
values), §7.5 (others). Each column waits for the one before; and half of what makes a matrix
tridiagonal, or bidiagonal, are products with a vector, which read all that is left of the matrix
for each column. Libraries take longer, and of small matrices, whose columns take a few kernels
each, many times as long: no figure of a GPU was fitted. Vectors are computed also where values are
asked for alone, as torch does it for subclasses of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


# FLOP, and the numbers that products with a vector read, of m by n (the smaller) and k right sides.
_OF_SIZES: dict[object, Callable[[int, int, int], tuple[float, float]]] = {
    aten.linalg_cholesky_ex: lambda m, n, k: (n**3 / 3, 0),
    aten.linalg_ldl_factor_ex: lambda m, n, k: (n**3 / 3, 0),
    aten.cholesky_inverse: lambda m, n, k: (2 * n**3 / 3, 0),
    aten.cholesky_solve: lambda m, n, k: (2 * n * n * k, 0),
    aten.linalg_lu_solve: lambda m, n, k: (2 * n * n * k, 0),
    aten.linalg_solve_triangular: lambda m, n, k: (n * n * k, 0),
    aten.linalg_lu_factor_ex: lambda m, n, k: (_lu(m, n), 0),
    aten.linalg_lu: lambda m, n, k: (_lu(m, n), 0),
    aten.linalg_inv_ex: lambda m, n, k: (2 * n**3, 0),
    torch_operators.solve: lambda m, n, k: (_lu(n, n) + 2 * n * n * k, 0),
    torch_operators.determinant: lambda m, n, k: (_lu(n, n), 0),
    torch_operators.log_determinant: lambda m, n, k: (_lu(n, n), 0),
    aten.geqrf: lambda m, n, k: (_qr(m, n), 0),
    aten.linalg_householder_product: lambda m, n, k: (_qr(m, n), 0),
    aten.linalg_qr: lambda m, n, k: (2 * _qr(m, n), 0),
    aten.linalg_lstsq: lambda m, n, k: (_qr(m, n) + 4 * m * n * k, 0),
    aten.linalg_pinv: lambda m, n, k: (_svd(m, n) + 2 * m * n * n, 2 * n**3 / 3),
    torch_operators.symmetric_eigenvalues: lambda m, n, k: (9 * n**3, n**3 / 6),  # a triangle
    torch_operators.singular_values: lambda m, n, k: (_svd(m, n), 2 * n**3 / 3),
    aten.linalg_eig: lambda m, n, k: (25 * n**3, n**3 / 2),
    torch_operators.eigenvalues: lambda m, n, k: (10 * n**3, n**3 / 2),
}

# Where right-hand sides stand among the arguments.
_RIGHT = {
    aten.cholesky_solve: 0,
    aten.linalg_lu_solve: 2,
    aten.linalg_solve_triangular: 1,
    torch_operators.solve: 1,
    aten.linalg_lstsq: 1,
}


def factoring(
    packet: object, args: Sequence[Any], nbytes: int, dtype: str, times: int
) -> Cost | None:
    """The cost of a factorization, or of solving by one; None for other operations."""
    sizes = _OF_SIZES.get(packet)
    if sizes is None:
        return None
    a = args[1 if packet is aten.cholesky_solve else 0]  # which has its matrix last
    assert isinstance(a, torch.Tensor)
    n, m = sorted(a.shape[-2:])
    right = args[_RIGHT[packet]] if packet in _RIGHT else None
    k = right.shape[-1] if isinstance(right, torch.Tensor) and right.dim() > 1 else 1
    flops, read = sizes(m, n, k)
    matrices = prod(a.shape[:-2])
    by_columns = Kernel(0, int(matrices * read) * a.element_size(), serial_reads=n)
    whole = Kernel(int(matrices * flops) * times, nbytes)
    return FactorCost(by_columns, whole, dtype=dtype)

"""Linear algebra: forward errors from backward stability, with condition numbers taken in float64.

N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed.: sections 7.1 and 9.3 (linear systems),
14.1 (inverses), 14.6 (determinants), 10.1 (Cholesky), 20.1 (least squares); eigenvalues of Hermitian matrices and
singular values by Weyl's theorem. Dimensional constants are pessimistic there (section 2.6, rule of thumb): 4 n
stands in for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import cast

import torch
from torch import Tensor

from tapestry.numerics.facts import CallFacts
from tapestry.numerics.normwise.size import Size, euclidean

_UNITS = 4.0
#: 2^-17 in units of float32's roundoff.
_TAYLOR_UNITS = 128.0
#: Beyond this a float32 matrix is singular: nothing can be said of its inverse.
_LARGEST_CONDITION = 2.0**52


def _matrix(facts: CallFacts, *names: str) -> Tensor | None:
    """The first operand of one of these names in float64, if it is a stack of finite matrices."""
    value = next((facts.wide[name] for name in names if facts.wide.get(name) is not None), None)
    if not isinstance(value, Tensor) or value.dim() < 2 or value.numel() == 0:
        return None
    return value if bool(torch.isfinite(value).all()) else None


def _spectrum(matrix: Tensor) -> Tensor:
    return torch.linalg.svdvals(matrix)


def _condition(matrix: Tensor) -> Tensor:
    """sigma_1 / sigma_n, shaped [..., 1, 1]."""
    sigma = _spectrum(matrix)
    return (sigma[..., 0] / sigma[..., -1]).nan_to_num(nan=1.0).clamp(max=_LARGEST_CONDITION)[..., None, None]


def _scale(matrix: Tensor) -> float:
    return _UNITS * max(matrix.shape[-2:])


def _solution(*names: str, side: str = "left", power: int = 1) -> Size:
    """Columns (rows where the system stands on the right) of a solution err by n kappa |x|."""

    def size(facts: CallFacts, index: int, want: Tensor) -> Tensor | None:
        matrix = _matrix(facts, *names)
        if matrix is None or index != 0 or want.numel() == 0:
            return None
        condition = _condition(matrix) ** power
        if want.dim() < 2 or want.shape[-2] != matrix.shape[-1]:  # vectors, or a system on the right
            dims = (-1,) if want.dim() else ()
            flat = condition.squeeze(-1) if want.dim() < max(matrix.dim(), 2) else condition
            return _scale(matrix) * flat * euclidean(want, dims)
        dims = (-2,) if facts.bound.get(side, True) else (-1,)
        return _scale(matrix) * condition * euclidean(want, dims)

    return size


def _least_squares(facts: CallFacts, index: int, want: Tensor) -> Tensor | None:
    return _values(facts, index, want) if index == 3 else _solution("self", power=2)(facts, index, want)


def _triangle(facts: CallFacts, index: int, want: Tensor) -> Tensor | None:
    matrix = _matrix(facts, "A" if facts.name == "triangular_solve" else "self")
    if matrix is None or want.numel() == 0:
        return None
    if index == 1:
        return torch.zeros((), dtype=torch.float64)  # triangular_solve hands back its coefficients
    part = matrix.triu() if facts.bound.get("upper", True) else matrix.tril()
    if facts.bound.get("unitriangular"):
        part = part - torch.diag_embed(part.diagonal(dim1=-2, dim2=-1) - 1)
    dims = (-2,) if facts.bound.get("left", True) else (-1,)
    return _scale(matrix) * _condition(part) * euclidean(want, dims)


def _from_factors(facts: CallFacts, index: int, want: Tensor) -> Tensor | None:
    packed = _matrix(facts, "LU", "LU_data")
    if packed is None:
        return None
    lower = packed.tril(-1) + torch.eye(packed.shape[-1], dtype=packed.dtype)
    dims = (-2,) if facts.bound.get("left", True) else (-1,)
    return _scale(packed) * _condition(lower @ packed.triu()) * euclidean(want, dims)


def _determinant(facts: CallFacts, index: int, want: Tensor) -> Tensor | None:
    """The perturbation n u |A| meets the adjugate, whose trace norm is the sum over i of the other sigmas' product."""
    matrix = _matrix(facts, "A", "self")
    if matrix is None or index != 0:
        return None
    sigma = _spectrum(matrix)
    return _scale(matrix) * sigma[..., 0] * _products_without_one(sigma).sum(-1)


def _products_without_one(sigma: Tensor) -> Tensor:
    size = sigma.shape[-1]
    others = sigma.unsqueeze(-2).expand(*sigma.shape[:-1], size, size)
    return torch.where(torch.eye(size, dtype=torch.bool), 1.0, others).prod(-1)


def _log_determinant(facts: CallFacts, index: int, want: Tensor) -> Tensor | None:
    matrix = _matrix(facts, "A", "self")
    if matrix is None or index > 1:
        return None
    if index == 0 and "slogdet" in facts.name:
        return torch.full((), _UNITS, dtype=torch.float64)  # the sign: of modulus 1
    sigma = _spectrum(matrix)
    condition = (sigma[..., :1] / sigma).nan_to_num(nan=1.0).clamp(max=_LARGEST_CONDITION).sum(-1)
    return _scale(matrix) * condition + _UNITS * want.abs().nan_to_num(posinf=0.0)


def _cholesky(facts: CallFacts, index: int, want: Tensor) -> Tensor | None:
    matrix = _matrix(facts, "self")
    if matrix is None or index != 0:
        return None
    return _scale(matrix) * _condition(matrix) * _spectrum(want)[..., :1, None]


def _factors(facts: CallFacts, index: int, want: Tensor) -> Tensor | None:
    """LU factors err by n kappa of their own size; permutations are exact."""
    matrix = _matrix(facts, "A", "self")
    if matrix is None:
        return None
    if facts.name == "linalg_lu" and index == 0:
        return torch.zeros((), dtype=torch.float64)
    return _scale(matrix) * _condition(matrix) * want.abs().amax((-2, -1), keepdim=True)


def _values(facts: CallFacts, index: int, want: Tensor) -> Tensor | None:
    """Eigenvalues of Hermitian matrices and singular values: absolute, n |A| (Weyl)."""
    matrix = _matrix(facts, "A", "self")
    wanted = {"svd": 1, "_linalg_svd": 1, "linalg_svd": 1, "linalg_lstsq": 3}.get(facts.name, 0)
    if matrix is None or index != wanted:
        return None
    return _scale(matrix) * _spectrum(matrix)[..., :1]


def _norm_by_values(facts: CallFacts, index: int, want: Tensor) -> Tensor | None:
    """Norms from singular values: one of them (2, -2) or their sum (nuc)."""
    matrix, dims = _matrix(facts, "self"), facts.bound.get("dim")
    if matrix is None:
        return None
    pair = tuple(cast(Sequence[int], dims)) if dims else (-2, -1)
    moved = matrix.movedim(pair, (-2, -1))
    count = min(moved.shape[-2:]) if facts.bound.get("ord") == "nuc" or facts.name == "nuclear_norm" else 1
    size = _scale(moved) * count * _spectrum(moved)[..., :1]
    if not facts.bound.get("keepdim"):
        return size.squeeze(-1)
    return size.unsqueeze(-1).movedim((-2, -1), pair)


def _condition_number(facts: CallFacts, index: int, want: Tensor) -> Tensor | None:
    matrix = _matrix(facts, "self")
    if matrix is None:
        return None
    return _scale(matrix) * _condition(matrix)[..., 0, 0] * want.abs().nan_to_num(posinf=0.0)


def _power(facts: CallFacts, index: int, want: Tensor) -> Tensor | None:
    matrix, n = _matrix(facts, "self"), int(cast(int, facts.bound["n"]))
    if matrix is None:
        return None
    sigma = _spectrum(matrix)
    if n >= 0:
        return (_scale(matrix) * n * sigma[..., 0] ** n)[..., None, None]
    size = _scale(matrix) * -n * sigma[..., -1].double() ** n
    return size.nan_to_num(posinf=0.0)[..., None, None] * _condition(matrix)


def _exponential(facts: CallFacts, index: int, want: Tensor) -> Tensor | None:
    """Scaling and squaring: relative to |exp(A)|, n (1 + |A|) for nearly normal matrices.

    N. J. Higham, Functions of Matrices, section 10.2. PyTorch's Taylor polynomials for float32 leave up to 2^-17.
    """
    matrix = _matrix(facts, "self")
    if matrix is None:
        return None
    rounding = _scale(matrix) * (1 + _spectrum(matrix)[..., :1, None])
    return (rounding + _TAYLOR_UNITS) * euclidean(want, (-2, -1))


def _pseudo_inverse(facts: CallFacts, index: int, want: Tensor) -> Tensor | None:
    matrix = _matrix(facts, "self")
    if matrix is None:
        return None
    sigma = _spectrum(matrix)
    kept = torch.where(sigma > sigma[..., :1] * 2.0**-20, sigma, torch.inf).amin(-1)
    condition = (sigma[..., 0] / kept).nan_to_num(nan=1.0)[..., None, None]
    return 2 * _scale(matrix) * condition * euclidean(want, (-2, -1))


def _orthogonal(facts: CallFacts, index: int, want: Tensor) -> Tensor | None:
    """Products of reflections are backward stable: n at the size of the columns."""
    if want.dim() < 2 or want.numel() == 0:
        return None
    return _UNITS * max(want.shape[-2:]) * euclidean(want, (-2, -1))


def _unfolded(rows: Callable[[CallFacts, Tensor], int]) -> Size:
    """For tensorsolve and tensorinv: the tensor as a square matrix."""

    def size(facts: CallFacts, index: int, want: Tensor) -> Tensor | None:
        operand = facts.wide["self"]
        if not isinstance(operand, Tensor) or facts.bound.get("dims") is not None or not want.numel():
            return None
        leading = rows(facts, operand)
        matrix = operand.reshape(prod(operand.shape[:leading]), -1)
        return _scale(matrix) * _condition(matrix) * euclidean(want, tuple(range(want.dim())))

    return size


def _rank_of_right_side(facts: CallFacts, operand: Tensor) -> int:
    return cast(Tensor, facts.wide["other"]).dim()


def _index_of_inverse(facts: CallFacts, operand: Tensor) -> int:
    return int(cast(int, facts.bound.get("ind", 2)))


def _all(size: Size, *names: str) -> dict[str, Size]:
    return dict.fromkeys(names, size)


SIZES: dict[str, Size] = {
    **_all(_solution("A", "self"), "linalg_solve", "linalg_solve_ex", "_linalg_solve_ex", "linalg_inv", "linalg_inv_ex",
           "inverse"),
    "linalg_lstsq": _least_squares,
    "cholesky_inverse": _solution("self", power=2),
    **_all(_solution("input2", power=2), "cholesky_solve"),
    **_all(_triangle, "linalg_solve_triangular", "triangular_solve"),
    **_all(_from_factors, "linalg_lu_solve", "lu_solve"),
    **_all(_determinant, "linalg_det", "_linalg_det", "det"),
    **_all(_log_determinant, "logdet", "linalg_slogdet", "slogdet", "_linalg_slogdet"),
    **_all(_cholesky, "linalg_cholesky", "linalg_cholesky_ex", "cholesky"),
    **_all(_factors, "linalg_lu", "linalg_lu_factor", "linalg_lu_factor_ex", "_lu_with_info"),
    **_all(_values, "linalg_eigvalsh", "_linalg_eigh", "linalg_eigh", "linalg_svdvals", "_linalg_svd", "linalg_svd",
           "svd"),
    **_all(_norm_by_values, "nuclear_norm", "linalg_matrix_norm", "linalg_norm"),
    **_all(_condition_number, "linalg_cond"),
    **_all(_power, "linalg_matrix_power", "matrix_power"),
    **_all(_exponential, "matrix_exp", "linalg_matrix_exp"),
    **_all(_pseudo_inverse, "linalg_pinv", "pinverse"),
    **_all(_orthogonal, "linalg_householder_product", "orgqr", "ormqr"),
    **_all(_unfolded(_rank_of_right_side), "linalg_tensorsolve"),
    **_all(_unfolded(_index_of_inverse), "linalg_tensorinv"),
}  # fmt: skip

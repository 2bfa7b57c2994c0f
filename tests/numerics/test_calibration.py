"""Calibration of the bounds on sums: every sensible order of summation passes, every reduced precision fails.

Run as a script, it prints the table of docs/numerics.md: the largest error over sqrt(n) eps (|A|·|B|), and the rms
error over eps rms(|A|·|B|), to be compared with 2 and 8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tapestry.numerics import judge, oracle

pytestmark = pytest.mark.slow

Matrix = NDArray[np.float32]
ROWS, EPS = 96, 2.0**-23
LENGTHS = (1, 2, 3, 8, 64, 256, 1024, 4096, 16384)
aten = torch.ops.aten


def sequential(terms: Matrix) -> Matrix:
    return np.cumsum(terms, axis=1, dtype=np.float32)[:, -1]


def pairwise(terms: Matrix) -> Matrix:
    while terms.shape[1] > 1:
        if terms.shape[1] % 2:
            terms = np.pad(terms, ((0, 0), (0, 1)))
        terms = terms[:, 0::2] + terms[:, 1::2]
    return terms[:, 0]


def blocked(terms: Matrix) -> Matrix:
    """Blocks of 32 added one by one, then the blocks."""
    padded = np.pad(terms, ((0, 0), (0, -terms.shape[1] % 32)))
    return sequential(np.cumsum(padded.reshape(len(terms), -1, 32), axis=2, dtype=np.float32)[:, :, -1])


def lanes(terms: Matrix) -> Matrix:
    """Eight lanes that each add every eighth term, then a tree."""
    padded = np.pad(terms, ((0, 0), (0, -terms.shape[1] % 8)))
    return pairwise(np.cumsum(padded.reshape(len(terms), -1, 8), axis=1, dtype=np.float32)[:, -1, :])


ORDERS: dict[str, Callable[[Matrix], Matrix]] = {
    "sequential": sequential, "pairwise": pairwise, "blocked": blocked, "lanes": lanes,
}  # fmt: skip


def normal(rng: np.random.Generator, length: int) -> Matrix:
    return rng.standard_normal((ROWS, length)).astype(np.float32)


def uniform(rng: np.random.Generator, length: int) -> Matrix:
    return rng.random((ROWS, length)).astype(np.float32)


def cancelling(rng: np.random.Generator, length: int) -> Matrix:
    x, half = normal(rng, length), length // 2
    x[:, half : 2 * half] = -x[:, :half] * np.float32(1.001)
    return rng.permuted(x, axis=1)


def outliers(rng: np.random.Generator, length: int) -> Matrix:
    x = normal(rng, length)
    x[rng.random(x.shape) < 0.01] *= 1e4
    return x


def equal(rng: np.random.Generator, length: int) -> Matrix:
    return np.full((ROWS, length), 0.1, np.float32) * np.linspace(1, 2, ROWS, dtype=np.float32)[:, None]


VALUES: dict[str, Callable[[np.random.Generator, int], Matrix]] = {
    "normal": normal, "uniform": uniform, "cancelling": cancelling, "outliers": outliers, "equal": equal,
}  # fmt: skip


def sum_verdict(x: Matrix, got: Matrix) -> str:
    args = (torch.from_numpy(x), [1])
    return judge(
        aten.sum.dim_IntList, args, {}, (torch.from_numpy(got),), None, oracle(aten.sum.dim_IntList, args)
    ).verdict


def dot_verdict(x: Matrix, y: Matrix, got: Matrix) -> str:
    """A batch of inner products, as a bmm."""
    args = (torch.from_numpy(x)[:, None, :], torch.from_numpy(y)[:, :, None])
    result = (torch.from_numpy(got)[:, None, None],)
    return judge(aten.bmm.default, args, {}, result, None, oracle(aten.bmm.default, args)).verdict


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("length", LENGTHS)
def test_every_order_of_summation_passes(values: str, order: str, length: int) -> None:
    x = VALUES[values](np.random.default_rng(length), length)
    assert sum_verdict(x, ORDERS[order](x)) == "pass"


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("length", LENGTHS)
def test_every_order_of_a_dot_product_passes(values: str, order: str, length: int) -> None:
    rng = np.random.default_rng(length)
    x, y = VALUES[values](rng, length), (uniform if values == "uniform" else normal)(rng, length)
    assert dot_verdict(x, y, ORDERS[order](x * y)) == "pass"


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("length", LENGTHS)
def test_eager_passes_with_any_number_of_threads(values: str, threads: int, length: int) -> None:
    x = VALUES[values](np.random.default_rng(length), length)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        total = torch.from_numpy(x).sum(1).numpy()
        square = (torch.from_numpy(x) @ torch.from_numpy(x).t()).numpy()
    finally:
        torch.set_num_threads(before)
    assert sum_verdict(x, total) == "pass"
    args = (torch.from_numpy(x), torch.from_numpy(x).t())
    outcome = judge(aten.mm.default, args, {}, (torch.from_numpy(square),), None, oracle(aten.mm.default, args))
    assert outcome.verdict == "pass"


def rounded(x: Matrix, bits: int) -> Matrix:
    """Without the last ``bits`` of the fraction: 13 for TF32, 16 for bfloat16."""
    keep = np.uint32((0xFFFFFFFF << bits) & 0xFFFFFFFF)
    return ((x.view(np.uint32) + np.uint32(1 << (bits - 1))) & keep).view(np.float32)


@pytest.mark.parametrize("values", ["normal", "uniform", "cancelling", "outliers"])
@pytest.mark.parametrize("bits", [13, 16])
@pytest.mark.parametrize("length", LENGTHS)
def test_dot_products_of_rounded_inputs_fail(values: str, bits: int, length: int) -> None:
    rng = np.random.default_rng(length)
    x, y = VALUES[values](rng, length), (uniform if values == "uniform" else normal)(rng, length)
    exact = (rounded(x, bits).astype(np.float64) * rounded(y, bits)).sum(1)
    assert dot_verdict(x, y, exact.astype(np.float32)) == "fail"


@pytest.mark.parametrize("length", [256, 1024, 4096])
@pytest.mark.parametrize("values", ["normal", "uniform"])
def test_dot_products_accumulated_in_half_fail(values: str, length: int) -> None:
    rng = np.random.default_rng(length)
    x, y = VALUES[values](rng, length), VALUES[values](rng, length)
    total = np.zeros(ROWS, np.float16)
    for term in (x * y).astype(np.float16).T:
        total = total + term
    assert dot_verdict(x, y, total.astype(np.float32)) == "fail"


def test_a_mean_that_stops_growing_fails() -> None:
    x = torch.full((1, 1 << 22), 0.1)
    args = (x, [1])
    right = x.double().mean(1)
    for factor, verdict in ((1.0, "pass"), (0.961, "fail"), (1.001, "fail")):
        got = ((right * factor).float(),)
        assert judge(aten.mean.dim, args, {}, got, None, (right,)).verdict == verdict


def table() -> Iterator[str]:
    for length in (*LENGTHS, 65536):
        for values, make in VALUES.items():
            rng = np.random.default_rng(length)
            x, y = make(rng, length), (uniform if values == "uniform" else normal)(rng, length)
            exact, size = (x.astype(np.float64) * y).sum(1), np.abs(x.astype(np.float64) * y).sum(1)
            results = [order(x * y) for order in ORDERS.values()]
            results += [(rounded(x, bits).astype(np.float64) * rounded(y, bits)).sum(1) for bits in (13, 16)]
            cells = []
            for result in results:
                error = np.abs(result - exact)
                element = (error / size).max() / EPS / np.sqrt(length)
                rms = np.sqrt(np.mean(error**2)) / np.sqrt(np.mean(size**2)) / EPS
                cells.append(f"{element:.2f} / {rms:.2f}")
            yield f"| {length} | {values} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    print("\n".join(table()))

"""Capture and interpretation give what eager gives, bit for bit, for every kind of argument, result and construct."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from support.eager import assert_like_eager
from tapestry.program.inputs import CallArgs

pytestmark = pytest.mark.slow

Pair = collections.namedtuple("Pair", "first second")
SHARED = torch.arange(3.0)


class Kinds(NamedTuple):
    """A result with names, and one that is no tensor."""

    value: Tensor
    size: int


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


X, Y = draw(4, 6), draw(4, 6, seed=1)


def written_by_index(a: Tensor, mask: Tensor) -> Tensor:
    b = a.clone()
    b[mask] = 0
    b[:, 0] = 1
    b[1] += 2
    b.t()[2] = 5
    return b


def constant_written(a: Tensor) -> Tensor:
    z = torch.tensor([1.0, 2.0])
    z.add_(a[0, :2])
    return z


def with_contexts(a: Tensor) -> Tensor:
    with torch.no_grad():
        b = a * 2
    with torch.autocast("cpu", enabled=False):
        return b @ b.t()


def reduced(a: Tensor) -> tuple[Tensor, Tensor]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        b = a @ a.t()
    return b, a + 1


ONES = torch.ones(6)


def defaulted(a: Tensor, b: Tensor = ONES) -> Tensor:
    return a - b


def nested(d: dict, pairs: list, *, k: dict) -> dict:
    return {"r": d["a"] + pairs[0][1], "n": None, "c": [3, "s", 2.5, True], "t": (pairs[0][0],), "k": k["q"][0] * 2}


ALONE = {
    "nested containers": (nested, CallArgs(({"a": X, "b": Y}, [(X, Y)]), {"k": {"z": None, "q": (X,)}})),
    "keywords in another order": (lambda a, b, c: a - b * c, CallArgs((X,), {"c": Y, "b": X})),
    "starred": (lambda *a, **k: a[0] - k["z"], CallArgs((X, Y), {"z": X, "w": Y})),
    "constants": (lambda x, n, s, f, b, i: (x * n * f if b else x, s, i), (X, 3, "abc", float("inf"), True, None)),
    "unused constants": (lambda x, f, s: x * 2, (X, float("nan"), "unused")),
    "a default tensor": (defaulted, (X,)),
    "a tensor twice": (lambda a, b: (a + b, b, a, b.t()), (X, X)),
    "no result": (lambda a: None, (X,)),
    "an operator itself": (torch.relu, (X,)),
}

TENSORS = {
    "rank 0": (lambda a, s: (a * s, s, s + 1), (X, torch.tensor(2.0))),
    "rank 0 of a wider type": (lambda a, s: (a * s, torch.where(a > 0, s, a)), (X, torch.tensor(2.5).double())),
    "transposed": (lambda a: (a + 1, a.sum(0), a.t().contiguous(), a), (draw(6, 4).t(),)),
    "sliced": (lambda a: (a + 1, a.exp(), a.sum(1)), (draw(8, 12)[::2, ::2],)),
    "expanded": (lambda a: (a + 1, a[0], a.sum()), (draw(1, 6).expand(4, 6),)),
    "overlapping": (lambda a: (a + 1, a.sum()), (draw(8).unfold(0, 4, 2),)),
    "empty": (lambda a: (a + 1, a.sum(0), a.prod(0)), (torch.zeros(0, 3),)),
    "bool": (lambda a, m: torch.where(m, a, 0) + a.masked_fill(m, -float("inf")), (X, Y > 0)),
    "integers": (
        lambda a, b, c: (a.to(torch.uint8) + b, c >> 1, a // 2, a % 3, -a, a.abs()),
        (torch.arange(4) - 2, torch.tensor([255, 1, 2, 3], dtype=torch.uint8), torch.tensor([7], dtype=torch.int16)),
    ),
    "16 bits": (lambda a: (a.half() @ a.half().t(), a.bfloat16().softmax(-1), a.to(torch.int8)), (X,)),
    "8-bit floats": (lambda a: a.to(torch.float8_e4m3fn).float() * 2, (X,)),
    "complex": (lambda a: (torch.fft.fft(a), torch.view_as_complex(a.reshape(4, 3, 2)) * 2j), (X,)),
    "conjugated": (lambda a: (a * 2, a), (torch.complex(X, Y).conj(),)),
    "bit views": (lambda a: (a.view(torch.int32), a.view(torch.uint8) + 1), (X,)),
    "nonfinite": (lambda a: (a.relu(), a.softmax(-1), a.amax(-1)), (torch.tensor([[float("nan"), 1, -float("inf")]]),)),
    "a parameter": (lambda a: a * 2, (nn.Parameter(X.clone()),)),
}

CONSTRUCTS = {
    "results that are constants": (lambda a: (a.shape[0], 1.5, torch.ones(2), Kinds(a * 2, 3)), (X,)),
    "named results": (lambda a: Pair(a * 1, (a * 2,)), (X,)),
    "dict order": (lambda a: {"z": a * 1, "a": a * 2}, (X,)),
    "a tensor of the surroundings": (lambda a: (a[:, :3] * SHARED, SHARED, SHARED[1:]), (X,)),
    "a tensor made inside": (lambda a: torch.tensor([1.0, 2.0]) + a[0, :2], (X,)),
    "several results of one call": (lambda a: (a.max(1), torch.topk(a, 2), a.sort(1)), (X,)),
    "lists of results": (lambda a: [*(q * 2 for q in a.chunk(3, 1)), *a.split(2, 0), *a.unbind(0)], (X,)),
    "assignment by index": (written_by_index, (X, X > 0)),
    "a written input": (lambda a, b: a.add_(1) + b, (X.clone(), Y)),
    "a written slice of an input": (lambda a: (a[1:3].mul_(2), a), (X.clone(),)),
    "a written input in a list": (lambda pair: (pair[0].add_(1), pair[1])[1], ([X.clone(), Y],)),
    "no_grad and autocast off": (with_contexts, (X,)),
    "autocast to bfloat16": (reduced, (X,)),
    "checkpointing": (lambda x: torch.utils.checkpoint.checkpoint(lambda a: a.exp(), x, use_reentrant=False), (X,)),
    "vmap": (torch.vmap(lambda a: a.sum()), (X,)),
    "attention": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), (draw(1, 2, 4, 8),)),
    "as_strided": (lambda a: torch.as_strided(a, (2, 2), (1, 2), 1) * 2, (X,)),
}


@pytest.mark.parametrize("name", ALONE)
def test_arguments(name: str) -> None:
    model, call = ALONE[name]
    assert_like_eager(model, [call])


@pytest.mark.parametrize("cases", [TENSORS, CONSTRUCTS], ids=["tensors", "constructs"])
def test_one_of_each_kind(cases: dict[str, tuple[Callable[..., object], tuple[object, ...]]]) -> None:
    """All kinds in one capture: a capture costs more than everything in it."""

    def all_of_them(given: dict[str, tuple[object, ...]]) -> dict[str, object]:
        return {name: function(*given[name]) for name, (function, _) in cases.items()}

    assert_like_eager(all_of_them, [({name: args for name, (_, args) in cases.items()},)])


def test_a_constant_made_inside_is_fresh_in_every_call() -> None:
    assert_like_eager(constant_written, [(X,), (Y,), (X,)])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 6)
        self.head = nn.Linear(6, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, index: Tensor) -> tuple[Tensor, Tensor]:
        return self.head(self.embedding(index)), self.head.weight[0]


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.inner.register_forward_hook(lambda module, given, result: result * 2)
        self.register_forward_hook(lambda module, given, result: result + 1)
        self.register_forward_pre_hook(lambda module, given: (given[0] * 3,))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


MODULES = {
    "tied weights": (Tied, (torch.tensor([1, 2]),)),
    "hooks": (Hooked, (X,)),
    "identity": (nn.Identity, (X,)),
    "dropout around a layer": (lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 2), nn.Dropout(0.5)).eval(), (X,)),
    "channels last": (lambda: nn.Conv2d(3, 4, 3), (draw(1, 3, 5, 5).to(memory_format=torch.channels_last),)),
    "in-place activation": (lambda: nn.Sequential(nn.Conv1d(2, 3, 3), nn.ReLU(inplace=True)), (draw(2, 2, 7),)),
    "recurrent": (lambda: nn.LSTM(6, 4, 2, bidirectional=True), (draw(3, 2, 6),)),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), (draw(1, 3, 8),)),
}


@pytest.fixture
def _plain_attention() -> Iterator[None]:
    """Eager has a fused kernel for a whole encoder layer in inference, which rounds otherwise; torch.export has not."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(before)


@pytest.mark.usefixtures("_plain_attention")
@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str) -> None:
    make, call = MODULES[name]
    torch.manual_seed(0)
    assert_like_eager(make(), [call, call])


def test_tied_weights_are_stored_under_one_memory() -> None:
    torch.manual_seed(0)
    program = assert_like_eager(Tied(), [(torch.tensor([1, 2]),)])
    weights = [tensor.data_ptr() for name, tensor in program.tensors.items() if name.endswith("weight")]
    assert len(set(weights)) == 1


def test_random_operators_draw_as_eager_does() -> None:
    """Same generator state, same numbers: dropout, noise and sampling in the order of the model."""

    def noisy(x: Tensor) -> tuple[Tensor, ...]:
        return F.dropout(x, 0.5), torch.rand(3), x + torch.randn_like(x), torch.bernoulli(x.abs().clamp(0, 1))

    class Seeded(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return noisy(x)

    from tapestry.program.capture import capture
    from tapestry.program.interpret import run_program, start_values

    program = capture(Seeded(), (X,))
    torch.manual_seed(3)
    want = noisy(X)
    torch.manual_seed(3)
    values = run_program(program, start_values(program, program.bind((X,), {}), {}))
    for output, leaf in zip(program.outputs, want, strict=True):
        assert torch.equal(values[output.value], leaf)

""".pt2 files that would run code, read outside, or exhaust the machine: each is refused, and nothing in it runs.

The canary is a directory that the file's code would make. ``test_the_canary_works`` shows that it would.
"""

from __future__ import annotations

import json
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from support.pt2_files import edit_json, in_torch_zip, mkdir_pickle, rewrite, save_pt2
from tapestry.errors import FormatError, TapestryError, UsageError
from tapestry.models.load import load_model
from tapestry.models.pt2.load import load_pt2

pytestmark = pytest.mark.slow

SAMPLES = "data/sample_inputs/model.pt"
WEIGHTS = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.constant = torch.ones(3)

    def forward(self, x: torch.Tensor, *, y: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + self.constant * y


@pytest.fixture
def honest(tmp_path: Path) -> Path:
    return save_pt2(tmp_path / "model.pt2", Model().eval(), (torch.randn(2, 4),), {"y": torch.ones(3)})


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    return tmp_path / "canary"


def use(path: Path) -> None:
    """Load and run: code may hide until the first call."""
    loaded = load_pt2(path)
    call = loaded.inputs[0].calls[0]
    loaded.module(*call.args, **call.kwargs)


def refusal(path: Path, canary: Path, kind: type[TapestryError] = UsageError) -> str:
    with pytest.raises(kind) as caught:
        use(path)
    assert not canary.exists()
    return str(caught.value)


# -- pickles


def test_the_canary_works(honest: Path, canary: Path, tmp_path: Path) -> None:
    rewrite(honest, {SAMPLES: in_torch_zip(mkdir_pickle(canary), tmp_path / "inner")})
    with pytest.raises(TapestryError):
        load_pt2(honest, trust_pickle=True)
    assert canary.exists()


def test_a_pickle_among_the_sample_inputs(honest: Path, canary: Path, tmp_path: Path) -> None:
    rewrite(honest, {SAMPLES: in_torch_zip(mkdir_pickle(canary), tmp_path / "inner")})
    told = refusal(honest, canary)
    assert SAMPLES in told
    assert "os.mkdir" in told
    assert "--trust-pickle" in told


def test_a_bare_pickle_as_sample_inputs(honest: Path, canary: Path) -> None:
    assert SAMPLES in refusal(rewrite(honest, {SAMPLES: mkdir_pickle(canary)}), canary)


@pytest.mark.parametrize("config", [WEIGHTS, CONSTANTS])
def test_pickled_weights_and_constants(honest: Path, canary: Path, tmp_path: Path, config: str) -> None:
    folder = config.rpartition("/")[0]
    names: list[str] = []

    def change(record: dict[str, Any]) -> None:
        first = next(iter(record["config"].values()))
        first["use_pickle"] = True
        names.append(f"{folder}/{first['path_name']}")

    edit_json(honest, change, config)
    rewrite(honest, {names[0]: in_torch_zip(mkdir_pickle(canary), tmp_path / "inner")})
    assert f"entry '{names[0]}' is a pickle" in refusal(honest, canary)


@pytest.mark.parametrize(
    "entry",
    [
        "data/constants/custom_obj_0", "data/constants/opaque_obj_0", "data/weights/model.pt",
        "data/constants/model.pt", "data.pkl", "anything.pickle", "data/aotinductor/model/wrapper.so",
        "data/executorch/model.pte", "code/__torch__.py", "data/other",
    ],
)  # fmt: skip
def test_an_entry_that_is_not_data_is_named(honest: Path, canary: Path, entry: str) -> None:
    told = refusal(rewrite(honest, {entry: mkdir_pickle(canary)}), canary)
    assert repr(entry) in told


def test_a_custom_object_in_the_constants(honest: Path, canary: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        next(iter(record["config"].values()))["path_name"] = "custom_obj_0"

    refusal(edit_json(honest, change, CONSTANTS), canary)


def test_the_legacy_layout(tmp_path: Path, canary: Path) -> None:
    path = tmp_path / "old.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("serialized_exported_program.json", "{}")
        archive.writestr("serialized_state_dict.pt", in_torch_zip(mkdir_pickle(canary), tmp_path / "inner"))
        archive.writestr("version", "8.0")
    told = refusal(path, canary)
    assert "serialized_exported_program.json" in told
    assert "torch.export.save of torch 2.13" in told


# -- code that is no pickle


def operator(name: str) -> Callable[[dict[str, Any]], None]:
    def change(record: dict[str, Any]) -> None:
        record["graph_module"]["graph"]["nodes"][0]["target"] = name

    return change


@pytest.mark.parametrize(
    "name",
    [
        "torch.os.system", "torch.hub.load", "torch.ops.load_library", "torch.ops.aten.from_file.default",
        "torch.ops.aten.linear.__class__", "math.__loader__.load_module", "_operator.methodcaller", "torch.load",
        "#namespace:name", "torch.ops.unknown.op.default", "torch.ops.aten.nothing.default",
    ],
)  # fmt: skip
def test_an_operator_that_is_none(honest: Path, canary: Path, name: str) -> None:
    assert name in refusal(edit_json(honest, operator(name)), canary)


def rename(new: str) -> Callable[[dict[str, Any]], None]:
    def change(record: dict[str, Any]) -> None:
        text = json.dumps(record["graph_module"]).replace('"linear"', json.dumps(new))
        record["graph_module"] = json.loads(text)

    return change


def source(canary: Path) -> str:
    return f"x = __import__('os').mkdir({str(canary)!r})"


def test_a_name_that_is_source_text(honest: Path, canary: Path) -> None:
    assert "which is no name" in refusal(edit_json(honest, rename(f"linear\n    {source(canary)}")), canary)


def test_a_parameter_name_that_is_source_text(honest: Path, canary: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        signature = record["graph_module"]["module_call_graph"][0]["signature"]
        signature["forward_arg_names"] = ["x", f"y={source(canary)[4:]}"]

    assert "which is no name" in refusal(edit_json(honest, change), canary)


def test_a_keyword_that_is_source_text(honest: Path, canary: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        signature = record["graph_module"]["module_call_graph"][0]["signature"]
        keyword = json.dumps(json.dumps([f"y={source(canary)[4:]}"]))
        signature["in_spec"] = signature["in_spec"].replace(json.dumps('["y"]'), keyword)
        assert "mkdir" in signature["in_spec"]

    assert "which is no name" in refusal(edit_json(honest, change), canary)


def test_a_size_that_is_source_text(honest: Path, canary: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        table = record["graph_module"]["graph"]["tensor_values"]
        table["x"]["sizes"][0] = {"as_expr": {"expr_str": source(canary)[4:], "hint": None}}

    assert "no expression of sizes" in refusal(edit_json(honest, change), canary)


@pytest.mark.parametrize("text", ["9**9**9**9", "Pow(9, Pow(9, 99))", "1" * 5000, "Symbol('x y')", "(1).__class__"])
def test_a_size_that_takes_forever(honest: Path, canary: Path, text: str) -> None:
    def change(record: dict[str, Any]) -> None:
        table = record["graph_module"]["graph"]["tensor_values"]
        table["x"]["sizes"][0] = {"as_expr": {"expr_str": text, "hint": None}}

    assert "no expression of sizes" in refusal(edit_json(honest, change), canary)


def test_guards_that_are_source_text_are_left_out(honest: Path, canary: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        record["guards_code"] = [f"__import__('os').mkdir({str(canary)!r}) is None"]

    use(edit_json(honest, change))
    assert not canary.exists()


def test_a_tree_that_names_a_module(honest: Path, canary: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        context = {"default_factory_module": "antigravity", "default_factory_name": "x", "dict_context": ["a"]}
        leaf = {"type": None, "context": None, "children_spec": []}
        tree = {"type": "collections.defaultdict", "context": context, "children_spec": [leaf]}
        record["graph_module"]["module_call_graph"][0]["signature"]["out_spec"] = json.dumps([1, tree])

    assert "collections.defaultdict" in refusal(edit_json(honest, change), canary)


def test_a_range_that_counts_forever(honest: Path, canary: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        record["range_constraints"] = {"u99999999999999": {"min_val": 0, "max_val": 1}}

    assert "which is no size" in refusal(edit_json(honest, change), canary)


# -- archives


def test_a_compressed_bomb(honest: Path, canary: Path) -> None:
    rewrite(honest, {"data/weights/weight_0": bytes(1 << 26)}, zipfile.ZIP_DEFLATED)
    assert "is compressed" in refusal(honest, canary, FormatError)


def test_overlapping_entries(honest: Path, canary: Path) -> None:
    """Every weight's directory entry points at one large body, so that the claims exceed the file."""
    rewrite(honest, {f"data/weights/weight_{number}": bytes(4096) for number in range(8)})
    data = bytearray(honest.read_bytes())
    place = first = data.find(b"PK\x01\x02")
    while place != -1:
        for offset in (20, 24):
            struct.pack_into("<I", data, place + offset, 30000)
        place = data.find(b"PK\x01\x02", place + 1)
    assert first != -1
    honest.write_bytes(data)
    assert "overlap" in refusal(honest, canary, FormatError)


@pytest.mark.parametrize("name", ["../../outside", "/absolute", "a\\..\\b", "models/../../x"])
def test_names_that_point_outside(honest: Path, canary: Path, name: str) -> None:
    with zipfile.ZipFile(honest, "a") as archive:
        archive.writestr(zipfile.ZipInfo(name if name.startswith("/") else f"model/{name}"), b"x")
    assert "points outside" in refusal(honest, canary, FormatError)


def test_two_entries_of_one_name(honest: Path, canary: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(honest, "a") as archive:
        archive.writestr("model/models/model.json", b"{}")
    assert "occurs twice" in refusal(honest, canary, FormatError)


def test_two_programs(honest: Path, canary: Path) -> None:
    assert "expected one program, got 2" in refusal(rewrite(honest, {"models/other.json": b"{}"}), canary)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "an empty file"),
        (b"hello", "something else"),
        (b"\x80\x02}.", "a bare pickle"),
        (b"PK\x03\x04" + bytes(40), "cut short or damaged"),
    ],
)
def test_not_an_archive(tmp_path: Path, canary: Path, data: bytes, told: str) -> None:
    path = tmp_path / "x.pt2"
    path.write_bytes(data)
    assert told in refusal(path, canary, FormatError)


def test_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="got nothing"):
        load_model(str(tmp_path / "none.pt2"))
    (tmp_path / "folder.pt2").mkdir()
    with pytest.raises(UsageError, match="got a folder"):
        load_model(str(tmp_path / "folder.pt2"))


def test_cut_short_anywhere(honest: Path, canary: Path) -> None:
    data = honest.read_bytes()
    for length in range(0, len(data), len(data) // 40):
        honest.write_bytes(data[:length])
        refusal(honest, canary, FormatError)


def test_single_bits_flipped(honest: Path, canary: Path) -> None:
    """Each either loads (a bit of a weight) or is refused on purpose; the checksum catches most."""
    data = honest.read_bytes()
    random_places = random.Random(0).sample(range(len(data)), 60)
    refused = 0
    for place in random_places:
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        honest.write_bytes(changed)
        try:
            use(honest)
        except TapestryError:
            refused += 1
    assert refused > 10
    assert not canary.exists()


def meta(**changes: Any) -> Callable[[dict[str, Any]], None]:
    def change(record: dict[str, Any]) -> None:
        record["config"]["linear.weight"]["tensor_meta"].update(changes)

    return change


@pytest.mark.parametrize(
    "changes",
    [
        {"sizes": [{"as_int": 10**12}, {"as_int": 4}]},
        {"strides": [{"as_int": 40}, {"as_int": 1}]},
        {"storage_offset": {"as_int": 1}},
        {"storage_offset": {"as_int": -1}},
        {"sizes": [{"as_int": 3}]},
        {"sizes": [{"as_expr": {"expr_str": "s0"}}, {"as_int": 4}]},
        {"dtype": 99},
        {"device": {"type": "cuda", "index": 0}},
        {"layout": 1},
    ],
)
def test_a_weight_that_its_bytes_do_not_hold(honest: Path, canary: Path, changes: dict[str, Any]) -> None:
    assert "linear.weight" in refusal(edit_json(honest, meta(**changes), WEIGHTS), canary)


def test_an_empty_weight_that_claims_a_terabyte(honest: Path, canary: Path) -> None:
    edit_json(honest, meta(sizes=[{"as_int": 10**6}, {"as_int": 10**6}]), WEIGHTS)
    rewrite(honest, {"data/weights/weight_0": b""})
    refusal(honest, canary, FormatError)


@pytest.mark.parametrize("entry", ["models/model.json", WEIGHTS, CONSTANTS])
@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"{" * 100_000, b'{"a":' * 100_000, b"\xff\xfe"])
def test_records_that_are_no_records(honest: Path, canary: Path, entry: str, data: bytes) -> None:
    refusal(rewrite(honest, {entry: data}), canary, FormatError)


@pytest.mark.parametrize(
    "pickled",
    [
        b"", b"\x80\x02.", b"\x80\x02)).", b"\x80\x02h\x01.", b"\x80\x02(", b"\x80\x02t.", b"\x80\x02K\x01.",
        b"\x80\x02X\x07\x00\x00\x00storageQ.", b"\x80\x02]q\x00h\x00a.", b"\x80\x02)}K\x01K\x02s\x86.",
    ],
)  # fmt: skip
def test_sample_inputs_that_are_damaged(honest: Path, canary: Path, tmp_path: Path, pickled: bytes) -> None:
    refusal(rewrite(honest, {SAMPLES: in_torch_zip(pickled, tmp_path / "inner")}), canary)


def test_sample_inputs_nested_without_end(honest: Path, canary: Path, tmp_path: Path) -> None:
    """Forty lists, each holding the one before ten times: small in the file, 10^40 values when walked."""
    body = b"".join(b"](" + b"h%c" % (number % 250) * 10 + b"eq%c" % ((number + 1) % 250) for number in range(40))
    pickled = b"\x80\x02]q\x00" + body + b"\x85}\x86."
    told = refusal(rewrite(honest, {SAMPLES: in_torch_zip(pickled, tmp_path / "inner")}), canary, FormatError)
    assert "values" in told or "nested" in told


# -- the command line


def test_the_command_line_refuses_and_trusts(honest: Path, canary: Path, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from tapestry.cli.app import app

    rewrite(honest, {SAMPLES: in_torch_zip(mkdir_pickle(canary), tmp_path / "inner")})
    arguments = ["carve", str(honest), "-o", str(tmp_path / "suite")]
    refused = CliRunner().invoke(app, arguments)
    assert isinstance(refused.exception, UsageError)
    assert refused.exception.exit_code == 2
    assert not canary.exists()
    CliRunner().invoke(app, [*arguments, "--trust-pickle"])
    assert canary.exists()

"""The graph record of a .pt2 file, vetted: what could become source text, an import or an evaluated expression.

torch.export.load turns names in the record into Python source, looks operators up by dotted path, evaluates sizes with
sympy, imports what a tree specification names, and executes guards. Each such field is held to what torch.export.save
writes for a plain program; guards and metadata beyond source places are left out (a captured program has fixed shapes
and checks its inputs itself).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import torch
from torch.utils import _pytree as pytree

from tapestry.errors import FormatError, UsageError

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_FQN = re.compile(r"[\w.@]*", re.ASCII)
_OPERATOR = re.compile(r"torch\.ops\.([A-Za-z_]\w*)\.([A-Za-z_]\w*)\.([A-Za-z_]\w*)", re.ASCII)
#: Libraries of operators that compute on tensors only; of higher-order ones, the two that only set a mode.
_NAMESPACES = {"aten", "prims", "quantized", "quantized_decomposed", "torchvision"}
_HIGHER_ORDER = {"torch.ops.higher_order.wrap_with_set_grad_enabled", "torch.ops.higher_order.wrap_with_autocast"}
#: Operators that read files.
_NOT_COMPUTATION = {"from_file"}
#: Arithmetic on sizes.
_SIZES = {
    *(f"_operator.{name}" for name in ("add", "sub", "mul", "floordiv", "truediv", "mod", "pow", "neg", "getitem")),
    *(f"_operator.{name}" for name in ("eq", "ne", "lt", "le", "gt", "ge", "and_", "or_", "not_")),
    *(f"math.{name}" for name in ("ceil", "floor", "trunc", "sqrt")),
    *(f"torch.sym_{name}" for name in ("int", "float", "max", "min", "not", "ite")),
}
#: An expression of sizes, as sympy's srepr writes it: symbols, numbers, arithmetic and torch's own functions; neither
#: attributes nor powers, and no other names.
_NAMES = (
    "Symbol Integer Float Rational positive integer nonnegative nonzero True False true false Add Mul Max Min Not And "
    "Or Equality Unequality Eq Ne StrictLessThan LessThan StrictGreaterThan GreaterThan FloorDiv CeilDiv PythonMod Mod "
    "CleanDiv IntTrueDiv FloatTrueDiv ToFloat TruncToInt TruncToFloat CeilToInt FloorToInt Where Identity"
)
_EXPRESSION = re.compile(
    r"(\s|[-+/%(),<>=!&|~]|\*(?!\*)|\d{1,19}(\.\d{1,19})?(?!\w)|'z?[suf]+\d{1,6}'|z?[suf]+\d{1,6}(?!\w)|("
    + "|".join(_NAMES.split())
    + r")(?!\w))*+",
    re.ASCII,
)
_SYMBOL = re.compile(r"z?[suf]+\d{1,6}", re.ASCII)
#: Container types that a tree specification may name; transformers' output classes are looked up in transformers.
_CONTAINERS = {
    None, "builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict", "collections.deque",
    "torch.fx.immutable_collections.immutable_list", "torch.fx.immutable_collections.immutable_dict",
}  # fmt: skip
#: Metadata of a node that is kept: where in the user's source it comes from.
_METADATA = ("stack_trace", "nn_module_stack", "torch_fn")


def vet_program(record: dict[str, Any], path: Path) -> dict[str, Any]:
    """A copy of the record, safe to be given to torch.export.load.

    UsageError for what is not supported, FormatError for what torch.export.save would not have written; both name it.
    """
    vetted = _Vetting(path).value("", record)
    return {**cast("dict[str, Any]", vetted), "guards_code": []}


class _Vetting:
    """Walks the record; each key that matters has a method."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rules: dict[str, Callable[[Any], Any]] = {
            "target": self.operator,
            "as_operator": self.operator,
            "expr_str": self.expression,
            "metadata": self.metadata,
            "in_spec": self.tree,
            "out_spec": self.tree,
            "guards_code": lambda _: [],
            "treespec_namedtuple_fields": lambda _: {},
            "range_constraints": self.ranges,
            "forward_arg_names": self.identifiers,
            "as_custom_obj": self.custom,
            "custom_obj": self.custom,
            "custom_obj_values": self.custom,
            **dict.fromkeys(("name", "as_name", "user_input_name"), self.identifier),
            **dict.fromkeys(("parameter_name", "buffer_name", "tensor_constant_name", "fqn"), self.qualified),
        }

    def value(self, key: str, value: Any) -> Any:
        rule = self.rules.get(key)
        if rule is not None:
            return value if value is None else rule(value)
        if isinstance(value, dict):
            table = cast("dict[str, Any]", value)
            if key.endswith("_values") or key == "as_string_to_argument":
                self.identifiers(list(table))
            return {name: self.value(_inner(key, name), entry) for name, entry in table.items()}
        if isinstance(value, list):
            return [self.value("", entry) for entry in cast("list[Any]", value)]
        return value

    def fault(self, what: str) -> FormatError:
        return FormatError(f"{self.path}: {what}; torch.export.save would not have written it")

    def operator(self, target: Any) -> str:
        name = str(target)
        if name in _SIZES or name in _HIGHER_ORDER:
            return name
        if name.startswith("torch.ops.higher_order."):
            raise UsageError(
                f"{self.path}: {name} is control flow, which programs don't have; make the choice before torch.export"
            )
        match = _OPERATOR.fullmatch(name)
        if match is None or match[2] in _NOT_COMPUTATION:
            raise self.fault(f"the graph calls {name!r}, which is no operator on tensors")
        namespace, operator, overload = match.groups()
        if namespace not in _NAMESPACES:
            raise UsageError(
                f"{self.path}: {name} belongs to the extension {namespace!r}; load the extension and the program in a "
                "factory instead: FILE.py:FACTORY"
            )
        found = getattr(getattr(getattr(torch.ops, namespace), operator, None), overload, None)
        if not isinstance(found, torch._ops.OpOverload):
            raise UsageError(f"{self.path}: this PyTorch ({torch.__version__}) has no operator {name}")
        return name

    def expression(self, text: Any) -> str:
        if not isinstance(text, str) or len(text) > 1000 or not _EXPRESSION.fullmatch(text):
            raise self.fault(f"a size is given as {str(text)[:80]!r}, which is no expression of sizes")
        return text

    def ranges(self, table: Any) -> Any:
        for name in cast("dict[str, Any]", table):
            if not _SYMBOL.fullmatch(name):
                raise self.fault(f"the range of {name!r} is given, which is no size")
        return table

    def metadata(self, table: Any) -> Any:
        return {name: str(table[name]) for name in _METADATA if name in cast("dict[str, Any]", table)}

    def identifier(self, name: Any) -> str:
        if not isinstance(name, str) or (name and not _IDENTIFIER.fullmatch(name)):
            raise self.fault(f"a value is called {str(name)[:80]!r}, which is no name")
        return name

    def identifiers(self, names: Any) -> Any:
        for name in cast("list[Any]", names):
            self.identifier(name)
        return names

    def qualified(self, name: Any) -> str:
        if not isinstance(name, str) or not _FQN.fullmatch(name):
            raise self.fault(f"a tensor or module is called {str(name)[:80]!r}, which is no name")
        return name

    def custom(self, value: Any) -> Any:
        if value:
            raise UsageError(
                f"{self.path}: the program holds a custom object ({str(value)[:80]}), which is stored as a pickle; "
                "export it with tensors only, or pass --trust-pickle if you trust whoever made the file"
            )
        return value

    def tree(self, text: Any) -> str:
        try:
            protocol, schema = json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise self.fault(f"a tree specification is {str(text)[:80]!r}") from error
        self.subtree(schema)
        return json.dumps([protocol, schema])

    def subtree(self, schema: Any) -> None:
        kind, context = schema["type"], schema["context"]
        if kind not in _CONTAINERS and not _is_known_output(kind):
            raise UsageError(
                f"{self.path}: the program takes or returns a {kind}, which is not known here; export it with tuples, "
                "lists and dicts, or load it in a factory: FILE.py:FACTORY"
            )
        if "__enum__" in str(context):
            raise self.fault(f"a tree specification names an enumeration: {str(context)[:80]!r}")
        if kind is not None and isinstance(context, str):
            keys = json.loads(context)
            # Keys of keyword arguments become names of parameters in generated source.
            if isinstance(keys, list):
                for key in cast("list[Any]", keys):
                    if isinstance(key, str):
                        self.identifier(key)
        for child in schema["children_spec"]:
            self.subtree(child)


def _inner(outer: str, name: str) -> str:
    """The key that decides how an entry is vetted: names of values in a table are no keys of the schema."""
    return "" if outer.endswith("_values") or outer == "as_string_to_argument" else name


def _is_known_output(kind: Any) -> bool:
    """Whether a type is one of transformers' output classes, which register themselves when they are imported."""
    if not isinstance(kind, str) or not re.fullmatch(r"transformers\.modeling_outputs\.\w+", kind, re.ASCII):
        return False
    try:
        import_module("transformers.modeling_outputs")
    except ModuleNotFoundError:
        return False
    return kind in pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE

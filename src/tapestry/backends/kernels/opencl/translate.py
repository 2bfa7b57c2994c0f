"""The WGSL that our kernels are written in as OpenCL C, so that one text serves both.

The part of WGSL that the kernels use: buffers and functions of floats, integers and vectors; functions and variables
stand before what uses them. Names of functions end in ``_``, so that OpenCL's own are free. Buffers and workgroup
memory, which a function of OpenCL C does not see, are passed on by each function to those that use them.

Not here: the words of OpenCL C (words), and any kernel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tapestry.backends.kernels.opencl.words import (
    BUILTINS,
    CONTRACTED,
    HELPERS,
    LANES,
    RESERVED,
    SAME,
    TYPES,
    Buffer,
)

_TOKEN = re.compile(
    r"\s+|//[^\n]*|(?P<float>\d+\.\d*(?:[eE][+-]?\d+)?f?|\d+[eE][+-]?\d+f?|\d+f)|(?P<int>0x[0-9a-fA-F]+[ui]?|\d+[ui]?)"
    r"|(?P<name>[A-Za-z_]\w*)|(?P<sign>->|\+\+|--|<<|>>|&&|\|\||[-+*/%&|^=!<>]=|[-+*/%&|^=!<>(){}\[\],.;:@])"
)
#: Binary operators by how strongly they bind, as in C.
_BINDS = {
    **dict.fromkeys(("||",), 1), **dict.fromkeys(("&&",), 2), "|": 3, "^": 4, "&": 5,
    **dict.fromkeys(("==", "!="), 6), **dict.fromkeys(("<", "<=", ">", ">="), 7),
    **dict.fromkeys(("<<", ">>"), 8), **dict.fromkeys(("+", "-"), 9), **dict.fromkeys(("*", "/", "%"), 10),
}  # fmt: skip
_TRUTH = frozenset(("||", "&&", "==", "!=", "<", "<=", ">", ">="))


class TranslationError(ValueError):
    """The text is not of the part of WGSL that is translated, or not WGSL."""


def translated(source: str, stored: Sequence[str], constants: Mapping[str, int | float] | None = None) -> str:
    """A compute shader as OpenCL C. ``stored``: the dtype of each buffer, in the order of their bindings.

    float16 and bfloat16 are stored as their bits, bool as bytes. ``constants`` are known by their names. The result
    has one kernel, of the name of the shader's entry point. TranslationError for a text that is none.
    """
    return _Translator(source, stored, constants or {}).module()


@dataclass(frozen=True)
class _Value:
    """An expression: its text, its type in WGSL, and of an element of a buffer whose it is and its place."""

    text: str
    type: str
    buffer: str = ""
    index: str = ""


@dataclass
class _Function:
    """A function under translation or done: what it gives, and the module's variables that it needs."""

    result: str
    needs: dict[str, None] = field(default_factory=dict[str, None])


class _Translator:
    def __init__(self, source: str, stored: Sequence[str], constants: Mapping[str, int | float]) -> None:
        self._tokens = _tokens(source)
        self._at = 0
        self._stored = stored
        self._buffers: dict[str, Buffer] = {}
        self._shared: dict[str, str] = {}  # workgroup memory → how many floats
        self._constants = {
            name: _Value(f"{value!r}f", "f32") if isinstance(value, float) else _Value(f"{value}u", "u32")
            for name, value in constants.items()
        }
        self._functions: dict[str, _Function] = {}
        self._scopes: list[dict[str, str]] = []
        self._current = _Function("")
        self._helpers: dict[str, None] = {}

    # Reading.

    def _next(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1][1]

    def _peek(self, ahead: int = 0) -> str:
        return self._tokens[self._at + ahead][1]

    def _take(self, text: str) -> bool:
        if self._peek() == text:
            self._at += 1
            return True
        return False

    def _want(self, text: str) -> None:
        if not self._take(text):
            raise TranslationError(f"expected {text!r}, got {self._around()!r}")

    def _around(self) -> str:
        return " ".join(text for _, text in self._tokens[self._at : self._at + 8])

    def _name(self) -> str:
        kind, text = self._tokens[self._at]
        if kind != "name":
            raise TranslationError(f"expected a name, got {self._around()!r}")
        self._at += 1
        return text

    def _type(self) -> str:
        """A type; an array as ``array`` of its element and, where it has one, its length: ``array f32 64``."""
        name = self._name()
        if name != "array":
            if name not in TYPES:
                raise TranslationError(f"type {name}: expected one of {', '.join(TYPES)}, or an array")
            return name
        self._want("<")
        element = self._type()
        length = self._next() if self._take(",") else ""
        self._want(">")
        return f"array {element} {length.rstrip('u')}".strip()

    # The module.

    def module(self) -> str:
        parts: list[str] = []
        while self._tokens[self._at][0] != "end":
            parts.append(self._item())
        helpers = [HELPERS[name] for name in self._helpers]
        return "".join([CONTRACTED, *helpers, *parts])

    def _item(self) -> str:
        attributes: dict[str, str] = {}
        while self._take("@"):
            name = self._name()
            attributes[name] = ""
            if self._take("("):
                attributes[name] = self._next()
                self._want(")")
        if self._take("fn"):
            return self._entry(attributes) if "compute" in attributes else self._function()
        if self._take("var"):
            return self._variable(attributes)
        raise TranslationError(f"expected fn or var, got {self._around()!r}")

    def _variable(self, attributes: Mapping[str, str]) -> str:
        self._want("<")
        space, access = self._next(), ""
        if self._take(","):
            access = self._next()
        self._want(">")
        name = self._name()
        self._want(":")
        kind = self._type()
        made = ""
        if space == "storage":
            stored = self._stored[int(attributes["binding"])]
            self._buffers[name] = Buffer(kind.split()[1], stored, access == "read_write")
        elif space == "workgroup":
            self._shared[name] = kind.split()[2]
        else:
            self._want("=")
            made = f"__constant {TYPES[kind]} {_c(name)} = {self._expression().text};\n"
            self._scopes[:0] = [{}] if not self._scopes else []
            self._scopes[0][name] = kind
        self._want(";")
        return made

    def _function(self) -> str:
        name = self._name()
        self._want("(")
        given: list[tuple[str, str]] = []
        while not self._take(")"):
            parameter = self._name()
            self._want(":")
            given.append((parameter, self._type()))
            self._take(",")
        result = self._type() if self._take("->") else ""
        body = self._body(_Function(result), dict(given))
        function = self._current
        self._functions[name] = function
        parameters = [f"{TYPES[kind]} {_c(parameter)}" for parameter, kind in given]
        parameters += [self._parameter(need) for need in function.needs]
        return f"{TYPES.get(result, 'void')} {name}_({', '.join(parameters) or 'void'}) {body}\n"

    def _entry(self, attributes: Mapping[str, str]) -> str:
        name = self._name()
        self._want("(")
        given: list[tuple[str, str, str]] = []
        while not self._take(")"):
            self._want("@")
            self._want("builtin")
            self._want("(")
            builtin = self._name()
            self._want(")")
            parameter = self._name()
            self._want(":")
            given.append((parameter, self._type(), builtin))
            self._take(",")
        body = self._body(_Function(""), {parameter: kind for parameter, kind, _ in given})
        parameters = [self._parameter(buffer) for buffer in self._buffers]
        lines = [f"__local float {_c(shared)}[{count}];" for shared, count in self._shared.items()]
        for parameter, kind, builtin in given:
            lines.append(f"const {TYPES[kind]} {_c(parameter)} = {BUILTINS[builtin]};")
        joined = "\n".join(lines)
        size = f"__attribute__((reqd_work_group_size({attributes['workgroup_size']}, 1, 1)))"
        return f"__kernel {size}\nvoid {name}({', '.join(parameters)}) {{\n{joined}\n{body}\n}}\n"

    def _parameter(self, name: str) -> str:
        if name in self._buffers:
            return f"{self._buffers[name].pointer} restrict {_c(name)}"
        return f"__local float* {_c(name)}"

    # Statements.

    def _body(self, function: _Function, given: dict[str, str]) -> str:
        self._current = function
        self._scopes = [*self._scopes[:1], {}] if self._scopes else [{}, {}]
        self._scopes[-1].update(given)
        text = self._block()
        del self._scopes[1:]
        return text

    def _block(self) -> str:
        self._want("{")
        self._scopes.append({})
        lines: list[str] = []
        while not self._take("}"):
            lines.append(self._statement())
        self._scopes.pop()
        return "\n".join(["{", *lines, "}"])

    def _statement(self) -> str:
        word = self._peek()
        if word == "{":
            return self._block()
        if self._take(";"):
            return ""
        if self._take("if"):
            return self._choice()
        if self._take("for"):
            return self._loop()
        if self._take("return"):
            value = "" if self._peek() == ";" else f" {self._expression().text}"
            self._want(";")
            return f"return{value};"
        text = self._simple()
        self._want(";")
        return text

    def _choice(self) -> str:
        condition = self._expression().text
        # Two pairs of parentheses around == make Clang ask whether an assignment was meant.
        text = f"if {condition if _whole(condition) else f'({condition})'} {self._block()}"
        if self._take("else"):
            text += f" else {self._choice() if self._take('if') else self._block()}"
        return text

    def _loop(self) -> str:
        self._want("(")
        self._scopes.append({})
        first = self._simple()
        self._want(";")
        condition = self._expression().text
        self._want(";")
        step = self._simple().rstrip(";")
        self._want(")")
        text = f"for ({first} {condition}; {step}) {self._block()}"
        self._scopes.pop()
        return text

    def _simple(self) -> str:
        """A declaration, an assignment or a call, with its semicolon."""
        if self._peek() in ("let", "var"):
            return self._declared(constant=self._next() == "let")
        target = self._postfix()
        sign = self._next()
        if sign == "++":
            return f"{target.text}++;"
        if sign in (";", ")"):
            self._at -= 1
            return f"{target.text};"
        value = self._expression()
        if sign == "=" and target.buffer:
            buffer = self._buffers[target.buffer]
            if buffer.stored == "bfloat16":
                self._helpers["bfloat_bits_"] = None
            return buffer.write(_c(target.buffer), target.index, value.text)
        if not sign.endswith("=") or sign in _TRUTH or target.buffer:
            raise TranslationError(f"expected an assignment, got {sign!r} before {self._around()!r}")
        return f"{target.text} {sign} {value.text};"

    def _declared(self, constant: bool) -> str:
        name = self._name()
        kind = self._type() if self._take(":") else ""
        if not self._take("="):
            self._scopes[-1][name] = kind
            return f"{TYPES[kind]} {_c(name)};"
        value = self._expression()
        kind = kind or ("i32" if value.type == "int" else value.type)
        self._scopes[-1][name] = kind
        if kind.startswith("array"):
            _, element, length = kind.split()
            return f"{TYPES[element]} {_c(name)}[{length}] = {value.text};"
        return f"{'const ' if constant else ''}{TYPES[kind]} {_c(name)} = {value.text};"

    # Expressions.

    def _expression(self, least: int = 1) -> _Value:
        left = self._unary()
        while (binds := _BINDS.get(self._peek(), 0)) >= least:
            sign = self._next()
            right = self._expression(binds + 1)
            kind = "bool" if sign in _TRUTH else left.type if sign in ("<<", ">>") else _joint(left.type, right.type)
            left = _Value(f"({left.text} {sign} {right.text})", kind)
        return left

    def _unary(self) -> _Value:
        if self._take("-"):
            value = self._unary()
            return _Value(f"(-{value.text})", value.type)
        if self._take("!"):
            return _Value(f"(!{self._unary().text})", "bool")
        if self._take("&"):
            return _Value(f"(&{self._unary().text})", "pointer")
        return self._postfix()

    def _postfix(self) -> _Value:
        value = self._primary()
        while True:
            if self._take("."):
                member = self._name()
                value = _Value(f"{value.text}.{member}", "u32" if value.type == "vec3u" else "f32")
            elif self._take("["):
                index = self._expression()
                self._want("]")
                value = self._element(value, index)
            else:
                return value

    def _element(self, value: _Value, index: _Value) -> _Value:
        if value.type == "buffer":
            buffer = self._buffers[value.buffer]
            text = buffer.read(_c(value.buffer), index.text)
            return _Value(text, buffer.element, value.buffer, index.text)
        if value.type in LANES:
            if re.fullmatch(r"\d+u?", index.text):
                return _Value(f"{value.text}.s{int(index.text.rstrip('u')):x}", "f32")
            if not value.buffer:
                raise TranslationError(f"a lane of {value.text}: only a number or a buffer's has one in OpenCL C")
            buffer = self._buffers[value.buffer]
            return _Value(buffer.lane(_c(value.buffer), value.index, index.text), "f32")
        return _Value(f"{value.text}[{index.text}]", value.type.split()[1])

    def _primary(self) -> _Value:
        if self._take("("):
            value = self._expression()
            self._want(")")
            return _Value(value.text if _whole(value.text) else f"({value.text})", value.type)
        kind, text = self._tokens[self._at]
        if kind == "float":
            self._at += 1
            return _Value(f"{text.rstrip('f')}{'' if '.' in text or 'e' in text.lower() else '.0'}f", "f32")
        if kind == "int":
            self._at += 1
            types = {"u": "u32", "i": "i32"}
            return _Value(text.rstrip("i"), types.get(text[-1], "int"))
        name = self._name()
        if self._peek() == "(" or name in ("array", "bitcast"):
            return self._call(name)
        return self._variable_named(name)

    def _variable_named(self, name: str) -> _Value:
        for scope in reversed(self._scopes):
            if name in scope:
                return _Value(_c(name), scope[name])
        if name in self._constants:
            return self._constants[name]
        if name in ("true", "false"):
            return _Value(name, "bool")
        if name in self._buffers:
            self._current.needs[name] = None
            return _Value(_c(name), "buffer", name)
        if name in self._shared:
            self._current.needs[name] = None
            return _Value(_c(name), f"array f32 {self._shared[name]}")
        raise TranslationError(f"{name}: no variable of that name before {self._around()!r}")

    def _call(self, name: str) -> _Value:
        made = ""
        if name == "array":
            self._at -= 1
            made = self._type()
        elif name == "bitcast":
            self._want("<")
            made = self._type()
            self._want(">")
        self._want("(")
        given: list[_Value] = []
        while not self._take(")"):
            given.append(self._expression())
            self._take(",")
        texts = [value.text for value in given]
        if name == "array":
            return _Value(f"{{{', '.join(texts)}}}", made)
        if name == "bitcast":
            return _Value(f"as_{TYPES[made]}({texts[0]})", made)
        if name in TYPES:
            return _Value(f"(({TYPES[name]})({', '.join(texts) or '0.0f'}))", name)
        if name in self._functions:
            function = self._functions[name]
            self._current.needs.update(function.needs)
            return _Value(f"{name}_({', '.join([*texts, *map(_c, function.needs)])})", function.result)
        return self._builtin(name, given, texts)

    def _builtin(self, name: str, given: list[_Value], texts: list[str]) -> _Value:
        if name == "workgroupBarrier":
            return _Value("barrier(CLK_LOCAL_MEM_FENCE)", "")
        if name == "workgroupUniformLoad":
            self._helpers["uniform_load_"] = None
            return _Value(f"uniform_load_({texts[0]})", "f32")
        if name == "fma":
            return _Value(f"({texts[0]} * {texts[1]} + {texts[2]})", given[2].type)
        if name == "select":
            return _Value(f"({texts[2]} ? {texts[1]} : {texts[0]})", _joint(given[0].type, given[1].type))
        if name == "dot":
            return _Value(f"dot({', '.join(texts)})", "f32")
        if name in SAME:
            kind = given[0].type
            for value in given[1:]:
                kind = _joint(kind, value.type)
            float_name, whole_name = SAME[name]
            return _Value(f"{whole_name if kind in ('u32', 'i32', 'int') else float_name}({', '.join(texts)})", kind)
        raise TranslationError(f"{name}: no function of that name before its call")


def _tokens(source: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(source):
        match = _TOKEN.match(source, at)
        if match is None:
            raise TranslationError(f"not a word of WGSL: {source[at : at + 20]!r}")
        if match.lastgroup is not None:
            found.append((match.lastgroup, match.group()))
        at = match.end()
    return [*found, ("end", "")]


def _whole(text: str) -> bool:
    """Whether one pair of parentheses is around the whole of an expression."""
    depth = 0
    for place, letter in enumerate(text):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if not depth:
            return letter == ")" and place == len(text) - 1
    return False


def _joint(left: str, right: str) -> str:
    """The type of what is made of two values: a vector where one is, a number without a type takes the other's."""
    if left == "int":
        return right
    return right if right in LANES else left


def _c(name: str) -> str:
    """A name in WGSL as OpenCL C may have it."""
    return f"{name}_" if name in RESERVED else name

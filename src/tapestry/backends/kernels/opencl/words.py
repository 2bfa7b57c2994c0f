"""The words of OpenCL C for those of WGSL: types, functions, and how elements of a buffer are read and written.

Not here: reading WGSL (translate).
"""

from __future__ import annotations

from dataclasses import dataclass

#: WGSL's types → those of OpenCL C. Wider vectors than four are not WGSL's: kernels that only OpenCL gets use them.
TYPES = {
    "f32": "float",
    "u32": "uint",
    "i32": "int",
    "bool": "bool",
    "vec3u": "uint3",
    "vec4f": "float4",
    "vec8f": "float8",
    "vec16f": "float16",
}
#: Vectors of floats → how many.
LANES = {"vec4f": 4, "vec8f": 8, "vec16f": 16}
#: Functions that both languages have, of one type → OpenCL C's name for float32, and for integers.
SAME = {
    "min": ("fmin", "min"),
    "max": ("fmax", "max"),
    "abs": ("fabs", "abs"),
    "clamp": ("clamp", "clamp"),
    "exp": ("exp", ""),
    "log": ("log", ""),
    "sqrt": ("sqrt", ""),
    "tanh": ("tanh", ""),
    "round": ("rint", ""),
}
#: What a parameter of an entry point with this attribute is.
BUILTINS = {
    "workgroup_id": "(uint3)((uint)get_group_id(0), (uint)get_group_id(1), (uint)get_group_id(2))",
    "num_workgroups": "(uint3)((uint)get_num_groups(0), (uint)get_num_groups(1), (uint)get_num_groups(2))",
    "local_invocation_index": "(uint)get_local_id(0)",
}
#: Words of OpenCL C that a name in WGSL may be.
RESERVED = frozenset(
    (
        *("auto", "char", "short", "int", "long", "float", "double", "half", "signed", "unsigned", "void", "kernel"),
        *("global", "local", "constant", "private", "volatile", "restrict", "static", "inline", "register", "union"),
        *("goto", "sizeof", "do", "default", "case", "uint", "uchar", "ushort", "ulong", "event_t"),
    )
)
#: Allows one instruction for a product and its sum. They stand for WGSL's ``fma``, whose namesake in OpenCL is a call
#: of dozens of instructions on some processors.
CONTRACTED = "#pragma OPENCL FP_CONTRACT ON\n"
#: Helpers, each written where it is called.
HELPERS = {
    "uniform_load_": """float uniform_load_(__local const float* given) {
  barrier(CLK_LOCAL_MEM_FENCE);
  float value = *given;
  barrier(CLK_LOCAL_MEM_FENCE);
  return value;
}
""",
    "bfloat_bits_": """ushort bfloat_bits_(float value) {
  return isnan(value) ? (ushort)0x7fc0 : (ushort)(as_uint(value) >> 16);
}
""",
}


@dataclass(frozen=True)
class Buffer:
    """A buffer as kernels address it: WGSL's ``element``, what is ``stored`` (a dtype), and whether it is written."""

    element: str
    stored: str
    written: bool

    @property
    def pointer(self) -> str:
        """The type of the argument that it is."""
        kinds = {"float16": "half", "bfloat16": "ushort", "bool": "uchar"}
        kind = kinds.get(self.stored, TYPES[self.element])
        return f"__global {'' if self.written else 'const '}{kind}*"

    def read(self, name: str, index: str) -> str:
        """The element at an index, as WGSL's type."""
        lanes = LANES.get(self.element)
        wide = str(lanes or "")
        if self.stored == "float16":
            return f"vload_half{wide}({index}, {name})"
        if self.stored == "bfloat16":
            bits = f"convert_uint{wide}(vload{wide}({index}, {name}))" if lanes else f"(uint){name}[{index}]"
            return f"as_float{wide}({bits} << 16)"
        if self.stored == "bool":
            return f"(uint){name}[{index}]"
        return f"{name}[{index}]"

    def lane(self, name: str, index: str, lane: str) -> str:
        """A value of the vector at an index."""
        one = Buffer("f32", self.stored, self.written)
        place = f"({index}) * {LANES[self.element]}u + {lane}"
        return one.read(f"((__global const float*){name})" if self.stored == "float32" else name, place)

    def write(self, name: str, index: str, value: str) -> str:
        """The statement that writes a value, which the type that is stored has (16-bit floats are rounded before)."""
        if self.stored == "float16":
            return f"vstore_half_rte({value}, {index}, {name});"
        if self.stored == "bfloat16":
            return f"{name}[{index}] = bfloat_bits_({value});"
        return f"{name}[{index}] = {value};"

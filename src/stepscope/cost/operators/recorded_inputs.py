"""An operator's inputs as the profiler recorded them: texts in, tensors with shape and element size out.

| recorded                                                     | read as                                      |
|--------------------------------------------------------------|----------------------------------------------|
| dims `[[8, 16], [16], []]`, types `["float", "float", "Scalar"]` | tensors (8, 16) and (16) of 4 bytes, nothing |
| dims `[[], []]`, types `["float", "TensorList"]`             | a tensor of one element, an unrecorded list  |
| dims `[[[8], [4]]]`, types `["TensorList"]`                  | a list of two shapes; its type is not recorded |

The profiler writes lists of more than 30 tensors as an empty list: their size is then unknown, not zero.
"""

import math

from stepscope.dataclass import dataclass
from stepscope.side_file import parsed_json

Shape = tuple[int, ...]

LIST = "TensorList"
"""How the profiler writes the type of a list of tensors."""

_TYPES = {
    "double": ("fp64", 8),
    "float": ("fp32", 4),
    "c10::Half": ("fp16", 2),
    "c10::BFloat16": ("bf16", 2),
    "long int": ("int64", 8),
    "long": ("int64", 8),
    "long long": ("int64", 8),
    "unsigned long": ("int64", 8),
    "unsigned long int": ("int64", 8),
    "int": ("int32", 4),
    "unsigned int": ("int32", 4),
    "short": ("int16", 2),
    "short int": ("int16", 2),
    "unsigned short": ("int16", 2),
    "unsigned short int": ("int16", 2),
    "char": ("int8", 1),
    "signed char": ("int8", 1),
    "unsigned char": ("int8", 1),
    "bool": ("bool", 1),
    "c10::complex<float>": ("complex64", 8),
    "c10::complex<double>": ("complex128", 16),
}
MAX_DIMS = 64
MAX_ELEMENTS = 1 << 50
"""a tensor of more than a petabyte is no tensor"""
_FP8 = "c10::Float8_"
_SCALAR_TYPE_BYTES = {0: 1, 1: 1, 2: 2, 3: 4, 4: 8, 5: 2, 6: 4, 7: 8, 11: 1, 15: 2, 23: 1, 24: 1, 25: 1, 26: 1}
"""Element size by c10::ScalarType, as a recorded `dtype` argument gives it (6 is float, 15 is bfloat16)."""


@dataclass(frozen=True)
class Tensor:
    """One tensor input."""

    shape: Shape
    dtype: str
    element_bytes: int

    @property
    def elements(self) -> int:
        """Return the number of elements; a tensor without dimensions has one."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Return the size of the data."""
        return self.elements * self.element_bytes


@dataclass(frozen=True)
class TensorList:
    """One input that is a list of tensors; `shapes` is None where the profiler left them out."""

    shapes: tuple[Shape, ...] | None

    @property
    def elements(self) -> int | None:
        """Return the number of elements in the whole list, None where unrecorded."""
        return None if self.shapes is None else sum(math.prod(shape) for shape in self.shapes)


Input = Tensor | TensorList | None
"""None is anything that is no tensor: a number, a list of numbers, an absent optional."""


@dataclass(frozen=True)
class Call:
    """One recorded call of an operator."""

    name: str
    inputs: tuple[Input, ...]
    concrete: tuple[str, ...] = ()
    """The values of the inputs that are no tensors, as text; empty where the profiler did not record them."""
    list_elements: int | None = None
    list_element_bytes: int | None = None

    def tensor(self, index: int) -> Tensor | None:
        """Return the input at `index` if it is a tensor."""
        value = self.inputs[index] if index < len(self.inputs) else None
        return value if isinstance(value, Tensor) else None

    def tensors(self, first: int = 0, last: int | None = None) -> tuple[Tensor, ...]:
        """Return the tensors among inputs `first` to `last` (exclusive)."""
        return tuple(value for value in self.inputs[first:last] if isinstance(value, Tensor))

    def lists(self) -> tuple[TensorList, ...]:
        """Return the inputs that are lists of tensors."""
        return tuple(value for value in self.inputs if isinstance(value, TensorList))

    def integers(self, index: int) -> Shape | None:
        """Return the recorded value at `index` as integers: `"[1, 1]"` is (1, 1), `"2"` is (2,)."""
        return _integers(self.concrete[index]) if index < len(self.concrete) else None

    def flags(self, index: int) -> tuple[bool, ...] | None:
        """Return the recorded value at `index` as truth values: `"[True, False]"` is (True, False)."""
        words = self.concrete[index].strip("[]").split(",") if index < len(self.concrete) else []
        known = [word.strip() for word in words]
        return tuple(word == "True" for word in known) if known and set(known) <= {"True", "False"} else None

    def scalar_type_bytes(self, index: int) -> int | None:
        """Return the element size of the dtype argument at `index`, None where unrecorded."""
        code = self.integers(index)
        return _SCALAR_TYPE_BYTES.get(code[0]) if code else None


def read_call(
    name: str,
    *,
    dims: str | None,
    types: str | None,
    concrete: str | None = None,
    list_elements: int | None = None,
    list_element_bytes: int | None = None,
) -> Call | None:
    """Return the call that the recorded texts describe, None where they are absent or not what they should be."""
    shapes, names = _json_list(dims), _json_list(types)
    if shapes is None or names is None or len(shapes) != len(names):
        return None
    inputs = tuple(_input(shape, kind) for shape, kind in zip(shapes, names, strict=True))
    values = tuple(value if isinstance(value, str) else "" for value in _json_list(concrete) or ())
    return Call(name, inputs, values, list_elements, list_element_bytes)


def element_type(name: str) -> tuple[str, int] | None:
    """Return (dtype, bytes) of an element type as the profiler writes it: `c10::Half` is ("fp16", 2)."""
    if name.startswith(_FP8):
        return ("fp8", 1)
    return _TYPES.get(name)


def _input(shape: object, kind: object) -> Input:
    if kind == LIST:
        return TensorList(_shapes(shape))
    known = element_type(kind) if isinstance(kind, str) else None
    dims = _shape(shape)
    return Tensor(dims, *known) if known is not None and dims is not None else None


def _shape(value: object) -> Shape | None:
    if not isinstance(value, list) or not all(type(size) is int and size >= 0 for size in value):
        return None
    return tuple(value) if len(value) <= MAX_DIMS and math.prod(value) <= MAX_ELEMENTS else None


def _shapes(value: object) -> tuple[Shape, ...] | None:
    if not isinstance(value, list) or not value:
        return None
    shapes = [_shape(item) for item in value]
    return tuple(shape for shape in shapes if shape is not None) if None not in shapes else None


def _json_list(text: str | None) -> list[object] | None:
    try:
        value = parsed_json(text).value if text else None
    except ValueError:
        return None
    return value if isinstance(value, list) else None


def _integers(text: str) -> Shape | None:
    try:
        values = tuple(int(word) for word in text.strip("[]").split(","))
    except ValueError:
        return None
    return values if all(abs(value) <= MAX_ELEMENTS for value in values) else None

"""Which kernel of a trace is the one that Nsight Compute calls by another spelling of its name?

    trace   void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, ...>(int, ...)
    ncu     void at::vectorized_elementwise_kernel<(int)4, at::CUDAFunctor_add<float>, ...>(int, T2, T3)

Equal functions are candidates. Where several differ only in what is in their brackets, the one with the most words in
common is meant; where two have as many, none is.
"""

import re
from collections.abc import Iterable

_CAST = re.compile(r"\((?:unsigned |signed )?(?:int|long|short|char|bool|long long)\)(?=[-\w])")
_NO_NAME = re.compile(r"\(anonymous namespace\)|<unnamed>|\{anonymous\}")
_WORD = re.compile(r"[A-Za-z_]\w+|\d+")
_FILLERS = frozenset(
    {
        *("void", "int", "char", "unsigned", "long", "const", "operator", "lambda", "instance"),
        *("at", "native", "std", "array"),
    }
)
"""words that one spelling has and another leaves out"""
_TYPE_NUMBER = re.compile(r"^T\d+$|^\d+ul$|^ul$")
MIN_ALIKE = 0.3
"""words that two spellings of one kernel have in common at least, of all their words"""


def kernels_named(names: Iterable[str], kernels: Iterable[str]) -> dict[str, str]:
    """Return for each name the kernel of a trace that it stands for; a name that could be two is left out."""
    by_function: dict[str, list[str]] = {}
    for kernel in sorted(set(kernels)):
        by_function.setdefault(function_of(kernel), []).append(kernel)
    words = {kernel: _words(kernel) for kernels in by_function.values() for kernel in kernels}
    out = {}
    for name in set(names):
        found = _meant(name, by_function.get(function_of(name), []), words)
        if found is not None:
            out[name] = found
    return out


def function_of(name: str) -> str:
    """Return the name of the function alone, without return type, namespaces, brackets and parameters.

    >>> function_of("void at::native::(anonymous namespace)::softmax_warp_forward<float, 11>(float*)")
    'softmax_warp_forward'
    """
    plain = _NO_NAME.sub("anonymous", name)
    head = re.split(r"[<(]", plain, maxsplit=1)[0].strip()
    return head.rsplit(" ", 1)[-1].rsplit("::", 1)[-1]


def _meant(name: str, candidates: list[str], words: dict[str, frozenset[str]]) -> str | None:
    if name in candidates:
        return name
    if "<" not in name:  # the function alone was written, or it has no arguments
        return candidates[0] if len(candidates) == 1 else None
    mine = _words(name)
    alike = sorted(((_share(mine, words[kernel]), kernel) for kernel in candidates), reverse=True)
    best, kernel = alike[0] if alike else (0.0, "")
    is_clear = len(alike) < 2 or best > alike[1][0]
    return kernel if is_clear and best >= MIN_ALIKE else None


def _share(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / max(len(one | other), 1)


def _words(name: str) -> frozenset[str]:
    plain = _CAST.sub("", _NO_NAME.sub("", name))
    return frozenset(w for w in _WORD.findall(plain) if w not in _FILLERS and not _TYPE_NUMBER.match(w))

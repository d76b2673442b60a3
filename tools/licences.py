"""List every package that stepscope brings along, its extras and what these need in turn, with its licence.

    python tools/licences.py            a table; exit code 1 where a licence is not among those allowed

Read from the metadata of what is installed; a package that is not installed is listed as such and not judged.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution

from packaging.requirements import Requirement

ALLOWED = {
    *("0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC"),
    *("MIT", "MIT-0", "MPL-2.0", "PSF-2.0", "Python-2.0", "Unlicense", "Zlib"),
}
"""SPDX names; all may be used by a package under Apache-2.0. MPL-2.0 asks for its own files alone."""
_CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
_OWN_WORDS = {
    **dict.fromkeys(("Apache 2.0", "Apache 2", "Apache License 2.0", "Apache License, Version 2.0"), "Apache-2.0"),
    **dict.fromkeys(("BSD", "BSD License", "BSD 3-Clause", "BSD 3-Clause License", "New BSD"), "BSD-3-Clause"),
    "MIT License": "MIT",
}
_LICENCE = "License :: OSI Approved :: "


@dataclass(frozen=True)
class Package:
    """One package that comes along."""

    name: str
    version: str | None
    """None where it is not installed"""
    licences: tuple[str, ...]
    """by SPDX, all of which hold; empty where nothing is said"""
    needed_by: str

    @property
    def allowed(self) -> bool:
        """Whether every licence is among those allowed; what is not installed is not judged."""
        return self.version is None or (bool(self.licences) and set(self.licences) <= ALLOWED)


def packages(name: str = "stepscope", *, without: tuple[str, ...] = ("dev", "all")) -> list[Package]:
    """Return what a package needs with its extras, and what that needs in turn, by name."""
    extras = set(distribution(name).metadata.get_all("Provides-Extra") or ()) - set(without)
    found: dict[str, Package] = {}
    left = [(one, name) for one in _needs(name, extras)]
    while left:
        requirement, by = left.pop()
        key = _key(requirement.name)
        if key == _key(name) or key in found:
            continue
        found[key] = _package(key, by)
        if found[key].version is not None:
            left += [(one, key) for one in _needs(key, requirement.extras)]
    return [found[key] for key in sorted(found)]


def _needs(name: str, extras: set[str]) -> Iterator[Requirement]:
    for text in distribution(name).requires or ():
        requirement = Requirement(text)
        environments = [{"extra": extra} for extra in ("", *extras)]
        if requirement.marker is None or any(map(requirement.marker.evaluate, environments)):
            yield requirement


def _package(name: str, by: str) -> Package:
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return Package(name, None, (), by)
    return Package(name, found.version, _licences(name), by)


def _licences(name: str) -> tuple[str, ...]:
    """Return the licences of an installed package by SPDX: its expression, classifiers, or own words."""
    metadata = distribution(name).metadata
    expression = "".join(metadata.get_all("License-Expression") or ())
    if expression:
        return tuple(map(_choice, re.split(r"\bAND\b", expression)))
    names = [c.removeprefix(_LICENCE) for c in metadata.get_all("Classifier") or () if c.startswith(_LICENCE)]
    own = "".join(metadata.get_all("License") or ()).strip().partition("\n")[0]
    return tuple(_CLASSIFIERS.get(n, n) for n in names) or ((_OWN_WORDS.get(own, own[:40]),) if own else ())


def _choice(text: str) -> str:
    """Return the licence of `A OR B` that is allowed, where one is: the user may choose."""
    offered = [part.strip(" ()") for part in re.split(r"\bOR\b", text)]
    return next((one for one in offered if one in ALLOWED), " OR ".join(offered))


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> int:
    """Return 1 where a licence is not allowed."""
    found = packages()
    for one in found:
        said = " AND ".join(one.licences) or ("not installed" if one.version is None else "unknown")
        print(f"{one.name:<24} {one.version or '-':<14} {said:<52} needed by {one.needed_by}")
    refused = [one.name for one in found if not one.allowed]
    if refused:
        print(f"not among the licences allowed: {', '.join(refused)}", file=sys.stderr)
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())

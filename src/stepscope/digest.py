"""What tells one content from another: a short text that follows from all of it.

`hashlib` loads OpenSSL, 3 MB that nothing else here needs, and takes longer for that than to tell a file.
"""

try:
    from _blake2 import blake2b
except ImportError:  # an interpreter that was built without
    from hashlib import blake2b

_BYTES = 16


class Digest:
    """A digest in the making; the same bytes in other pieces give the same."""

    def __init__(self, first: bytes = b"") -> None:
        self._state = blake2b(first, digest_size=_BYTES)

    def add(self, more: bytes) -> None:
        self._state.update(more)

    def text(self, characters: int = 2 * _BYTES) -> str:
        return self._state.hexdigest()[:characters]


def digest_of(content: bytes, characters: int = 2 * _BYTES) -> str:
    """Return the first hexadecimal digits of a content's digest.

    >>> digest_of(b"a", 8), digest_of(b"b", 8)
    ('27c35e6e', '96172b4c')
    """
    return Digest(content).text(characters)

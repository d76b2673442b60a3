"""Raw texts of the scanner to strings: each distinct one is decoded once, escapes resolved, damage replaced."""

import json
import re
from collections.abc import Iterable
from typing import NamedTuple

from stepscope.trace.scanner import Text, TextFlags

_BAD_ESCAPE = re.compile(r'\\(?:u[0-9a-fA-F]{4}|["\\/bfnrt])|\\')
_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile("[\x00-\x1f]")
_SPACE = re.compile(r'("(?:[^"\\]|\\.)*")|\s*([,:])\s*|\s+')
_BARE_QUOTE = re.compile(r'\\.|"', re.DOTALL)

_PLAIN, _JSON = TextFlags(0), TextFlags.JSON
ELLIPSIS = "…"
REPLACEMENT = "\ufffd"


class DecodedText(NamedTuple):
    """A string and what had to be done to it."""

    text: str
    replaced: bool
    shortened: bool


def decode_all(texts: Iterable[Text]) -> list[DecodedText]:
    """Return the strings of the scanner's texts, in their order."""
    return [decode(text) for text in texts]


def decode(text: Text) -> DecodedText:
    """Return one string: the content of a JSON string, or the JSON text of another value in one spelling."""
    try:
        plain, replaced = text.raw.decode(), False
    except UnicodeDecodeError:
        plain, replaced = text.raw.decode(errors="replace"), True
    if text.flags is _PLAIN:
        return DecodedText(plain, replaced, False)
    if text.flags is _JSON:  # as next to all others are; to ask for each flag takes longer than the rest
        return DecodedText(_one_spelling(plain), replaced, False)
    clean = plain
    if TextFlags.FIXED in text.flags:
        clean = _CONTROL.sub(REPLACEMENT, plain)
    replaced = replaced or clean != plain
    if TextFlags.JSON in text.flags:
        clean = _one_spelling(clean)
    elif TextFlags.ESCAPED in text.flags:
        clean, bad_escapes = _unescaped(clean)
        replaced = replaced or bad_escapes
    if TextFlags.SHORTENED in text.flags:
        return DecodedText(clean.rstrip(REPLACEMENT) + ELLIPSIS, replaced, True)
    return DecodedText(clean, replaced, False)


def _unescaped(text: str) -> tuple[str, bool]:
    text = _BARE_QUOTE.sub(lambda m: '\\"' if m.group() == '"' else m.group(), text)
    sound = _BAD_ESCAPE.sub(lambda m: m.group() if len(m.group()) > 1 else "\\\\", text)
    plain = json.loads(f'"{sound}"', strict=False)
    whole = _SURROGATE.sub(REPLACEMENT, plain)
    return whole, sound != text or whole != plain


def _one_spelling(text: str) -> str:
    """Return a JSON text with `, ` and `: ` between its parts and no other white space outside strings."""
    if "\n" not in text and "," not in text.replace(", ", ""):
        return text
    if "\\" not in text and text.count('"') % 2 == 0:
        parts = text.split('"')
        parts[::2] = ["".join(part.split()).replace(",", ", ").replace(":", ": ") for part in parts[::2]]
        return '"'.join(parts)
    return _SPACE.sub(lambda m: m.group(1) or (m.group(2) or "") + (" " if m.group(2) else ""), text)

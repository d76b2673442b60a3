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


class DecodedTexts(NamedTuple):
    """Strings, and which of them something had to be done to."""

    texts: list[str]
    replaced: set[str]
    shortened: set[str]


def decode_all(texts: Iterable[Text]) -> DecodedTexts:
    """Return the strings of the scanner's texts in their order: the content of a JSON string, or the JSON text of
    another value in one spelling.
    """
    out: list[str] = []
    replaced: set[str] = set()
    shortened: set[str] = set()
    for raw, flags in texts:
        try:
            plain, is_sound = raw.decode(), True
        except UnicodeDecodeError:
            plain, is_sound = raw.decode(errors="replace"), False
        if flags is _JSON:  # as next to all are that are not plain; to ask for each flag takes longer than the rest
            plain = _one_spelling(plain)
        elif flags is not _PLAIN:
            plain, is_sound = _cleaned(plain, flags, is_sound)
            if TextFlags.SHORTENED in flags:
                shortened.add(plain)
        out.append(plain)
        if not is_sound:
            replaced.add(plain)
    return DecodedTexts(out, replaced, shortened)


def _cleaned(text: str, flags: TextFlags, is_sound: bool) -> tuple[str, bool]:
    """Return a text that has any flags as it is meant, and whether nothing of it had to be replaced."""
    clean = _CONTROL.sub(REPLACEMENT, text) if TextFlags.FIXED in flags else text
    is_sound = is_sound and clean == text
    if TextFlags.JSON in flags:
        clean = _one_spelling(clean)
    elif TextFlags.ESCAPED in flags:
        clean, bad_escapes = _unescaped(clean)
        is_sound = is_sound and not bad_escapes
    return clean.rstrip(REPLACEMENT) + ELLIPSIS if TextFlags.SHORTENED in flags else clean, is_sound


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

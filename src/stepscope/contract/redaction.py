"""Secrets removed from command lines, settings and environment variables before they are written or shown.

    --hf-token abc          --hf-token <redacted>         by the name of an option, a variable or a JSON field
    WANDB_API_KEY=abc       WANDB_API_KEY=<redacted>
    https://me:pw@host/a?s  https://host/a                user, query and fragment of every address
    x hf_AbC...             x <redacted>                  by a well-known form of access tokens
    -u me:abc -p abc        -u <redacted> -p <redacted>   `-u` with a colon; `-p` unless it is a port

Names of ordinary training options stay: `--tokenizer`, `--pad-token`, `--image-key`, `--max-tokens 512`.
Standard library only: both sides import it.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit, urlunsplit

REDACTED = "<redacted>"

# words before `token` or `key` that make it a credential
_ISSUER = (
    "access account admin api app auth aws azure bearer bot client deploy encryption gcp gh git github gitlab hf hub "
    "huggingface license login master oauth openai private refresh registry secret service session shared sign "
    "signing ssh storage wandb"
)
# words before `token` or `key` in options of training scripts
_ORDINARY = """
add answer assistant audio backward batch begin bos cache caption chosen class cls column conditioning config content
data dataset decoder dict embedding end eos eot feature field fim first forced foreign forward generated group image
img index initializer input instruction json label last latent mask max message messages metric min model modifier
monitor multi new next num output pad partition patch per placeholder prefix primary prompt query question record
register rejected response reward row sample sep single sort source special start state stop suffix target text think
time tool trigger unk video word
"""
_ALWAYS = re.compile(
    r"passw|passphrase|passcode|secret|credential|jwt|apikey|authori[sz]ation|cookie"
    rf"|(?:^|_)(?:{_ISSUER.replace(' ', '|')})_?(?:token|key)s?(?:_id)?$"
    r"|(?:^|_)auth(?:_|$)|^(?:token|key)$"
)
_AMBIGUOUS = re.compile(r"(?:^|_)(?:([a-z0-9]+)_)?(?:token|key|pass|pwd|pw|pat|sas|sig|signature)$")
_SWITCH = r"(?:true|false|yes|no|on|off|none|null|auto)?"
_HARMLESS_IF_AMBIGUOUS = re.compile(rf"{_SWITCH}|[-+.\d]+(?:e[-+]?\d+)?|<.*>|\[.*\]", re.IGNORECASE)

# options that are secrets by their values alone; `-p` is a password, or a port
_HARMLESS_AS_PORT = re.compile(r"[\d.:]*|<.*>")
_HARMLESS_AS_USER = re.compile(r"[^:]*|\d+:\d+")  # not `name:password`

_SCHEME = r"[a-zA-Z0-9][a-zA-Z0-9+.-]*://"
_ADDRESS = re.compile(rf"(?<![a-zA-Z0-9+.-]){_SCHEME}(?:(?![,;|]{_SCHEME})[^\s'\"])+")
_ACCESS_TOKEN = re.compile(
    r"\b(?:hf_\w{16,}|sk-[\w-]{16,}|gh[a-z]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|xox[a-z]-[\w-]{10,}"
    r"|A[KS]IA[A-Z0-9]{16}|eyJ[\w-]+\.eyJ[\w-]+\.[\w-]*)|(?<=[Bb]earer )\s*[^\s'\"]+|(?<=: [Bb]asic )\s*[\w+/]{8,}=*"
)
_QUOTED = r"\"(?:[^\"\\]|\\.)*\"|'[^']*'"
# name=value, name = "value", "name": value
_NAME = re.compile(r"(?<![\w.-])(-*[A-Za-z_][\w.-]*)(?:=|\s*=\s*(?=[\"'])|[\"']\s*:\s*)")
_VALUE = re.compile(rf"{_QUOTED}|[^\s'\"]*")
_SHELL_WORD = re.compile(rf"(?:{_QUOTED}|[^\s'\"])+")


def redacted(value: Any) -> Any:
    """Return texts, and lists and dicts of them, without secrets; a list of texts is read as a command line."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return {name: _named(str(name), inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return _command(value)
    return value


def shown_address(address: str) -> str:
    """Return an address without user, password, query and fragment, which may be secrets.

    >>> shown_address("https://me:secret@host/run/rank0.json?X-Signature=abc")
    'https://host/run/rank0.json'
    """
    try:
        parts = urlsplit(address)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:  # no host that could be
        scheme, sign, rest = re.split("[?#]", address)[0].partition("://")
        return scheme + sign + rest.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def _command(words: Sequence[Any]) -> list[Any]:
    out: list[Any] = []
    for word in words:
        option = out[-1] if out and isinstance(out[-1], str) else ""
        takes_it = option.startswith("-") and "=" not in option and isinstance(word, str) and not word.startswith("-")
        out.append(_named(option, word) if takes_it else redacted(word))
    return out


def _named(name: str, value: Any) -> Any:
    return REDACTED if isinstance(value, str) and _is_secret(name, value) else redacted(value)


def _text(text: str) -> str:
    text = _ADDRESS.sub(lambda found: shown_address(found[0]), text)
    text = _ACCESS_TOKEN.sub(REDACTED, _pairs(text))
    words = list(_SHELL_WORD.finditer(text))  # a command line in one word, as after `bash -c`
    for option, word in reversed(list(pairwise(words))):
        name, value = option[0], word[0]
        if name.startswith("-") and "=" not in name and not value.startswith("-") and _is_secret(name, value):
            text = text[: word.start()] + REDACTED + text[word.end() :]
    return text


def _pairs(text: str) -> str:
    out, at = [], 0
    while name := _NAME.search(text, at):
        out.append(text[at : name.end()])
        at = name.end()
        harmless = _harmless_values(name[1])
        value = _VALUE.match(text, at) if harmless is not None else None
        if harmless and value and not harmless.fullmatch(value[0].strip("'\"")):
            quote = value[0][0] if value[0][0] in "'\"" else ""
            out.append(quote + REDACTED + quote)
            at = value.end()
    return "".join(out) + text[at:]


def _is_secret(name: str, value: str) -> bool:
    harmless = _harmless_values(name)
    return harmless is not None and not harmless.fullmatch(value)


def _harmless_values(name: str) -> re.Pattern[str] | None:
    if name == "-p":
        return _HARMLESS_AS_PORT
    words = re.sub(r"[^A-Za-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)).strip("_").lower()
    if _ALWAYS.search(words):
        return re.compile(_SWITCH, re.IGNORECASE)
    if name == "-u" or words.endswith("user"):
        return _HARMLESS_AS_USER
    ambiguous = _AMBIGUOUS.search(words.removesuffix("_id"))
    return _HARMLESS_IF_AMBIGUOUS if ambiguous and ambiguous[1] not in _ORDINARY.split() else None

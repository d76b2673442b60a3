"""Addresses such as `s3://bucket/run`. Standard library only: every command imports it."""

import re

# supported schemes, and the package that each needs in addition to fsspec
SCHEMES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "http": "aiohttp",
    "https": "aiohttp",
    "memory": "fsspec",
}
_ADDRESS = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def is_address(name: object) -> bool:
    """Return whether a name is an address and not a path; `file://` and the like are refused where they are used."""
    return isinstance(name, str) and _ADDRESS.match(name) is not None


def scheme_of(address: str) -> str:
    """Return the scheme of an address in small letters."""
    return address.partition("://")[0].lower()


def is_web(address: str) -> bool:
    """Return whether an address is of a web server, which has no folders but pages that list files."""
    return scheme_of(address) in ("http", "https")


def base_name(address: str) -> str:
    """Return the last part of an address's path, that of the host where it has none.

    >>> base_name("s3://bucket/runs/monday/"), base_name("s3://bucket"), base_name("https://host/a.json?x=1")
    ('monday', 'bucket', 'a.json')
    """
    from stepscope.contract.redaction import shown_address  # compiles patterns that few commands need

    return shown_address(address).rstrip("/").rpartition("/")[2]

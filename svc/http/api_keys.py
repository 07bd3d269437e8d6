"""The key file: who holds which key, and what each may ask for.

A line is `KEY`, `NAME:KEY` or `NAME:sha256:HEX`, and after the key of a name its limits: `rpm=60 tpm=100000 parallel=4 share=0.5`,
and `admin` for one that may do what concerns everybody.
"""

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from svc.errors import ConfigError
from svc.http.rate_limits import NO_LIMITS, Limits, Tenant

_KEY = re.compile(r"[!-~]+")
_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]{0,63}):(.+)")
_HASH = "sha256"
_ADMIN = "admin"
_HEX = re.compile(r"[0-9a-fA-F]{64}")
_MAX_FILE_BYTES = 2**20  # far more keys than anybody has: a larger file is another one, named by mistake
MAX_TENANTS = 1000  # each is a label of some metrics
MAX_LIMIT = 10**12


@dataclass(frozen=True, slots=True)
class KeyLine:
    """One line of the file. The name is empty for a key that has none."""

    name: str
    digest: bytes
    limits: Limits = NO_LIMITS


class BadLineError(Exception):
    """What is wrong with a line of the file. Never quotes the key."""


def _count(value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,13}", value) or not 1 <= int(value) <= MAX_LIMIT:
        raise ValueError(f"a whole number from 1 to {MAX_LIMIT}")
    return int(value)


def _share(value: str) -> float:
    if not re.fullmatch(r"[01]?\.?[0-9]{0,6}", value) or not any(map(str.isdigit, value)) or not 0 < float(value) <= 1:
        raise ValueError("a number above 0 and at most 1")
    return float(value)


_LIMITS: dict[str, tuple[str, Callable[[str], int | float]]] = {
    "rpm": ("requests_per_minute", _count),
    "tpm": ("tokens_per_minute", _count),
    "parallel": ("parallel_requests", _count),
    "share": ("queue_share", _share),
}


def parse_line(line: str) -> KeyLine | None:
    """None for an empty line and a comment. BadLineError says what is wrong."""
    line = line.strip()
    if not line or line.startswith("#"):
        return None
    key, *settings = line.split()
    if not _KEY.fullmatch(key):
        raise BadLineError("is no key: letters beyond ASCII are not allowed")
    name, digest = _named_key(key)
    limits = _limits(settings)
    if settings and not name:
        raise BadLineError("has limits or rights, but no name: write NAME:KEY")
    return KeyLine(name, digest, limits)


def _named_key(text: str) -> tuple[str, bytes]:
    """`KEY`, `NAME:KEY`, `sha256:HEX` or `NAME:sha256:HEX`."""
    named = _NAMED.fullmatch(text)
    name, key = (named[1], named[2]) if named and named[1] != _HASH else ("", text)
    kind, colon, hexadecimal = key.partition(":")
    if kind == _HASH and colon:
        if not _HEX.fullmatch(hexadecimal):
            raise BadLineError("is no key: 64 hexadecimal digits must follow sha256:")
        return name, bytes.fromhex(hexadecimal)
    return name, digest_of(key)


def _limits(settings: Iterable[str]) -> Limits:
    values: dict[str, int | float] = {}
    for setting in settings:
        if setting == _ADMIN and _ADMIN not in values:
            values[_ADMIN] = True
            continue
        name, equals, value = setting.partition("=")
        if not equals or name not in _LIMITS:
            raise BadLineError(f"is no key: only {'=, '.join(_LIMITS)}= and {_ADMIN} may follow it after a space")
        field, read = _LIMITS[name]
        if field in values:
            raise BadLineError(f"has {name}= twice")
        try:
            values[field] = read(value)
        except ValueError as error:
            raise BadLineError(f"has a {name}= that is not {error}") from None
    return Limits(**values)  # type: ignore[arg-type]


def digest_of(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


class ApiKeys:
    """The keys that open the server. Only their digests are kept. Owner of the tenants who hold them."""

    def __init__(self, lines: Iterable[str], source: str = "the keys") -> None:
        """`lines` as in the file. ConfigError names the `source` and the line that cannot be used."""
        self._tenants: dict[str, Tenant] = {}
        self._digests: dict[bytes, Tenant] = {}
        for number, text in enumerate(lines, 1):
            try:
                line = parse_line(text)
                if line is not None:
                    self._add(line)
            except BadLineError as error:
                raise ConfigError(f"api_key_file: line {number} of {source} {error}") from None

    def _add(self, line: KeyLine) -> None:
        tenant = self._tenants.setdefault(line.name, Tenant(line.name, line.limits))
        if tenant.limits != line.limits:
            raise BadLineError(f"has other limits or rights than an earlier line of {line.name}: all keys of a name share them")
        if self._digests.setdefault(line.digest, tenant) is not tenant:
            raise BadLineError("has a key that an earlier line gives to another name")
        if len(self._tenants) > MAX_TENANTS:
            raise BadLineError(f"has one name more than the {MAX_TENANTS} that there may be")

    @classmethod
    def load(cls, path: str) -> "ApiKeys":
        """The keys of a file. ConfigError names the file and the line."""
        try:
            with open(path, "rb") as file:
                data = file.read(_MAX_FILE_BYTES + 1)
        except OSError as error:
            raise ConfigError(f"api_key_file: cannot read {path}: {error.strerror or error}") from None
        if len(data) > _MAX_FILE_BYTES:
            raise ConfigError(f"api_key_file: {path} is larger than {_MAX_FILE_BYTES} bytes")
        try:
            lines = data.decode("utf-8").splitlines()
        except UnicodeDecodeError:
            raise ConfigError(f"api_key_file: {path} is not UTF-8 text") from None
        keys = cls(lines, path)
        if not keys.num_keys:
            raise ConfigError(f"api_key_file: {path} has no key in it")
        return keys

    def replace(self, others: "ApiKeys") -> None:
        """From now on the keys and limits of `others` count, and no longer the present ones. What a tenant has
        left stays, as far as it fits."""
        tenants = {name: self._tenants.get(name) or tenant for name, tenant in others._tenants.items()}
        for name, tenant in tenants.items():
            tenant.limit(others._tenants[name].limits)
        self._tenants = tenants
        self._digests = {digest: tenants[tenant.name] for digest, tenant in others._digests.items()}

    @property
    def num_keys(self) -> int:
        return len(self._digests)

    def tenant_of(self, offered: str) -> Tenant | None:
        """Who holds that key; None: it is not one of the keys. The time taken tells nothing about them."""
        digest = digest_of(offered)
        holders = [tenant for known, tenant in self._digests.items() if hmac.compare_digest(digest, known)]
        return holders[0] if holders else None

    def __repr__(self) -> str:
        return f"<ApiKeys, {len(self._digests)} of them>"

"""Which requests share what is known: those of one space of the cache."""

import hashlib

from svc.errors import RequestError

MAX_SALT_CHARS = 1024


def cache_salt(value: str | None) -> str:
    """RequestError for one that is too long."""
    if value is not None and len(value) > MAX_SALT_CHARS:
        raise RequestError(f"cache_salt has {len(value)} characters; at most {MAX_SALT_CHARS} are allowed.", param="cache_salt")
    return value or ""


def space_of(salt: str, key_name: str, *, isolated: bool) -> str:
    """The name of the space of a request: empty for the common one. `isolated`: each holder of keys has one of its own."""
    holder = f"key {key_name}" if isolated and key_name else ""
    if not (salt or holder):
        return ""
    return hashlib.blake2b(f"{len(holder)} {holder}{salt}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

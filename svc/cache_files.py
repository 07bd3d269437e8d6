"""Opens the cache on disk for a loaded model."""

import hashlib
from pathlib import Path

from svc.config import Config
from svc.disk.records import Identity
from svc.disk.store import DiskStore
from svc.gguf.fingerprint import fingerprint
from svc.log import Logger
from svc.model_loading import LoadedModel

NUMERICS = 1  # to be raised when a change makes states or pages that older ones do not go with


def identity_of(config: Config, loaded: LoadedModel) -> Identity:
    """What its pages and states are good for: the same weights, configuration, layout and kind of device."""
    layout = loaded.runner.plan.layout
    settings = hashlib.blake2b(f"{NUMERICS} {loaded.config!r}".encode(), digest_size=8).hexdigest()
    return Identity(
        fingerprint=f"{fingerprint(loaded.file)}-{settings}",
        backend=loaded.runner.name + (" exact" if config.exact and loaded.runner.name == "cuda" else ""),
        page_tokens=layout.page_tokens,
        page_bytes=layout.page_bytes,
        state_bytes=layout.state_bytes,
        kv_type=layout.kv_type,
    )


def open_store(config: Config, loaded: LoadedModel, identity: Identity, logger: Logger) -> DiskStore | None:
    """The store in `cache_dir`, None without one. Says in the log what it found. ConfigError if the folder cannot be used."""
    if config.cache_dir is None:
        return None
    store = DiskStore.open(Path(config.cache_dir), identity, config.cache_dir_bytes, hybrid=loaded.runner.plan.layout.hybrid)
    for skipped in store.skipped:
        logger.warning("cache_file_skipped", file=str(skipped.path), reason=skipped.reason)
    stats = store.stats()
    logger.info("cache_dir", folder=config.cache_dir, pages=stats.pages, states=stats.states, bytes=stats.used_bytes)
    return store

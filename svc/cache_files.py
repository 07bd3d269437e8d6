"""Opens the cache on disk for a loaded model."""

import hashlib
import tempfile
from pathlib import Path

from svc.config import Config
from svc.disk.records import Identity
from svc.disk.store import DiskStore, check_folder
from svc.errors import ConfigError
from svc.gguf.fingerprint import fingerprint
from svc.log import Logger
from svc.model_loading import LoadedModel

NUMERICS = 1  # to be raised when a change makes states or pages that older ones do not go with


def identity_of(config: Config, loaded: LoadedModel) -> Identity:
    """What its pages and states are good for: the same weights, configuration, layout and kind of device."""
    layout = loaded.runner.plan.layout
    settings = hashlib.blake2b(f"{NUMERICS} {loaded.config!r} {layout.snapshot_type}".encode(), digest_size=8).hexdigest()
    # A start without files need not read samples of all tensors: with a large model that is thousands of places on the disk.
    weights = fingerprint(loaded.file) if config.cache_dir is not None or config.slot_save_path is not None else "unread"
    return Identity(
        fingerprint=f"{weights}-{settings}",
        backend=loaded.runner.name + (" exact" if config.exact and loaded.runner.name == "cuda" else ""),
        page_tokens=layout.page_tokens,
        page_bytes=layout.page_bytes,
        state_bytes=layout.snapshot_bytes,
        kv_type=layout.kv_type,
    )


def slot_folder(config: Config) -> Path | None:
    """Where slots are saved, None if they are not. ConfigError if files cannot be made there."""
    if config.slot_save_path is None:
        return None
    folder = Path(config.slot_save_path)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise ConfigError(f"slot_save_path: {folder} cannot be used: {error.strerror}") from None


def check_folders(config: Config) -> None:
    """ConfigError if a folder for the cache or for slots cannot be used. That another process has it is no error."""
    slot_folder(config)
    if config.cache_dir is not None:
        check_folder(Path(config.cache_dir))


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

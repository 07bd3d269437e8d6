"""`headrace serve --check`: everything that a start would refuse, without reading a weight."""

from svc.cache_files import check_folders
from svc.config import Config
from svc.http.access import CorsPolicy
from svc.http.address import is_free
from svc.http.api_keys import ApiKeys
from svc.log import Logger
from svc.memory.plan import MemoryPlan
from svc.model.arch import load_model
from svc.model.layers.loading import NoStore
from svc.model_loading import PreparedModel, model_name, prepare


def check_server(config: Config, logger: Logger) -> str:
    """One sentence about the server that would start. HeadraceError, as the start would raise it, names what is wrong.

    A port in use is no error: the server that is to be restarted uses it.
    """
    keys = None if config.api_key_file is None else ApiKeys.load(config.api_key_file)
    CorsPolicy(config.cors_origins)
    check_folders(config)
    free = is_free(config.host, config.port)
    prepared = prepare(config, logger)
    _check_tensors(prepared)
    plan = prepared.plan
    return (
        f"{model_name(config)} can be served on {config.host}, port {config.port}{'' if free else ' (in use now)'}, "
        f"by {prepared.ops.name} with {plan.num_rows} slots, {plan.kv_tokens} tokens of KV and {plan.num_snapshots} snapshots, "
        + ("to everybody" if keys is None else f"to holders of {keys.num_keys} API keys")
    )


def _check_tensors(prepared: PreparedModel) -> None:
    """Names, shapes and types of all tensors, and sizes for which the backend has a kernel."""
    opened, ops = prepared.opened, prepared.ops
    load_model(opened.source, opened.config, NoStore() if ops.copies_weights else ops, read_in=False)
    ops.caches(MemoryPlan(prepared.plan.layout, num_pages=1, num_rows=1, num_snapshots=1))

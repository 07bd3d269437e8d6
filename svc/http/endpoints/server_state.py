"""GET /props and GET /slots, llama-server's views of a server."""

from dataclasses import replace

from aiohttp import web
from msgspec import UNSET

from svc.http.cache_report import counts_out, report_out
from svc.http.endpoints.native import settings
from svc.http.errors import not_supported, unavailable
from svc.http.native_schema import DefaultSettingsOut, ModalitiesOut, NextTokenOut, PropsOut, SlotOut
from svc.http.options import native_options
from svc.http.reply import json_response
from svc.http.schema import NativeIn
from svc.http.service import DOOR, Service
from svc.http.text.tokenizer import Tokenizer
from svc.http.text_threads import TEXT_THREADS
from svc.slots.stats import SlotView


async def props(request: web.Request) -> web.Response:
    """`chat_template` is a string even where there is none: clients split it without asking."""
    service = request.app[DOOR].service
    tokenizer = service.tokenizer
    tool_use = service.template.tool_use if service.template else None
    return json_response(
        PropsOut(
            default_generation_settings=_defaults(service),
            total_slots=service.engine.stats().num_slots,
            model_alias=service.model.name,
            model_path=service.model.path,
            modalities=ModalitiesOut(),
            chat_template=service.template.source if service.template else "",
            bos_token=_spelled(tokenizer.bos_id, tokenizer),
            eos_token=_spelled(tokenizer.eos_id, tokenizer),
            build_info=service.fingerprint,
            chat_template_tool_use=tool_use.source if tool_use else UNSET,
        )
    )


def _defaults(service: Service) -> DefaultSettingsOut:
    """What a request to /completion that asks for nothing gets."""
    unsaid = service.answers.sampling
    params = settings(service, native_options(NativeIn(prompt=""), service.vocabulary, unsaid))
    params.seed = int(unsaid.get("seed", -1))  # every request draws its own unless the operator has one
    return DefaultSettingsOut(service.engine.context_tokens, params)


def _spelled(token: int | None, tokenizer: Tokenizer) -> str:
    return "" if token is None else tokenizer.token_text(token)


async def slots(request: web.Request) -> web.Response:
    """Every slot, taken or not; with `?fail_on_no_slot=1` a 503 when all are taken."""
    service = request.app[DOOR].service
    if not service.show_slots:
        raise not_supported("This server does not tell what its slots do: slots_endpoint is off.")
    views, show = service.engine.slots(), service.show_prompts
    num_slots = service.engine.stats().num_slots
    if len(views) >= num_slots and request.query.get("fail_on_no_slot"):
        raise unavailable("Every slot is in use.", "no_slot_available")
    # What is shown of them is decoded while the next step is planned: their tokens are copied, the rest are numbers.
    taken = {view.row: replace(view, tokens=view.tokens.copy()) if show else view for view in views}
    num_bytes = sum(view.tokens.nbytes for view in views) if show else 0
    return await request.app[TEXT_THREADS].run(num_bytes, _slots, num_slots, taken, service)


def _slots(num_slots: int, taken: dict[int, SlotView], service: Service) -> web.Response:
    return json_response([_slot(row, taken.get(row), service) for row in range(num_slots)])


def _slot(row: int, view: SlotView | None, service: Service) -> SlotOut:
    n_ctx = service.engine.context_tokens
    if view is None:
        files = service.engine.slot_files
        held = files.held_tokens(row) if files is not None else 0
        return SlotOut(row, n_ctx, False, False, [NextTokenOut(False, -1, 0)], "idle", n_past=held)
    tokens = view.tokens.tolist() if service.show_prompts else None
    if tokens is None:
        cache = counts_out(view.cache, view.prompt_tokens, view.cached_tokens)
    else:
        cache = report_out(view.cache, tokens[: view.prompt_tokens], view.cached_tokens, service.tokenizer)
    return SlotOut(
        id=row,
        n_ctx=n_ctx,
        is_processing=True,
        speculative=False,
        next_token=[NextTokenOut(True, view.max_tokens - view.generated, view.generated)],
        state=view.state,
        request_id=view.request_id,
        n_prompt_tokens=view.prompt_tokens,
        n_prompt_tokens_cached=view.cached_tokens,
        n_past=view.position,
        cache=cache,
        prompt=UNSET if tokens is None else service.tokenizer.decode_known(tokens[: view.prompt_tokens]),
        generated=UNSET if tokens is None else service.tokenizer.decode_known(tokens[view.prompt_tokens :]),
    )

"""POST /slots/{id}?action=save, restore or erase, as llama-server has them, and GET /slots/saved: the files there are."""

from aiohttp import web

from svc.errors import RequestError
from svc.http.body import with_body
from svc.http.decoding import decode
from svc.http.native_schema import SavedSlotOut, SlotActionOut, SlotTimingsOut
from svc.http.reply import json_response
from svc.http.schema import SlotFileIn
from svc.http.service import DOOR, Service
from svc.slots.slot_files import SlotFiles

ACTIONS = ("save", "restore", "erase")


async def act(request: web.Request) -> web.Response:
    """RequestError for a slot that is not there, an unknown action, or a file that cannot be used."""
    service = request.app[DOOR].service
    slot, action = _slot(request.match_info["slot"], service), request.query.get("action")
    if action not in ACTIONS:
        raise RequestError(f"action must be one of {', '.join(ACTIONS)}, not {action!r}", param="action", code="invalid_action")
    files = _files(service)
    if action == "erase":
        return json_response(SlotActionOut(slot, n_erased=files.erase(slot)))
    name = (await with_body(request, _decode)).filename
    if action == "save":
        done = await files.save(slot, name)
        timings = SlotTimingsOut(save_ms=1000 * done.duration_s)
        return json_response(SlotActionOut(slot, name, n_saved=done.num_tokens, n_written=done.num_bytes, timings=timings))
    done = await files.restore(slot, name)
    timings = SlotTimingsOut(restore_ms=1000 * done.duration_s)
    return json_response(SlotActionOut(slot, name, n_restored=done.num_tokens, n_read=done.num_bytes, timings=timings))


async def saved(request: web.Request) -> web.Response:
    """Every file of the folder; `problem` says why one cannot be restored here."""
    files = await _files(request.app[DOOR].service).files()
    return json_response([SavedSlotOut(file.name, file.size, int(file.modified), file.num_tokens, file.problem) for file in files])


def _decode(raw: bytearray) -> SlotFileIn:
    return decode(SlotFileIn, raw)


def _slot(text: str, service: Service) -> int:
    num_slots = service.engine.stats().num_slots
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) < num_slots):
        raise RequestError(f"there is no slot {text[:20]!r}: this server has {num_slots}", param="id_slot", code="invalid_slot")
    return int(text)


def _files(service: Service) -> SlotFiles:
    files = service.engine.slot_files
    if files is None:
        raise RequestError("This server does not save slots.", code="not_supported")
    return files

"""POST /tokenize and /detokenize, in llama-server's shapes."""

from aiohttp import web

from svc.errors import RequestError
from svc.http.body import with_body
from svc.http.fields import blaming, token_ids
from svc.http.reply import json_response
from svc.http.schema import DetokenizeIn, DetokenizeOut, TokenizeIn, TokenizeOut, TokenPieceOut, decode
from svc.http.service import DOOR
from svc.http.text.tokenizer import Tokenizer

MAX_TOKENIZE_CHARS = 2**22  # more than any context holds; about a second of work


async def tokenize(request: web.Request) -> web.Response:
    tokenizer = request.app[DOOR].service.tokenizer
    return await with_body(request, _tokenize, tokenizer)


def _tokenize(raw: bytearray, tokenizer: Tokenizer) -> web.Response:
    body = decode(TokenizeIn, raw)
    if len(body.content) > MAX_TOKENIZE_CHARS:
        message = f"content has {len(body.content)} characters; at most {MAX_TOKENIZE_CHARS} are tokenized in one request."
        raise RequestError(message, param="content", code="content_too_long")
    with blaming("content"):
        ids = tokenizer.encode(body.content, parse_special=body.parse_special)
    if body.add_special and tokenizer.add_bos and tokenizer.bos_id is not None:
        ids.insert(0, tokenizer.bos_id)
    return json_response(TokenizeOut([_piece(tokenizer, token) for token in ids] if body.with_pieces else ids))


async def detokenize(request: web.Request) -> web.Response:
    tokenizer = request.app[DOOR].service.tokenizer
    return await with_body(request, _detokenize, tokenizer)


def _detokenize(raw: bytearray, tokenizer: Tokenizer) -> web.Response:
    ids = token_ids(decode(DetokenizeIn, raw).tokens, "tokens", tokenizer.vocab_size)
    return json_response(DetokenizeOut(tokenizer.decode(ids)))


def _piece(tokenizer: Tokenizer, token: int) -> TokenPieceOut:
    raw = tokenizer.token_bytes(token)
    try:
        return TokenPieceOut(token, raw.decode())
    except UnicodeDecodeError:
        return TokenPieceOut(token, list(raw))

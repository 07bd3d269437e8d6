"""POST /tokenize and /detokenize, in llama-server's shapes."""

from aiohttp import web

from svc.http.fields import token_id
from svc.http.reply import json_response
from svc.http.schema import DetokenizeIn, DetokenizeOut, TokenizeIn, TokenizeOut, TokenPieceOut, decode
from svc.http.service import DOOR
from svc.http.text.tokenizer import Tokenizer


async def tokenize(request: web.Request) -> web.Response:
    tokenizer = request.app[DOOR].service.tokenizer
    body = decode(TokenizeIn, await request.read())
    ids = await tokenizer.encode_async(body.content, parse_special=body.parse_special)
    if body.add_special and tokenizer.add_bos and tokenizer.bos_id is not None:
        ids.insert(0, tokenizer.bos_id)
    return json_response(TokenizeOut([_piece(tokenizer, token) for token in ids] if body.with_pieces else ids))


async def detokenize(request: web.Request) -> web.Response:
    tokenizer = request.app[DOOR].service.tokenizer
    body = decode(DetokenizeIn, await request.read())
    ids = [token_id(value, f"tokens[{index}]", tokenizer.vocab_size) for index, value in enumerate(body.tokens)]
    return json_response(DetokenizeOut(tokenizer.decode(ids)))


def _piece(tokenizer: Tokenizer, token: int) -> TokenPieceOut:
    raw = tokenizer.token_bytes(token)
    try:
        return TokenPieceOut(token, raw.decode())
    except UnicodeDecodeError:
        return TokenPieceOut(token, list(raw))

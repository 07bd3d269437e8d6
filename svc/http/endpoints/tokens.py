"""POST /tokenize and /detokenize, in llama-server's shapes."""

from array import array

import msgspec
from aiohttp import web

from svc.errors import RequestError
from svc.http.body import with_body
from svc.http.decoding import decode
from svc.http.errors import CONTENT_TYPE
from svc.http.fields import blaming, token_ids
from svc.http.reply import json_response
from svc.http.schema import DetokenizeIn, DetokenizeOut, TokenizeIn, TokenPieceOut
from svc.http.service import DOOR
from svc.http.text.tokenizer import Tokenizer

MAX_TOKENIZE_CHARS = 2**22  # more than any context holds; about a second of work
MAX_TOKENIZE_TOKENS = 2**20  # where tokens are short, such as digits
ENCODED_AT_ONCE = 2**13  # tokens of an answer: the encoder holds the interpreter lock


async def tokenize(request: web.Request) -> web.Response:
    tokenizer = request.app[DOOR].service.tokenizer
    return await with_body(request, _tokenize, tokenizer)


def _tokenize(raw: bytearray, tokenizer: Tokenizer) -> web.Response:
    body = decode(TokenizeIn, raw)
    if len(body.content) > MAX_TOKENIZE_CHARS:
        message = f"content has {len(body.content)} characters; at most {MAX_TOKENIZE_CHARS} are tokenized in one request."
        raise RequestError(message, param="content", code="content_too_long")
    ids = array("i")  # a list of a million takes 40 MB
    with blaming("content"):
        for part in tokenizer.encode_parts(body.content, parse_special=body.parse_special):
            ids.extend(part)
            if len(ids) > MAX_TOKENIZE_TOKENS:
                message = f"content has more than the {MAX_TOKENIZE_TOKENS} tokens that are told in one request."
                raise RequestError(message, code="content_too_long")
    if body.add_special and tokenizer.add_bos and tokenizer.bos_id is not None:
        ids.insert(0, tokenizer.bos_id)
    return _answer(ids, tokenizer if body.with_pieces else None)


def _answer(ids: "array[int]", tokenizer: Tokenizer | None) -> web.Response:
    """{"tokens": [...]}, written part by part. With a tokenizer the pieces are told too."""
    parts = []
    for start in range(0, len(ids), ENCODED_AT_ONCE):
        part = ids[start : start + ENCODED_AT_ONCE].tolist()
        told = part if tokenizer is None else [_piece(tokenizer, token) for token in part]
        parts.append(msgspec.json.encode(told)[1:-1])
    return web.Response(body=b'{"tokens":[' + b",".join(parts) + b"]}", content_type=CONTENT_TYPE)


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

"""GET /openapi.json: valid OpenAPI 3.1, and true."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from svc.http.api_keys import ApiKeys
from svc.http.routes import ROUTES
from tests.fakes.fake_engine import FakeEngine, saying
from tests.http.harness import MODEL, Harness, serving

USER = [{"role": "user", "content": "hi"}]
GOOD: dict[str, Any] = {
    "/v1/chat/completions": {"messages": USER, "temperature": 0.5, "tools": None},
    "/v1/completions": {"prompt": ["a", "b"], "max_tokens": 3.0},
    "/completions": {"prompt": [1, "a"]},
    "/infill": {"input_prefix": "a", "input_suffix": "b", "input_extra": [{"text": "c"}]},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": USER, "max_tokens": 5},
    "/tokenize": {"content": "a"},
    "/apply-template": {"messages": USER},
}


async def _document(at: Harness) -> dict[str, Any]:
    status, document = await at.get("/openapi.json")
    assert status == 200
    return document


def _refs(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, member in value.items():
            yield from [member] if name == "$ref" else _refs(member)
    elif isinstance(value, list):
        for member in value:
            yield from _refs(member)


def _validator(document: dict[str, Any], schema: dict[str, Any]) -> Draft202012Validator:
    return Draft202012Validator({**schema, "components": document["components"]})


async def test_it_is_openapi_and_lists_every_route() -> None:
    """The rules of OpenAPI 3.1 that can be broken here: required members, names, parameters of paths, references, JSON schemas."""
    async with serving(FakeEngine()) as at:
        document = await _document(at)
    assert re.fullmatch(r"3\.1\.\d+", document["openapi"])
    assert {"title", "version"} <= document["info"].keys()
    paths = document["paths"]
    listed = {(method.upper(), path) for path, item in paths.items() for method in item}
    assert listed == {(route.method, route.path.replace("{model:.+}", "{model}")) for route in ROUTES}
    operations = [(path, operation) for path, item in paths.items() for operation in item.values()]
    assert len({operation["operationId"] for _, operation in operations}) == len(operations)
    for path, operation in operations:
        declared = {parameter["name"] for parameter in operation.get("parameters", ()) if parameter["required"]}
        assert declared == set(re.findall(r"{(\w+)}", path))
        for status, response in operation["responses"].items():
            assert re.fullmatch(r"[1-5](\d\d|XX)", status)
            assert response["description"]
        for requirement in operation.get("security", document["security"]):
            assert requirement.keys() <= document["components"]["securitySchemes"].keys()
    schemas = document["components"]["schemas"]
    assert all(re.fullmatch(r"[a-zA-Z0-9._-]+", name) for name in schemas)
    assert {ref.removeprefix("#/components/schemas/") for ref in _refs(document)} <= schemas.keys()
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("path", GOOD)
async def test_bodies_and_errors_are_what_it_says(path: str) -> None:
    """A body that is served is valid, one that is refused for its types is not, and the error has the form that is described."""
    async with serving(FakeEngine(saying("x"))) as at:
        document = await _document(at)
        operation = document["paths"][path]["post"]
        body = _validator(document, operation["requestBody"]["content"]["application/json"]["schema"])
        bad = dict.fromkeys(GOOD[path], 5)
        assert (await at.post(path, GOOD[path]))[0] == 200
        status, error = await at.post(path, bad)
    assert status == 400
    assert body.is_valid(GOOD[path])
    assert not body.is_valid(bad)
    described = operation["responses"]["4XX"]["content"]["application/json"]["schema"]
    _validator(document, described).validate(error)
    assert not _validator(document, described).is_valid({"error": "text"})


@pytest.mark.parametrize(
    "path", [*GOOD, "/v1/chat/completions/input_tokens", "/v1/messages/count_tokens", "/v1/responses/input_tokens"]
)
async def test_answers_are_what_it_says(path: str) -> None:
    """Whole answers fit their schemas, which ask for something; streams are announced where there are some."""
    body = GOOD.get(path) or GOOD[path.rpartition("/")[0]]
    async with serving(FakeEngine(saying("x"))) as at:
        document = await _document(at)
        described = document["paths"][path]["post"]["responses"]["200"]["content"]
        answers = _validator(document, described["application/json"]["schema"])
        status, answer = await at.post(path, body)
        async with at.client.post(path, json={**body, "stream": True}) as response:
            assert response.content_type in described
            assert (response.content_type == "text/event-stream") == ("text/event-stream" in described)
    assert status == 200
    for one in answer if isinstance(answer, list) else [answer]:
        answers.validate(one)
        assert not answers.is_valid({})


async def test_what_is_read_is_what_it_says() -> None:
    """Every GET answers in the type that is described, and JSON by its schema."""
    headers = {"x-api-key": "root"}
    async with serving(FakeEngine(saying("x")), keys=ApiKeys(["ops:root admin"])) as at:
        async with at.client.get("/openapi.json", headers=headers) as response:
            document = await response.json()
        for path, item in document["paths"].items():
            if "get" not in item or path.endswith("/slots/saved"):  # refused without a folder
                continue
            async with at.client.get(path.replace("{model}", MODEL), headers=headers) as response:
                described = item["get"]["responses"]["200"]["content"]
                assert (path, response.status, response.content_type) == (path, 200, *described)
                if response.content_type == "application/json":
                    _validator(document, described["application/json"]["schema"]).validate(await response.json())


async def test_routes_that_refuse_everything_have_no_success() -> None:
    """What needs another kind of model is described as an error alone."""
    async with serving(FakeEngine()) as at:
        document = await _document(at)
        assert (await at.post("/v1/embeddings", {}))[0] == 501
    assert "200" not in document["paths"]["/v1/embeddings"]["post"]["responses"]

"""schemathesis: requests made from /openapi.json, right ones and wrong ones; the answers must be as it says.

Usage: URL [requests of each kind to each route].
"""

import sys
from random import Random
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.openapi import from_url
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

URL = sys.argv[1]
REQUESTS = int(sys.argv[2]) if len(sys.argv) > 2 else 15
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
NOT_SUPPORTED = 501  # the routes of other kinds of models say so
LIMITS = ("max_tokens", "n_predict", "num_predict", "max_new_tokens", "max_completion_tokens", "max_output_tokens")
GENERATES = ("completions", "completion", "infill", "responses", "messages")
WITHOUT_SUCCESS = ("/v1/infill",)  # the bundled model has no tokens for it
TIMEOUT_S = 60


MESSAGES = [{"role": "user", "content": "hi"}]
GOOD = {
    "messages": MESSAGES,
    "prompt": "hi",
    "input": "hi",
    "input_prefix": "a = ",
    "input_suffix": "\n",
    "content": "hi",
    "tokens": [1, 2],
    "max_tokens": 3,
}


def eased(body: Any, required: list[str], random: Random) -> Any:
    """A request that mostly succeeds: what it must have is good, and of what it may have there is little."""
    if not isinstance(body, dict):
        return body
    others = sorted(body.keys() - set(required))
    kept = random.sample(others, min(len(others), random.choice((0, 1, 1, 2, 3))))
    return {name: body[name] for name in kept} | {name: GOOD[name] for name in required}


def bounded(body: Any) -> Any:
    """The same request for a short answer, whole: what `response_fields` leaves of it the document does not say."""
    if not isinstance(body, dict):
        return body
    kept = {name: value for name, value in body.items() if name not in (*LIMITS, "response_fields", "sse_ping_interval")}
    limit = "max_output_tokens" if "input" in body else "max_tokens"
    return kept | {limit: 3, **{name: 2 for name in ("n", "best_of") if isinstance(body.get(name), int)}}


def check(operation: schemathesis.APIOperation, kind: str, requests: int) -> dict[int, int]:
    """How many answers had which status."""
    statuses: dict[int, int] = {}
    required = _schema(operation).get("required", [])
    mode = GenerationMode.NEGATIVE if kind == "wrong" else GenerationMode.POSITIVE

    @settings(
        max_examples=requests,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), random=st.randoms(use_true_random=False))
    def send(case: schemathesis.Case, random: Random) -> None:
        if kind == "eased":
            case.body = eased(case.body, required, random)
        if operation.path.endswith(GENERATES):
            case.body = bounded(case.body)
        response = case.call(base_url=URL, timeout=TIMEOUT_S)
        statuses[response.status_code] = statuses.get(response.status_code, 0) + 1
        if response.status_code == NOT_SUPPORTED and "200" not in operation.definition.raw["responses"]:
            return
        case.validate_response(response, checks=CHECKS)

    send()
    return statuses


def _schema(operation: schemathesis.APIOperation) -> dict[str, Any]:
    """Of its body, empty if it has none."""
    body = operation.definition.raw.get("requestBody")
    if body is None:
        return {}
    name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    return DOCUMENT.raw_schema["components"]["schemas"][name]


DOCUMENT = from_url(f"{URL}/openapi.json")
failures = 0
for found in DOCUMENT.get_all_operations():
    operation = found.ok()
    is_copy = not operation.path.startswith("/v1") and f"/v1{operation.path}" in DOCUMENT.raw_schema["paths"]
    has_body = bool(_schema(operation))
    for kind in ("right", "eased", "wrong") if has_body else ("right",):
        try:
            statuses = check(operation, kind, REQUESTS if has_body and not is_copy else 2)
            print(operation.label, kind, statuses, flush=True)
            if kind == "eased" and not is_copy and operation.path not in WITHOUT_SUCCESS:
                assert statuses.get(200), f"none of them succeeded: {statuses}"
        except Exception as error:
            failures += 1
            print(operation.label, kind, "FAILS", str(error)[:3000], flush=True)
print(f"{failures} failures")
sys.exit(failures > 0)

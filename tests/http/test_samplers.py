"""`samplers`: which sampling steps run, as llama-server's clients say it."""

import pytest

from svc.compute.sampling.params import SamplingParams
from svc.errors import RequestError
from svc.http.samplers import MAX_NAMES, SAMPLERS, enabled_samplers, with_only

DEFAULT = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]  # llama-server's


@pytest.mark.parametrize(
    ("value", "enabled"),
    [
        (None, SAMPLERS),
        (DEFAULT, SAMPLERS),
        ("edskypmxt", SAMPLERS),
        (list(SAMPLERS), SAMPLERS),
        (["temperature", "top_k"], ("temperature", "top_k")),
        (["top_k", "temp"], ("temperature", "top_k")),
        (["top-k", "min-p", "top_k"], ("top_k", "min_p")),
        ("kt", ("temperature", "top_k")),
        (["xtc", "nothing", "min_p"], ("min_p",)),
        ([], ()),
        ("", ()),
    ],
)
def test_what_runs(value: str | list[str] | None, enabled: tuple[str, ...]) -> None:
    """Those named, in the fixed order; names of samplers that do not exist here count for nothing."""
    assert enabled_samplers(value) == enabled


@pytest.mark.parametrize(
    "value", [["top_p", "top_k"], ["top_k", "penalties"], "tpk", ["min_p", "top_p"], ["infill"], "i", ["top_k"] * (MAX_NAMES + 1)]
)
def test_another_order_is_refused(value: str | list[str]) -> None:
    """Only the order here and llama-server's default are accepted; infill and endless lists are not."""
    with pytest.raises(RequestError) as error:
        enabled_samplers(value)
    assert error.value.param == "samplers"


def test_what_is_not_named_is_off() -> None:
    """A sampler left out leaves no trace in the parameters, and the others keep their values."""
    params = SamplingParams(
        temperature=0.5, top_k=5, top_p=0.9, min_p=0.1, seed=1, repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.25
    )
    assert with_only(params, SAMPLERS) == params
    assert with_only(params, ()) == SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=1)
    for name in ("temperature", "top_k", "top_p", "min_p"):
        rest = with_only(params, tuple(other for other in SAMPLERS if other != name))
        assert getattr(rest, name) == getattr(SamplingParams(temperature=1.0, seed=1), name)
        assert rest.repetition_penalty == 1.1

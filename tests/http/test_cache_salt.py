"""`cache_salt` and `isolate_keys`: which requests are of one space of the cache."""

import itertools

from svc.http.api_keys import ApiKeys
from tests.fakes.fake_engine import FakeEngine, saying
from tests.http.harness import serving

KEYS = ["ann:a-key", "ann:a-second", "bob:b-key", "nameless", "other-nameless"]


async def _spaces(isolated: bool, salts: tuple[str | None, ...]) -> dict[tuple[str, str | None], str]:
    """By key and salt."""
    async with serving(FakeEngine(saying("x")), keys=ApiKeys(KEYS), isolate_keys=isolated) as at:
        found = {}
        for line, salt in itertools.product(KEYS, salts):
            key = line.rpartition(":")[2]
            body = {"prompt": "a"} | ({} if salt is None else {"cache_salt": salt})
            assert (await at.post("/v1/completions", body, headers={"x-api-key": key}))[0] == 200
            found[key, salt] = at.engine.sequences[-1].request.space
    return found


async def test_a_salt_divides() -> None:
    """Whoever sends it: equal ones are of one space, none and an empty one of the common space. The salt itself is nowhere."""
    spaces = await _spaces(False, (None, "", "s1", "s2"))
    assert {spaces[key, salt] for key, salt in spaces if not salt} == {""}
    one, two = ({spaces[key, salt] for key, salt in spaces if salt == wanted} for wanted in ("s1", "s2"))
    assert (len(one), len(two), one & two) == (1, 1, set())
    assert not any(salt in space for (_, salt), space in spaces.items() if salt)


async def test_keys_are_isolated() -> None:
    """Each name has a space, and each salt of it another one, also a salt that tries to look like a name; keys without a name share
    the common one."""
    spaces = await _spaces(True, (None, "s1", "key bob", "7 key bob"))
    assert spaces["nameless", None] == spaces["other-nameless", None] == ""
    groups = [
        {spaces[key, salt] for key in keys}
        for keys in (("a-key", "a-second"), ("b-key",), ("nameless", "other-nameless"))
        for salt in (None, "s1", "key bob", "7 key bob")
    ]
    assert [len(group) for group in groups] == [1] * 12
    assert len(set.union(*groups)) == 12


async def test_long_salts_are_refused() -> None:
    async with serving(FakeEngine(saying("x"))) as at:
        status, answer = await at.post("/v1/completions", {"prompt": "a", "cache_salt": "x" * 1025})
    assert (status, answer["error"]["param"]) == (400, "cache_salt")

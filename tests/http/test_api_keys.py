"""The key file: names, hashes and limits."""

import hashlib
import re
from pathlib import Path

import pytest

from svc.errors import ConfigError
from svc.http.api_keys import MAX_TENANTS, ApiKeys
from svc.http.rate_limits import NO_LIMITS, Limits

ROOT = Path(__file__).parents[2]
HEX = hashlib.sha256(b"secret").hexdigest()


@pytest.mark.parametrize(
    ("line", "name", "limits"),
    [
        ("secret", "", NO_LIMITS),
        ("alice:secret", "alice", NO_LIMITS),
        ("  team-2.eu_west:secret ", "team-2.eu_west", NO_LIMITS),
        (f"sha256:{HEX}", "", NO_LIMITS),
        (f"bob:sha256:{HEX.upper()}", "bob", NO_LIMITS),
        (f"bob:sha256:{HEX} rpm=60", "bob", Limits(requests_per_minute=60)),
        (
            "alice:secret share=0.5 parallel=4\ttpm=100000  rpm=60",
            "alice",
            Limits(requests_per_minute=60, tokens_per_minute=100_000, parallel_requests=4, queue_share=0.5),
        ),
        ("alice:secret share=1", "alice", NO_LIMITS),
        ("alice:secret admin", "alice", Limits(admin=True)),
        ("alice:secret rpm=60 admin", "alice", Limits(requests_per_minute=60, admin=True)),
        ("alice:secret share=.25", "alice", Limits(queue_share=0.25)),
    ],
)
def test_lines(line: str, name: str, limits: Limits) -> None:
    """Every form of a line opens to the key, and to no part of the line else."""
    keys = ApiKeys(["# first", "", line])
    tenant = keys.tenant_of("secret")
    assert tenant is not None
    assert (tenant.name, tenant.limits, keys.num_keys) == (name, limits, 1)
    for other in (line, line.strip(), HEX, f"sha256:{HEX}", f"{name}:secret", name, "SECRET", ""):
        if other != "secret":
            assert keys.tenant_of(other) is None


def test_a_key_may_have_colons_behind_its_name() -> None:
    keys = ApiKeys(["alice:a:b:c", "%odd:key"])
    holders = [keys.tenant_of(key) for key in ("a:b:c", "%odd:key")]
    assert [holder and holder.name for holder in holders] == ["alice", ""]


def test_two_keys_of_one_name() -> None:
    """While a key is being changed the old and the new one share everything."""
    keys = ApiKeys(["alice:old rpm=1", "alice:new rpm=1"])
    assert keys.tenant_of("old") is keys.tenant_of("new")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("secret rpm=60", "has limits or rights, but no name"),
        (f"sha256:{HEX} rpm=60", "has limits or rights, but no name"),
        ("alice:secret words", "only rpm=, tpm=, parallel=, share= and admin may follow"),
        ("alice:secret rps=3", "only rpm=, tpm=, parallel=, share= and admin may follow"),
        ("alice:secret rpm", "may follow"),
        ("alice:secret rpm=0", "has a rpm= that is not a whole number"),
        ("alice:secret rpm=-1", "has a rpm= that is not"),
        ("alice:secret tpm=1e6", "has a tpm= that is not"),
        ("alice:secret tpm=99999999999999", "has a tpm= that is not"),
        ("alice:secret tpm=", "has a tpm= that is not"),
        ("alice:secret parallel=\u0663", "has a parallel= that is not"),
        ("alice:secret share=0", "has a share= that is not a number above 0"),
        ("alice:secret share=1.5", "has a share= that is not"),
        ("alice:secret share=nan", "has a share= that is not"),
        ("alice:secret share=.", "has a share= that is not"),
        ("alice:secret rpm=1 rpm=2", "has rpm= twice"),
        ("alice:other rpm=2", "other limits or rights than an earlier line of alice"),
        ("alice:other rpm=1 admin", "other limits or rights than an earlier line of alice"),
        ("secret admin", "has limits or rights, but no name"),
        ("alice:secret admin=1", "is no key: only"),
        ("alice:secret admin admin", "is no key: only"),
        ("bob:first", "gives to another name"),
        ("first", "gives to another name"),
        ("alice:sha256:secret", "64 hexadecimal digits"),
        (f"sha256:{HEX}0", "64 hexadecimal digits"),
        ("schl\u00fcssel", "letters beyond ASCII"),
    ],
)
def test_bad_lines(tmp_path: Path, line: str, reason: str) -> None:
    """One sentence with the setting, the file and the line, and never a key."""
    file = tmp_path / "keys"
    file.write_text(f"# keys\nalice:first rpm=1\n\n{line}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        ApiKeys.load(str(file))
    text = str(error.value)
    assert text.startswith(f"api_key_file: line 4 of {file} ")
    assert reason in text
    assert not any(word in text.removeprefix(f"api_key_file: line 4 of {file}") for word in ("secret", HEX, "schl", "first"))


def test_the_examples_are_good() -> None:
    """Those of ops/config/api-keys and docs/operations.md: four keys, and the limits of the last. Its hash is the one of KEY."""
    example = (ROOT / "ops" / "config" / "api-keys").read_text()
    page = (ROOT / "docs" / "operations.md").read_text()
    section = page[page.index("## Keys and limits") :]
    for lines in (re.findall(r"^#  (.*)$", example, re.MULTILINE), section.split("```")[1].splitlines()):
        keys = ApiKeys(lines)
        holder = keys.tenant_of("KEY")
        assert holder is not None
        assert (keys.num_keys, holder.name, holder.limits) == (4, "ci", Limits(60, 100_000, 4, 0.5))
        admin = keys.tenant_of("9d41e0c27b5af386")
        assert admin is not None
        assert admin.limits.admin
    assert not ApiKeys(example.splitlines()).num_keys  # as it is, it lets nobody in


def test_names_are_few() -> None:
    """Each is a label of metrics."""
    lines = [f"name{number}:key{number}" for number in range(MAX_TENANTS)]
    assert ApiKeys(lines).num_keys == MAX_TENANTS
    with pytest.raises(ConfigError, match="one name more"):
        ApiKeys([*lines, "name:key"])


def test_replaced_keys_keep_what_was_used() -> None:
    """A name that stays has used what it has used, whatever its keys and limits are now; a name that is gone opens nothing."""
    keys = ApiKeys(["alice:old rpm=2", "bob:bob"])
    alice = keys.tenant_of("old")
    assert alice is not None
    assert alice.enter(0.0) is None
    keys.replace(ApiKeys(["alice:new rpm=1 parallel=9", "carol:carol rpm=1"]))
    assert [keys.tenant_of(key) for key in ("old", "bob")] == [None, None]
    assert keys.tenant_of("new") is alice
    assert alice.limits == Limits(requests_per_minute=1, parallel_requests=9)
    assert alice.num_running == 1
    assert alice.enter(0.0) is None
    assert alice.enter(0.0) is not None

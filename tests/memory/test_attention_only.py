"""A model without recurrent layers: every page is of use, and a sequence resumes anywhere."""

from collections.abc import Iterator

import pytest

from svc.memory.lease import COLD, ResumePoint
from svc.memory.sequence_cache import SequenceCache
from tests.memory.device_model import Device, Run, converse, small_plan, text


@pytest.fixture
def attention() -> Iterator[SequenceCache]:
    """Attention-only, 32 pages of 4 tokens, 4 state rows, 12 snapshots; checked after the test."""
    made = SequenceCache(small_plan(pages=32, rows=4, snapshots=12, hybrid=False))
    yield made
    made.check()


def test_attention_only_resumes_anywhere(attention: SequenceCache) -> None:
    """Closing keeps all written tokens; another text resumes at the common prefix, without a snapshot."""
    device = Device(attention.plan)
    run = Run(attention, device, text(1, 20))
    assert run.write(18)
    run.close()
    resume = attention.match(text(1, 7) + text(2, 5))
    assert resume == ResumePoint(position=7, snapshot=None, matched_tokens=7)
    assert converse(attention, device, text(1, 7) + text(2, 5)).position == 7
    assert attention.match(text(1, 30)).position == 18


def test_attention_only_last_token_needs_a_hidden_row(attention: SequenceCache) -> None:
    """A whole match evaluates its last token again unless a snapshot is exactly there."""
    device = Device(attention.plan)
    run = Run(attention, device, text(1, 9))
    assert run.write(9)
    run.close()
    assert attention.match(text(1, 9)) == ResumePoint(position=8, snapshot=None, matched_tokens=9)
    assert converse(attention, device, text(1, 9)).position == 8
    resume = attention.match(text(1, 9))
    assert (resume.position, resume.matched_tokens) == (9, 9)
    assert resume.snapshot is not None
    assert attention.match(text(1, 10)).position == 9


def test_attention_only_trims_the_tail(attention: SequenceCache) -> None:
    """Under pressure a cached text loses its last pages, not all of them; its hidden row goes with the end."""
    device = Device(attention.plan)
    converse(attention, device, text(1, 100), now=0.0)  # 25 of 32 pages
    run = Run(attention, device, text(2, 40), now=1.0)
    assert run.write(40, now=1.0)  # 10 pages: 3 must come from the tail
    assert attention.match(text(1, 100)) == ResumePoint(position=88, snapshot=None, matched_tokens=88)
    assert attention.stats().published_snapshots == 0
    run.close()


def test_untrusted_values_are_not_kept(attention: SequenceCache) -> None:
    """valid=0 keeps nothing of a sequence whose values were not finite."""
    device = Device(attention.plan)
    run = Run(attention, device, text(1, 9))
    assert run.write(9)
    attention.close(run.lease, 0, 0.0)
    assert attention.match(text(1, 9)) == COLD
    assert attention.stats().free_pages == 32


def test_a_copy_that_was_never_made_is_not_kept(attention: SequenceCache) -> None:
    """A lease that owns a copy of a partial page is closed before the copy is made, and the text has left the tree meanwhile:
    nothing of it is known, for the page may be empty."""
    device = Device(attention.plan)
    run = Run(attention, device, text(1, 6))
    assert run.write(6)
    run.close()
    writer, copier = Run(attention, device, text(1, 7)), Run(attention, device, text(1, 7))
    assert writer.resume.position == copier.resume.position == 6
    assert attention.extend(writer.lease, 7, 0.0)
    assert attention.extend(copier.lease, 7, 0.0)
    step = attention.begin([copier.lease])
    assert step.copies
    attention.clear()
    attention.abort(step, 0.0)
    attention.close(copier.lease, 6, 0.0)
    assert attention.match(text(1, 7)) == COLD
    attention.close(writer.lease, 6, 0.0)

"""The histogram that is observed for every token, against the client library's own."""

from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from svc.metrics import TokenHistogram

BOUNDS = (0.001, 0.0025, 0.5, 1, 640)


@given(st.lists(st.floats(0, 2000)))
@example([0.0, 0.001, 0.0010001, 1.0, 640.0, 641.0])
def test_it_is_published_as_the_librarys(values: list[float]) -> None:
    """Byte for byte in both formats, whatever was observed: a value on a bound belongs to the bucket below."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    histogram = TokenHistogram("gap_seconds", "Between two", BOUNDS)
    ours.register(histogram)
    reference = Histogram("gap_seconds", "Between two", buckets=BOUNDS, registry=theirs)
    for value in values:
        histogram.observe(value)
        reference.observe(value)
    assert generate_latest(ours) == generate_latest(theirs)
    assert openmetrics.generate_latest(ours) == openmetrics.generate_latest(theirs)  # type: ignore[no-untyped-call]

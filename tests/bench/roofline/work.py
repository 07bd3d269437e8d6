"""What a kernel has to do at least, in bytes and operations, and how long a machine needs for that at least.

Bytes are sorted by where they come from, because that decides whether they count:

- weights, states (recurrent and convolution rows, hidden rows, snapshots) and keys and values are far larger than a cache. Each is
  counted once a launch and always comes from memory.
- activations go from one kernel to the next and may stay in the cache between them. They count where one launch moves more of them
  than the cache holds.
- what a launch asks for more than once because of its tiles is `repeated`: it comes from the cache if all goes well. It is reported
  and belongs to no limit.

Operations are a multiplication or an addition each. `int8_ops` are those of dot products of 8-bit integers, `half_ops` those given
to tensor cores as float16 (attention, in two parts for float32's accuracy: the hardware does twice what is counted), `float_ops`
those in float32. Elementwise work (norms, activations, quantization, scales of blocks) is not counted: bytes bound it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Work:
    """Of one launch, or of many together. Expected values where routing decides, so not whole numbers."""

    weight_bytes: float = 0.0
    state_bytes: float = 0.0
    kv_bytes: float = 0.0
    activation_bytes: float = 0.0
    repeated_bytes: float = 0.0
    int8_ops: float = 0.0
    half_ops: float = 0.0
    float_ops: float = 0.0
    launches: int = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(**{field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)})

    @property
    def memory_bytes(self) -> float:
        """What cannot come from a cache."""
        return self.weight_bytes + self.state_bytes + self.kv_bytes

    @property
    def operations(self) -> float:
        return self.int8_ops + self.half_ops + self.float_ops


def total(works: Iterable[Work]) -> Work:
    return sum(works, Work())


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates in bytes or operations per second, the cache in bytes. `source`: where the rates are from."""

    source: str
    bandwidth: float
    int8_rate: float
    half_rate: float
    float_rate: float
    cache_bytes: float

    def memory_s(self, work: Work) -> float:
        """Time to move what cannot come from a cache."""
        return work.memory_bytes / self.bandwidth

    def launch_s(self, work: Work) -> float:
        """The least time of one launch: its bytes and each kind of operation at full rate, all at the same time."""
        moved = work.memory_bytes + (work.activation_bytes if work.activation_bytes > self.cache_bytes else 0.0)
        return max(
            moved / self.bandwidth,
            work.int8_ops / self.int8_rate,
            work.half_ops / self.half_rate,
            work.float_ops / self.float_rate,
        )


# Dense rates of the data sheet (SXM form). The second is what others report to have measured there: copies at 4.3 TB/s, products in
# bfloat16 at 769 to 798 TFLOP/s; its other rates are the data sheet's.
MACHINES = {
    "h200": Machine("H200, data sheet", 4.8e12, 1979e12, 989e12, 67e12, 50e6),
    "h200-reached": Machine("H200, as measured by others", 4.3e12, 1979e12, 788e12, 67e12, 50e6),
}

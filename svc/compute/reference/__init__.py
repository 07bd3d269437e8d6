"""The operations in numpy, float32: the oracle of the other backends."""

from svc.compute.reference.ops import ReferenceOps

__all__ = ["ReferenceOps"]

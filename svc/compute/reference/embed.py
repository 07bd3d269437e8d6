"""Token embedding."""

from svc.compute.reference.math import Float32
from svc.compute.reference.weights import ReferenceWeight
from svc.compute.step_inputs import StepInputs


def embed(hidden: Float32, table: ReferenceWeight, inputs: StepInputs) -> None:
    """hidden[t] = table[tokens[t]], unscaled."""
    hidden[:] = table.gather(inputs.tokens)

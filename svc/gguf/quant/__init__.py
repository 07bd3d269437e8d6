"""GGUF block types: one file each, registered here. Numpy only; the fast decoders live in `cpu/` and `cuda/`."""

from svc.errors import ModelFileError
from svc.gguf.quant.bf16 import BF16
from svc.gguf.quant.f16 import F16
from svc.gguf.quant.f32 import F32
from svc.gguf.quant.iq1_m import IQ1_M
from svc.gguf.quant.iq1_s import IQ1_S
from svc.gguf.quant.iq2_s import IQ2_S
from svc.gguf.quant.iq2_xs import IQ2_XS
from svc.gguf.quant.iq2_xxs import IQ2_XXS
from svc.gguf.quant.iq3_s import IQ3_S
from svc.gguf.quant.iq3_xxs import IQ3_XXS
from svc.gguf.quant.iq4_nl import IQ4_NL
from svc.gguf.quant.iq4_xs import IQ4_XS
from svc.gguf.quant.mxfp4 import MXFP4
from svc.gguf.quant.nvfp4 import NVFP4
from svc.gguf.quant.q2_k import Q2_K
from svc.gguf.quant.q3_k import Q3_K
from svc.gguf.quant.q4_0 import Q4_0
from svc.gguf.quant.q4_1 import Q4_1
from svc.gguf.quant.q4_k import Q4_K
from svc.gguf.quant.q5_0 import Q5_0
from svc.gguf.quant.q5_1 import Q5_1
from svc.gguf.quant.q5_k import Q5_K
from svc.gguf.quant.q6_k import Q6_K
from svc.gguf.quant.q8_0 import Q8_0
from svc.gguf.quant.quant_type import QuantType
from svc.gguf.quant.tq1_0 import TQ1_0
from svc.gguf.quant.tq2_0 import TQ2_0

__all__ = ["QUANT_TYPES", "QUANT_TYPES_BY_ID", "QuantType", "quant_type"]

QUANT_TYPES: dict[str, QuantType] = {
    "F32": F32,
    "F16": F16,
    "BF16": BF16,
    "Q4_0": Q4_0,
    "Q4_1": Q4_1,
    "Q5_0": Q5_0,
    "Q5_1": Q5_1,
    "Q8_0": Q8_0,
    "Q2_K": Q2_K,
    "Q3_K": Q3_K,
    "Q4_K": Q4_K,
    "Q5_K": Q5_K,
    "Q6_K": Q6_K,
    "IQ1_S": IQ1_S,
    "IQ1_M": IQ1_M,
    "IQ2_XXS": IQ2_XXS,
    "IQ2_XS": IQ2_XS,
    "IQ2_S": IQ2_S,
    "IQ3_XXS": IQ3_XXS,
    "IQ3_S": IQ3_S,
    "IQ4_NL": IQ4_NL,
    "IQ4_XS": IQ4_XS,
    "TQ1_0": TQ1_0,
    "TQ2_0": TQ2_0,
    "MXFP4": MXFP4,
    "NVFP4": NVFP4,
}

# By the type's number in the tensor directory of a file.
QUANT_TYPES_BY_ID: dict[int, QuantType] = {quant.ggml_id: quant for quant in QUANT_TYPES.values()}


def quant_type(name: str) -> QuantType:
    """The block type called `name` ("Q4_K"); ModelFileError naming it if there is none."""
    try:
        return QUANT_TYPES[name]
    except KeyError:
        raise ModelFileError(f"the tensor type {name} is not supported") from None

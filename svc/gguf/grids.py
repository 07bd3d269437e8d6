"""The codebooks of the IQ1, IQ2 and IQ3 block types.

They are constants of the file format (256 to 2048 entries, found by search when the types were made) and cannot be
computed from a formula. The `gguf` package carries them; it is imported only when a file needs one (0.1 s).
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

GRID_NAMES = ("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")


@cache
def grid(name: str) -> NDArray[np.float32]:
    """Codebook of the block type `name` (one of GRID_NAMES): float32 `(entries, values per entry)`, read-only."""
    from gguf import quants

    assert name in GRID_NAMES, name
    holder = getattr(quants, name)
    holder.init_grid()
    table: NDArray[np.float32] = np.array(holder.grid, np.float32).reshape(holder.grid_shape)
    table.setflags(write=False)
    return table

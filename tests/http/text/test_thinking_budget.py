"""The bound on reasoning, followed behind tokens that may not come."""

import numpy as np

from svc.http.text.thinking_budget import ThinkingBudget


def test_a_fork_goes_its_own_way() -> None:
    """Behind drafts that use the budget up it forces the closing tag, and then is free; the one it came from is as before."""
    budget = ThinkingBudget(2, close=[9, 8], open_id=None, inside=True, num_tokens=64, closes=lambda tokens: False)
    budget.accept(1)
    masks = []
    for drafts in ([], [2], [2, 9], [2, 9, 8], [2]):
        fork = budget.fork()
        for token in drafts:
            fork.accept(token)
        words = fork.mask()
        masks.append(None if words is None else np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())
    assert masks == [None, [9], [8], None, [9]]
    assert budget.mask() is None

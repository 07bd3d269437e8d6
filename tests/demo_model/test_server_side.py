"""The demo model's evaluation runs on the server's own backends: it must keep up with their interfaces."""

import numpy as np

from tests.demo_model.scripts import MODEL, load_script
from tests.tolerances import LOGITS_REFERENCE_SELF_AMPLIFIED

server_side = load_script("server_side")


def test_scores_are_those_of_the_logits() -> None:
    """Log probabilities read as the server reads them, against a softmax of all logits; more tokens than one step evaluates."""
    ids = np.arange(300, 370)
    model = server_side.FileModel.open(MODEL, "reference")
    logits = model.logits(ids).astype(np.float64)
    expected = logits[np.arange(69), ids[1:]] - np.log(np.exp(logits[:-1]).sum(-1))
    np.testing.assert_allclose(model.score(ids), expected, rtol=0, atol=LOGITS_REFERENCE_SELF_AMPLIFIED)


def test_an_answer_comes() -> None:
    """Text to text, the same for the same seed; a limit is a limit."""
    text, ended = server_side.answer(MODEL, "Who are you?", seed=1, limit=5)
    assert (text, ended) == server_side.answer(MODEL, "Who are you?", seed=1, limit=5)
    assert text
    assert not ended


def test_sizes_of_tokens() -> None:
    """Bytes of text; control tokens have none."""
    sizes = server_side.token_sizes(MODEL)
    assert sizes.min() == 0
    assert (sizes == 0).sum() == 3

"""What the tree has where some tokens leave it. Whose text that is counts: nobody is shown another one's."""

from svc.memory.prefix_tree import Walk


def other_text(walk: Walk, owner: str, limit: int) -> tuple[int, ...] | None:
    """The first tokens, at most `limit`, with which known text goes on behind the walk; None where none does.

    Empty unless `owner` is named and all of an edge there is known to be its text: an edge of two owners is nobody's. Of several
    edges the one used last is told.
    """
    last = walk.path[-1] if walk.path else walk.base
    edges = [last] if last.end > walk.matched else list(last.children.values())
    if not edges:
        return None
    own = [edge for edge in edges if owner and edge.owner == owner]
    if not own:
        return ()
    edge = max(own, key=lambda edge: edge.last_use)
    offset = walk.matched - edge.start
    return tuple(edge.tokens[offset : offset + limit].tolist())

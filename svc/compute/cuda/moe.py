"""Mixture of experts around its matrix products: routing, order by expert, and the weighted sum."""

from dataclasses import dataclass

from svc.compute.cuda.device import Device, DeviceArray, Stream

MOST_USED = 32  # experts of a token: router.cu has a lane for each
MOST_EXPERTS = 1024  # MOST_EXPERTS in moe_sort.cu
FEW_PAIRS = 2048  # one block sorts up to this many
CHUNK_PAIRS = 1024  # pairs of a block beyond that
SORT_THREADS = 512
COMBINE_THREADS = 256
FULL_GRID = 512  # blocks that keep any GPU busy; with more tokens columns are not split


def route(
    device: Device,
    experts: DeviceArray,
    weights: DeviceArray,
    logits: DeviceArray,
    scale: float,
    rows: DeviceArray | None = None,
    stream: Stream | None = None,
) -> None:
    """logits [T, E] -> experts [T, k] int32, best first (ties: lower index first), weights [T, k] = softmax over them * scale.

    `rows` [T]: tokens with a negative one are padding and get experts -1 and weights 0.
    """
    (tokens, used), count = experts.shape, logits.shape[1]
    assert weights.shape == experts.shape
    assert logits.shape[0] == tokens
    assert 1 <= used <= min(count, MOST_USED)
    assert count <= MOST_EXPERTS
    assert rows is None or rows.shape == (tokens,)
    if tokens:
        kernel = device.module("router", {"PER_LANE": -(-count // 32)}).kernel("router")
        args = (experts, weights, logits, rows, tokens, count, used, scale)
        device.launch(kernel, (-(-tokens // 4),), (128,), args, stream=stream)


def sort_workspace(num_pairs: int, num_experts: int) -> int:
    """Elements (int32) of the workspace of `sort_by_expert` for up to `num_pairs` pairs."""
    return -(-num_pairs // CHUNK_PAIRS) * num_experts if num_pairs > FEW_PAIRS else 0


def sort_by_expert(
    device: Device,
    offsets: DeviceArray,
    order: DeviceArray,
    positions: DeviceArray | None,
    experts: DeviceArray,
    workspace: DeviceArray | None = None,
    stream: Stream | None = None,
) -> None:
    """The pairs t * k + r of experts [T, k] in the order of their experts, stable. All int32.

    offsets [E + 1]: expert e has order[offsets[e] : offsets[e + 1]]. order [T k], -1 after the last pair. positions [T k]: the
    inverse, -1 for pairs of padding tokens; None if not needed. workspace: `sort_workspace` elements.
    """
    pairs, count = experts.size, offsets.shape[0] - 1
    assert order.size == pairs
    assert positions is None or positions.size == pairs
    assert 1 <= count <= MOST_EXPERTS
    module, threads = device.module("moe_sort"), (SORT_THREADS,)
    if pairs <= FEW_PAIRS:
        device.launch(
            module.kernel("moe_sort_few"), (1,), threads, (offsets, order, positions, experts, pairs, count), stream=stream
        )
        return
    assert workspace is not None
    assert workspace.size >= sort_workspace(pairs, count)
    chunks = -(-pairs // CHUNK_PAIRS)
    device.launch(module.kernel("moe_count"), (chunks,), threads, (workspace, experts, pairs, count), stream=stream)
    device.launch(module.kernel("moe_offsets"), (1,), threads, (offsets, order, workspace, chunks, pairs, count), stream=stream)
    args = (order, positions, offsets, workspace, experts, pairs, count)
    device.launch(module.kernel("moe_scatter"), (chunks,), (32,), args, stream=stream)


@dataclass(frozen=True, slots=True)
class RoutedParts:
    """Outputs of the routed experts: parts [T k, C], the pair t * k + r at positions[t * k + r] (None: at its own number);
    experts [T, k] int32, -1 for padding tokens; weights [T, k]."""

    parts: DeviceArray
    experts: DeviceArray
    weights: DeviceArray
    positions: DeviceArray | None = None


@dataclass(frozen=True, slots=True)
class SharedPart:
    """Output [T, C] of the shared expert, and what gates it: the normed rows x [T, C] and the router's row [C]."""

    output: DeviceArray
    x: DeviceArray
    router: DeviceArray


def combine(
    device: Device, hidden: DeviceArray, routed: RoutedParts, shared: SharedPart | None = None, *, stream: Stream | None = None
) -> None:
    """hidden[t] += sum_r weights[t][r] parts[t][r] + sigmoid(router . x[t]) shared[t], the ranks in order; hidden [T, C].

    Rows of padding tokens stay as they are.
    """
    tokens, columns = hidden.shape
    used = routed.experts.shape[1]
    assert routed.experts.shape == routed.weights.shape == (tokens, used)
    assert routed.parts.shape == (tokens * used, columns)
    if tokens:
        split = max(1, min(-(-columns // COMBINE_THREADS), FULL_GRID // tokens))
        gated = (shared.output, shared.x, shared.router) if shared else (None, None, None)
        args = (hidden, routed.parts, routed.positions, routed.experts, routed.weights, *gated, columns, used)
        device.launch(device.module("moe_combine").kernel("moe_combine"), (tokens, split), (COMBINE_THREADS,), args, stream=stream)

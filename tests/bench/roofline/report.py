"""The counted work as Markdown tables."""

from collections.abc import Sequence

from svc.model.arch.model import Model
from tests.bench.roofline.models import NAMED, named_model, recipe
from tests.bench.roofline.step import Launch, Piece, by_kernel, decode, prefill, sequential_s, step, whole
from tests.bench.roofline.work import MACHINES, Machine

PAPER_BATCHES, PAPER_CONTEXT, PAPER_CHUNK = (1, 8, 64), 4096, 8192


def describe(machine: Machine) -> str:
    return (
        f"{machine.source}: {machine.bandwidth / 1e9:,.0f} GB/s; {machine.int8_rate / 1e12:,.4g} TOP/s int8, "
        f"{machine.half_rate / 1e12:,.4g} half, {machine.float_rate / 1e12:,.4g} float32; cache {machine.cache_bytes / 1e6:,.0f} MB"
    )


def steps_table(model: Model, steps: Sequence[tuple[str, Sequence[Piece]]], machine: Machine, kv_element_bytes: int) -> list[str]:
    """A row a step. "memory": bytes that no cache can hold, at full bandwidth; "one by one": each launch bound by what it has most
    of, in turn. Tokens/s are the ceiling by the latter."""
    lines = [
        "| step | weights GB | states GB | K, V GB | activations GB | int8 Gop | half Gop | float Gop | launches "
        "| memory ms | one by one ms | tokens/s |",
        "|---|" + "--:|" * 11,
    ]
    for name, pieces in steps:
        launches = step(model, pieces, kv_element_bytes=kv_element_bytes)
        work, seconds = whole(launches), sequential_s(launches, machine)
        giga = (work.weight_bytes, work.state_bytes, work.kv_bytes, work.activation_bytes)
        ops = (work.int8_ops, work.half_ops, work.float_ops)
        snapshots = [
            *(f"{value / 1e9:,.3f}" for value in giga),
            *(f"{value / 1e9:,.1f}" for value in ops),
            f"{work.launches:,}",
            f"{1e3 * machine.memory_s(work):,.3f}",
            f"{1e3 * seconds:,.3f}",
            f"{sum(piece.tokens for piece in pieces) / seconds:,.0f}",
        ]
        lines.append(f"| {name} | {' | '.join(snapshots)} |")
    return lines


def kernels_table(launches: Sequence[Launch], machine: Machine) -> list[str]:
    """A row a kind of launch, per launch (the average of the layers), with its share of the limit of all."""
    everything = sequential_s(launches, machine)
    times = {(launch.part, launch.kernel): 0.0 for launch in launches}
    for launch in launches:
        times[launch.part, launch.kernel] += machine.launch_s(launch.work)
    lines = [
        "| part | kernel | launches | memory KB | activations KB | repeated KB | int8 Mop | half Mop | float Mop "
        "| limit us | of step |",
        "|---|---|" + "--:|" * 9,
    ]
    for (part, kernel), work in by_kernel(launches).items():
        count, limit_s = work.launches, times[part, kernel]
        kilo = (work.memory_bytes, work.activation_bytes, work.repeated_bytes)
        snapshots = [
            f"{count}",
            *(f"{value / count / 1e3:,.1f}" for value in kilo),
            *(f"{value / count / 1e6:,.1f}" for value in (work.int8_ops, work.half_ops, work.float_ops)),
            f"{1e6 * limit_s / count:,.2f}",
            f"{limit_s / everything:.1%}",
        ]
        lines.append(f"| {part} | {kernel} | {' | '.join(snapshots)} |")
    return lines


def share(launches: Sequence[Launch], machine: Machine, measured_s: float) -> str:
    """A measured time of a step as shares of its limits."""
    work = whole(launches)
    return (
        f"measured {1e3 * measured_s:.3f} ms: {machine.memory_s(work) / measured_s:.1%} of the bandwidth, "
        f"{sequential_s(launches, machine) / measured_s:.1%} of the limit of its launches one by one"
    )


def ceilings() -> list[str]:
    """For docs/performance.md: decode and prefill of all named models on paper, files of the mix Q4_K_M, float16 pages.

    Decode by memory traffic alone at both bandwidths; prefill as if every operation were one of bfloat16 on tensor cores.
    """
    sheet, reached = MACHINES["h200"], MACHINES["h200-reached"]
    lines = [
        f"| model | batch | GB a step | tokens/s at {sheet.bandwidth / 1e12} TB/s | at {reached.bandwidth / 1e12} TB/s "
        f"| prefill, {PAPER_CHUNK:,} tokens: Gop a token | tokens/s at {reached.half_rate / 1e12:.0f} TFLOP/s |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, config in NAMED.items():
        model = named_model(name, recipe("q4_k_m"))
        chunk = whole(step(model, prefill(PAPER_CHUNK)))
        for batch in PAPER_BATCHES:
            work = whole(step(model, decode(batch, PAPER_CONTEXT)))
            rates = (f"{batch / machine.memory_s(work):,.0f}" for machine in (sheet, reached))
            once = (f"{chunk.operations / PAPER_CHUNK / 1e9:.2f}", f"{PAPER_CHUNK * reached.half_rate / chunk.operations:,.0f}")
            snapshots = (*rates, *(once if batch == PAPER_BATCHES[0] else ("", "")))
            lines.append(f"| {config.name} | {batch} | {work.memory_bytes / 1e9:.2f} | {' | '.join(snapshots)} |")
    return lines

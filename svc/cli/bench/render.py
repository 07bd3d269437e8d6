"""The report for people: aligned lines for a terminal, and Markdown. Both have the same words."""

from collections.abc import Iterator

from svc.cli.bench.report import HostShare, Machine, Report, Result

COLUMNS = ("test", "tokens/s", "smallest", "largest", "ms/step")
WIDTH = 12


def header_lines(report: Report) -> list[str]:
    """Model, device, machine and method, a line each. `report.results` may still be empty."""
    return [f"{name:<9}{text}" for name, text in _facts(report)]


def column_line(width: int) -> str:
    return COLUMNS[0].ljust(width) + "".join(name.rjust(WIDTH) for name in COLUMNS[1:])


def result_line(result: Result, width: int) -> str:
    """`width`: of the longest test name."""
    return result.test.ljust(width) + "".join(text.rjust(WIDTH) for text in _columns(result))


def closing_lines(report: Report) -> list[str]:
    """The sentences under the table."""
    return [*map(_share_sentence, report.host_shares), *_left_out(report)]


def markdown(report: Report) -> str:
    lines = [f"- {name}: {text}" for name, text in _facts(report)]
    lines += ["", f"| {' | '.join(COLUMNS)} |", "|---|" + "--:|" * (len(COLUMNS) - 1)]
    lines += [f"| {result.test} | {' | '.join(_columns(result))} |" for result in report.results]
    closing = closing_lines(report)
    return "\n".join([*lines, *([""] if closing else []), *(f"- {line}" for line in closing)])


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    model, caches, machine = report.model, report.caches, report.machine
    types = ", ".join(f"{kind} {_percent(share)}" for kind, share in model.quant_types.items())
    yield "model", f"{model.file} ({model.architecture}), {size(model.size_bytes)}: {types}"
    yield "weights", f"{_count(model.num_parameters)} parameters, {_count(model.num_active_parameters)} of them active for a token"
    yield "device", device_text(machine)
    yield "machine", f"{machine.processor}, {machine.num_cores} cores, load {machine.load:.1f} before the start"
    yield (
        "caches",
        f"KV {size(caches.kv_bytes)} ({caches.kv_type}, {size(caches.kv_bytes_per_token)} a token), "
        f"states {size(caches.state_bytes)} ({size(caches.state_bytes_per_sequence)} a sequence)",
    )
    yield (
        "method",
        f"headrace {report.version}; {_times(report.num_rounds)} each, median and extremes; steps of at most "
        f"{report.max_step_tokens} tokens",
    )


def device_text(machine: Machine) -> str:
    parts = [machine.device]
    if machine.device_name:
        parts.append(machine.device_name)
    if machine.level:
        parts.append(machine.level)
    if machine.threads:
        parts.append(f"{machine.threads} threads" if machine.threads > 1 else "1 thread")
    if machine.device == "cpu":
        parts.append(f"{machine.activations} activations")
    return ", ".join(parts)


def _share_sentence(share: HostShare) -> str:
    return (
        f"Python's share of a step of {share.test}: {100 * share.share:.1f} % "
        f"({number(share.outside_ms)} of {number(share.step_ms)} ms pass outside the kernels)."
    )


def _left_out(report: Report) -> list[str]:
    return [f"Left out, as longer than the model's context: {', '.join(report.left_out)}."] if report.left_out else []


def _columns(result: Result) -> list[str]:
    return [number(value) for value in (result.median, result.smallest, result.largest, result.step_ms)]


def number(value: float) -> str:
    """At most three decimals, fewer for larger numbers: "0.123", "12.34", "123.4", "12,345"."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{3 if value < 1 else 2 if value < 100 else 1}f}"


def size(nbytes: int) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.{2 if nbytes < 10 * scale else 1 if nbytes < 100 * scale else 0}f} {unit}"
    return f"{nbytes} bytes"


def _count(value: int) -> str:
    for unit, scale in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if value >= scale:
            return f"{value / scale:.2f} {unit}" if value < 10 * scale else f"{value / scale:.1f} {unit}"
    return str(value)


def _percent(share: float) -> str:
    return "<1 %" if share < 0.01 else f"{100 * share:.0f} %"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"

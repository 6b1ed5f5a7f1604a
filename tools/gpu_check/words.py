"""Turns the lines of gpu_check.py into a table in plain words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Line = dict[str, Any]

# The goals of the pack kernels, and of the runtime's allreduce relative to NCCL's own.
PACK_SHARE = 0.85
OVER_US = 10.0
OVER_SHARE = 0.03
HIDDEN = {"step", "on", "time", "ok", "seconds", "mode", "ranks"}


def _facts(line: Line) -> str:
    cuda = int(line["driver_cuda"])
    return (
        f"{line['gpus']} GPU(s), the first {line['name']} (sm_{line['capability']}), driver for "
        f"CUDA {cuda // 1000}.{cuda % 1000 // 10}; direct access: {line['peer_access']}; "
        f"pack kernels: {line['pack_kernels']}; NCCL {line['nccl']}; XLA compiles with "
        f"{line['ptxas'] or 'no ptxas'} and {line['libdevice'] or 'no libdevice'}"
    )


def _pack_speed(line: Line) -> str:
    shares = {key: value for key, value in line.items() if key.endswith("_of_copy")}
    worst = min(shares, key=lambda key: shares[key])
    verdict = "reached" if shares[worst] >= PACK_SHARE else "missed"
    return (
        f"at worst {shares[worst]:.0%} of the device's copy ({worst.removesuffix('_of_copy')}); "
        f"aim {PACK_SHARE:.0%} {verdict}"
    )


def _latency(line: Line) -> str:
    same, side = line["bubble_of_host_function_us"], line["bubble_of_side_stream_us"]
    return (
        f"the host knows after {line['runtime_us']:.0f} us as the runtime waits, "
        f"{line['poll_event_us']:.0f} asking all the time, {line['blocking_event_us']:.0f} "
        f"sleeping; a host function holds the stream up by {same:.1f} us, one on a stream beside "
        f"it by {side:.1f} us"
    )


def _kinds(line: Line) -> str:
    return f"{line['kinds']} collectives gave the CPU's values"


def _over(line: Line) -> str:
    """The sizes at which the runtime adds more to NCCL's own call than its goal."""
    sizes = [int(key.removeprefix("over_us_")) for key in line if key.startswith("over_us_")]
    parts = []
    missed = 0
    for size in sizes:
        over, bare = line[f"over_us_{size}"], line[f"bare_us_{size}"]
        missed += over > max(OVER_US, OVER_SHARE * bare)
        parts.append(f"{_bytes(size)} {over:+.1f} us on {bare:.1f}")
    verdict = f"aim missed at {missed} of {len(sizes)} sizes" if missed else "aim reached"
    return f"{_kinds(line)}; over NCCL itself: {', '.join(parts)}; {verdict}"


def _launch(line: Line) -> str:
    """The host time of an allreduce of 4 KiB, and the interval between two on the device."""
    parts = [
        f"{name} {line[f'{key}_host_us_4096']:.1f} and {line[f'{key}_us_4096']:.1f} us"
        for key, name in (
            ("blocking", "NCCL, blocking"),
            ("nonblocking", "NCCL, not blocking"),
            ("tfring", "tfring"),
        )
    ]
    return f"host and device, 4 KiB: {', '.join(parts)}"


def _overlap(line: Line) -> str:
    """The overlap of work and exchange, relative to the shorter one."""
    spin, exchange, both = (line[f"{name}_ms"] for name in ("spin", "exchange", "both"))
    hidden = (spin + exchange - both) / min(spin, exchange)
    return (
        f"what comes before the done ran without the other rank; a kernel of {spin:.2f} ms and an "
        f"exchange of {exchange:.2f} ms took {both:.2f} ms together: {hidden:.0%} hidden"
    )


def _abort_queued(line: Line) -> str:
    return (
        f"ncclCommAbort took {line['nccl_abort_seconds']:.2f} s with "
        f"{line['nccl_queued_seconds']:.1f} s of work before it. With {line['queued_seconds']:.1f} "
        f"s {_error_after(line)}; the GPU worked after {line['gpu_seconds']:.1f} s; memory "
        f"came back {line['memory_seconds']:.1f} s later"
    )


def _bytes(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def _error_after(line: Line) -> str:
    return f"the error came after {line['seconds_to_error']:.3f} s: {line['message']}"


def _all_fields(line: Line) -> str:
    found = [f"{key} {value}" for key, value in line.items() if key not in HIDDEN]
    where = [f"{line['ranks']} rank(s), {line['mode']}"] if "mode" in line else []
    return "; ".join([*where, *found])


# The words of each step on a GPU, and on the fake, where times mean nothing.
IN_WORDS: dict[str, tuple[Callable[[Line], str], Callable[[Line], str] | None]] = {
    "facts": (_facts, _facts),
    "doctor": (*[lambda line: "; ".join(line["lines"]) + "; nothing is wrong"] * 2,),
    "pack_bits": (*[lambda line: f"{line['cases']} cases gave the CPU's bits"] * 2,),
    "pack_speed": (_pack_speed, None),
    "latency": (_latency, None),
    "processes": (_kinds, _kinds),
    "launch": (_launch, None),
    "overlap": (_overlap, lambda _: "what comes before the done ran without the other rank"),
    "abort_queued": (_abort_queued, _error_after),
    "threads": (_over, _kinds),
    "death": (_error_after, _error_after),
    "hang": (_error_after, _error_after),
    "tf_done_late": (_all_fields, None),
    "tf_done_early": (_all_fields, None),
    "tf_speed_staged": (_all_fields, None),
    "tf_speed_nccl": (_all_fields, None),
}


def words_of(line: Line) -> str:
    """Puts one line into words."""
    if "skipped" in line:
        return f"{line['skipped']}"
    if not line["ok"]:
        return f"{line.get('error', 'no reason is known')}"
    on_gpu, on_fake = IN_WORDS.get(line["step"], (_all_fields, _all_fields))
    if line["on"] == "GPU":
        return on_gpu(line)
    return on_fake(line) if on_fake else "ran; no time of the fake is a figure of speed"


def table(lines: list[Line], unstarted: list[str], advice: str) -> str:
    """All lines, and a last one with the counts, the steps without time left, and advice."""
    rows = []
    for line in lines:
        result = "skipped" if "skipped" in line else "ok" if line["ok"] else "FAILED"
        text = " ".join(words_of(line).split())
        seconds = float(line.get("seconds", 0.0))
        rows.append(f"{line['step']:<20} {result:<8} {seconds:7.1f} s  {text[:300]}")
    failed = sum(not line["ok"] for line in lines)
    skipped = sum("skipped" in line for line in lines)
    on = lines[0]["on"] if lines else "GPU"
    last = f"{len(lines)} steps on the {on}: {failed} failed, {skipped} skipped"
    if unstarted:
        last += f"; no time was left for {' '.join(unstarted)}: {advice}"
    return "\n".join(["", *rows, last])

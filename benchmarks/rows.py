"""Measure softmax, rms_norm, layer_norm and cross_entropy against torch eager, `torch.compile`, Liger and a copy.

Forty sizes and types, drawn by a seed. Each way is captured in a CUDA graph of calls on arrays in turn, of more bytes
together than the L2 cache holds (cold), and of calls on one array (hot); graphs are replayed in turns. Errors are the
largest against float64, over the largest value. Liger is left out where it is not installed, has no kernel for a
length, or waits for the host. Rows are merged into ``results/rows-<device>.json`` one by one; rows that are there
stay, so that the table can be measured in pieces. `torch.compile` is given each shape, compiled by processes before.

    python benchmarks/rows.py
    python benchmarks/rows.py --seconds 100        begin no row after this number of seconds
    python benchmarks/rows.py --kernel softmax --again
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np
from harness import ROOT, command_line, finish, provenance, rows_in, write

from autotune import load
from autotune.arrays import usable_cores
from autotune.devices.choose import choose_device

KERNELS = ("softmax", "rms_norm", "layer_norm", "cross_entropy")
DTYPES = ("float32", "float16", "bfloat16")
#: The seed, and how many rows it draws.
SEED, COUNT = 35, 40
#: The largest matrix, in elements.
MOST = 1 << 27
#: Arrays in turn have at least COLD_BYTES; a graph has at most MOST_CALLS calls, and at least LEAST_CALLS.
COLD_BYTES, MOST_CALLS, HOT_CALLS, LEAST_CALLS = 192 << 20, 200, 20, 4
REPLAYS = 9
EPS = 1e-5
#: Only rows of at least this number of bytes count in the share of the copy's rate.
LARGE = 64 << 20


def drawn() -> list[dict[str, Any]]:
    """Return kernels, types and sizes: of columns half are multiples of 128, a quarter of 8, others any."""
    rng = np.random.default_rng(SEED)
    found: list[dict[str, Any]] = []
    while len(found) < COUNT:
        rows, columns = (int(2 ** rng.uniform(*log2)) for log2 in ((0, 16), (7, 17)))
        unit = (128, 128, 8, 1)[rng.integers(4)]
        columns = max(128, columns // unit * unit)
        if rows * columns > MOST:
            continue
        kernel, dtype = KERNELS[len(found) % 4], DTYPES[rng.integers(3)]
        row = {"kernel": kernel, "rows": rows, "columns": columns, "dtype": dtype}
        has_more = bool(rng.integers(2))  # a residual, or a gradient
        more = {"rms_norm": "residual", "cross_entropy": "gradient"}.get(kernel)
        found.append({**row, **({more: has_more} if more else {})})
    return found


def nbytes_of(row: Mapping[str, Any]) -> int:
    """Return the bytes that a call reads and writes; vectors of a matrix's columns are few."""
    count = row["rows"] * row["columns"] * (4 if row["dtype"] == "float32" else 2)
    if row["kernel"] == "cross_entropy":
        return count * (2 if row["gradient"] else 1) + 8 * row["rows"]
    return count * (4 if row.get("residual") else 2)


# ---------------------------------------------------------------------- the ways


def arguments(row: Mapping[str, Any], torch: Any) -> dict[str, Any]:
    """Return the arrays of a call."""
    dtype, shape = getattr(torch, row["dtype"]), (row["rows"], row["columns"])

    def normal(*size: int) -> Any:
        return torch.randn(size, device="cuda", dtype=torch.float32).to(dtype)

    given = {"x": normal(*shape)}
    if row["kernel"] == "cross_entropy":
        given["target"] = torch.randint(shape[1], shape[:1], device="cuda")
    if row["kernel"].endswith("norm"):
        given["weight"] = normal(shape[1])
    if row["kernel"] == "layer_norm":
        given["bias"] = normal(shape[1])
    if row.get("residual"):
        given["residual"] = normal(*shape)
    return given


def eager_of(row: Mapping[str, Any], torch: Any) -> Callable[..., Any]:
    """Return torch's function; that of a loss has its gradient added by `with_gradient`."""
    functional = torch.nn.functional

    def added(x: Any, weight: Any, residual: Any) -> tuple[Any, Any]:
        total = x + residual
        return functional.rms_norm(total, x.shape[-1:], weight, EPS), total

    return {
        "softmax": lambda x: functional.softmax(x, -1),
        "rms_norm": lambda x, weight: functional.rms_norm(x, x.shape[-1:], weight, EPS),
        "rms_norm residual": added,
        "layer_norm": lambda x, weight, bias: functional.layer_norm(
            x, x.shape[-1:], weight, bias, EPS
        ),
        "cross_entropy": lambda x, target: functional.cross_entropy(x, target, reduction="none"),
    }[row["kernel"] + " residual" * bool(row.get("residual"))]


def with_gradient(function: Callable[..., Any], torch: Any) -> Callable[..., Any]:
    """Return a function that returns a loss and its gradient for x."""

    def both(x: Any, target: Any) -> tuple[Any, Any]:
        leaf = x.detach().requires_grad_()
        with torch.enable_grad():
            loss = function(leaf, target)
            (gradient,) = torch.autograd.grad(loss, leaf, torch.ones_like(loss))
        return loss.detach(), gradient

    return both


def ours_of(row: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the tuned kernel on torch's arguments."""
    kernel = load(row["kernel"])
    if row["kernel"] == "softmax":
        return kernel
    if row["kernel"] == "cross_entropy":
        return partial(kernel, with_gradient=row["gradient"])
    return partial(kernel, eps=EPS)


def liger_of(row: Mapping[str, Any], torch: Any) -> Callable[..., Any] | None:
    """Return Liger's function, without what waits for the host; None where it has none."""
    if find_spec("liger_kernel") is None or (
        row["columns"] > 65536 and row["kernel"] != "cross_entropy"
    ):
        return None
    module = "fused_add_rms_norm" if row.get("residual") else row["kernel"]
    found = import_module(f"liger_kernel.ops.{module}")
    if row["kernel"] == "softmax":
        return lambda x: found._softmax_forward(x)[0]
    if row["kernel"] == "layer_norm":
        return lambda x, weight, bias: found.layer_norm_forward(x, weight, bias, EPS)[0]
    if row.get("residual"):
        return lambda x, weight, residual: found.fused_add_rms_norm_forward(
            x, residual, weight, EPS, 0.0, "llama"
        )[:2]
    if row["kernel"] == "rms_norm":
        return lambda x, weight: found.rms_norm_forward(x, weight, EPS, 0.0, "llama", False)[0]
    import triton

    block = min(found.MAX_FUSED_SIZE, triton.next_power_of_2(row["columns"]))
    rows, columns = row["rows"], row["columns"]
    options = {
        **dict.fromkeys(("weight_ptr", "z_loss_ptr", "token_accuracy_ptr", "softcap")),
        **dict.fromkeys(("predicted_tokens_ptr",)),
        **dict.fromkeys(("RETURN_Z_LOSS", "RETURN_TOKEN_ACCURACY"), False),
        **dict.fromkeys(("RETURN_PREDICTED_TOKENS", "HAS_WEIGHT", "HAS_SOFTCAPPING"), False),
        **{"token_accuracy_stride": 0, "predicted_tokens_stride": 0, "ignore_index": -100},
        **{"n_cols": columns, "n_non_ignore": rows, "sum_non_ignore_weight": rows},
        **{"weight_sum": 0.0, "lse_square_scale": 0.0, "label_smoothing": 0.0},
        **{"reduction": "none", "BLOCK_SIZE": block, "num_warps": 32},
    }

    def cross_entropy(x: Any, target: Any) -> Any:
        """Write the gradient over x, as Liger does."""
        loss = torch.empty(rows, dtype=x.dtype, device=x.device)
        found.liger_cross_entropy_kernel[(rows,)](
            **{"X_ptr": x, "X_stride": columns, "Y_ptr": target, "Y_stride": 1},
            **{"loss_ptr": loss, "loss_stride": 1, "HAS_GRADIENTS": row["gradient"]},
            **options,
        )
        return (loss, x) if row["gradient"] else loss

    return cross_entropy


def torch_ways(row: Mapping[str, Any], torch: Any) -> dict[str, Callable[..., Any]]:
    """Return torch's ways to compute a row, as it is and compiled."""
    eager = eager_of(row, torch)
    torch.compiler.reset()
    found = {"eager": eager, "compiled": torch.compile(eager, fullgraph=True, dynamic=False)}
    if row.get("gradient"):
        return {name: with_gradient(function, torch) for name, function in found.items()}
    return found


def ways_of(row: Mapping[str, Any], torch: Any) -> dict[str, Callable[..., Any]]:
    """Return all ways to compute a row, and a copy of as many bytes."""
    liger = liger_of(row, torch)
    more = {"liger": liger} if liger else {}
    return {"ours": ours_of(row), **torch_ways(row, torch), **more, "copy": lambda x: x.clone()}


# ---------------------------------------------------------------------- measuring


def measured(row: Mapping[str, Any], torch: Any) -> dict[str, Any]:
    """Return times in milliseconds and errors of each way."""
    nbytes = nbytes_of(row)
    calls = max(LEAST_CALLS, min(MOST_CALLS, math.ceil(COLD_BYTES / nbytes)))
    sets = [arguments(row, torch) for _ in range(calls)]
    if row["kernel"] == "cross_entropy":  # it takes numbers of 32 bits
        ours = [{**each, "target": each["target"].to(torch.int32)} for each in sets]
    elif row.get("residual"):  # it writes the sum there
        ours = [{**each, "residual": each["residual"].clone()} for each in sets]
    else:
        ours = sets
    half = [torch.empty(max(1, nbytes // 2), dtype=torch.int8, device="cuda") for _ in range(calls)]
    copies = [{"x": each} for each in half]
    found: dict[str, Any] = {"nbytes": nbytes, "calls": calls, "error": {}, "failed": {}}
    graphs: dict[tuple[str, str], tuple[Any, int]] = {}
    kept: list[Any] = []
    expected = _expected(row, sets[0], torch)
    for name, function in ways_of(row, torch).items():
        given = {"ours": ours, "copy": copies}.get(name, sets)
        if name == "liger" and row.get("gradient"):  # it writes the gradient there
            given = [{**each, "x": each["x"].clone()} for each in given]
        try:
            first = {n: v.clone() if n in ("x", "residual") else v for n, v in given[0].items()}
            result = function(**first)
            if name != "copy":
                found["error"][name] = _error(result, expected)
            del first, result
            for state, some in (("cold", given), ("hot", [given[0]] * HOT_CALLS)):
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    kept.append([function(**each) for each in some])
                graphs[name, state] = graph, len(some)
        except Exception as error:  # the other ways are measured
            torch.cuda.synchronize()
            found["failed"][name] = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    del expected
    times: dict[tuple[str, str], list[float]] = {key: [] for key in graphs}
    for _ in range(REPLAYS):
        for key, (graph, count) in graphs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times[key].append(start.elapsed_time(end) / count)
    for state in ("cold", "hot"):
        found[f"{state}_ms"] = {
            name: round(median(values), 6) for (name, of), values in times.items() if of == state
        }
    return found


def _expected(row: Mapping[str, Any], given: Mapping[str, Any], torch: Any) -> list[Any]:
    """Return results in float64."""
    wide = {n: v.double() if v.is_floating_point() else v for n, v in given.items()}
    function = eager_of(row, torch)
    return _listed((with_gradient(function, torch) if row.get("gradient") else function)(**wide))


def _listed(results: Any) -> list[Any]:
    return [*results] if isinstance(results, tuple) else [results]


def _error(results: Any, expected: Sequence[Any]) -> float:
    """Return the largest error over the largest value, of several results the worst."""
    pairs = zip(_listed(results), expected, strict=True)
    return max(float((one.double() - two).abs().max() / two.abs().max()) for one, two in pairs)


def choice_of(row: Mapping[str, Any], torch: Any) -> dict[str, Any]:
    """Return the kernel and the configuration that a row's call launches."""
    given = arguments(row, torch)
    if "target" in given:
        given |= {"target": given["target"].to(torch.int32), "with_gradient": row["gradient"]}
    found = load(row["kernel"]).choice(**given)
    quality = found.tuned.quality if found.tuned else "default"
    configuration = dict(found.configuration)
    return {"answered_by": found.kernel, "configuration": configuration, "quality": quality}


def compile_beside(count: int, seconds: float) -> None:
    """Compile rows in parallel processes, in at most half of the time; the rest is compiled later."""
    parts = max(1, min(usable_cores() - 1, count))
    command = [sys.executable, *sys.argv, "--compile"]
    processes = [subprocess.Popen([*command, f"{number}/{parts}"]) for number in range(parts)]
    until = time.monotonic() + seconds / 2
    try:
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()) if seconds < math.inf else None)
    finally:
        for process in processes:
            process.kill()


def compile_some(part: str, rows: Sequence[Mapping[str, Any]], torch: Any) -> None:
    """Compile every N-th row into the caches that the measuring process reads."""
    number, count = map(int, part.split("/"))
    for row in rows[number::count]:
        try:
            given = arguments(row, torch)
            torch_ways(row, torch)["compiled"](**given)
            given |= {n: v.to(torch.int32) for n, v in given.items() if n == "target"}
            ours_of(row)(**given)
        except Exception as error:
            print(f"{row}: not compiled: {error}"[:300], file=sys.stderr)


# ---------------------------------------------------------------------- results


def ratio(row: Mapping[str, Any], state: str) -> float:
    """Return the time of the fastest other way over ours."""
    times = row[f"{state}_ms"]
    return min(ms for name, ms in times.items() if name not in ("ours", "copy")) / times["ours"]


def copy_share(row: Mapping[str, Any]) -> float:
    """Return our rate, cold, over the copy's."""
    return row["cold_ms"]["copy"] / row["cold_ms"]["ours"]


def name_of(row: Mapping[str, Any]) -> str:
    more = "".join(f" {each}" for each in ("residual", "gradient") if row.get(each))
    return f"{row['kernel']}{more} {row['rows']} x {row['columns']} {row['dtype']}"


def shown(row: Mapping[str, Any]) -> str:
    """Return a row as a line of text; the error where our call failed."""
    if "ours" in row["failed"]:
        raise RuntimeError(f"ours: {row['failed']['ours']}")
    rates = {n: row["nbytes"] / ms / 1e6 for n, ms in row["cold_ms"].items()}
    error = row["error"].get("ours", 0) / max(row["error"].get("eager", 0), 1e-300)
    return (
        f"{name_of(row):45s} cold {ratio(row, 'cold'):.3f} hot {ratio(row, 'hot'):.3f} "
        f"of copy {copy_share(row):.2f} error {error:.2f}  "
        + " ".join(f"{name} {rate:.0f}" for name, rate in rates.items())
        + f"  {row['failed'] or ''}"
    )


def summary(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what holds over all rows."""
    for state in ("cold", "hot"):
        found = [ratio(row, state) for row in rows]
        yield f"{state}: geometric mean {geometric_mean(found):.3f}, worst {min(found):.3f}"
    large = [copy_share(row) for row in rows if row["nbytes"] >= LARGE]
    if large:
        yield f"of the copy's rate from 64 MB on: {min(large):.3f} to {max(large):.3f}"


def main() -> None:
    parser = command_line(__doc__, "rows-<device>.json")
    parser.add_argument("--kernel", choices=KERNELS, action="append")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no row after these")
    parser.add_argument("--again", action="store_true", help="measure rows that are there, too")
    parser.add_argument("--tuned", type=Path, default=ROOT / "reports", help="folder of records")
    parser.add_argument(
        "--compile", metavar="K/N", help="only compile every N-th row, from the K-th"
    )
    options = parser.parse_args()
    end_s = time.monotonic() + options.seconds
    os.environ["AUTOTUNE_TUNED"] = str(options.tuned.resolve())
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # there is a process for each part
    device = choose_device(options.device)
    file = options.out / f"rows-{device.folder}.json"
    known = {name_of(row): row for row in rows_in(file)}
    wanted = [row for row in drawn() if not options.kernel or row["kernel"] in options.kernel]
    missing = [row for row in wanted if options.again or name_of(row) not in known]
    if not options.compile and missing:
        compile_beside(len(missing), options.seconds)
    import torch

    torch.manual_seed(SEED)
    if options.compile:
        return compile_some(options.compile, missing, torch)
    print(f"compiled; {end_s - time.monotonic():.0f} s are left", flush=True)
    for number, row in enumerate(missing):
        if time.monotonic() > end_s:
            print(f"time is up: {len(missing) - number} rows left")
            break
        try:
            found = {**row, **choice_of(row, torch), **measured(row, torch)}
            print(shown(found), flush=True)
        except Exception as error:
            print(f"{name_of(row)}: {type(error).__name__}: {error}"[:500], flush=True)
            continue
        known[name_of(row)] = found
        about = {**provenance(device), "torch": torch.__version__}
        ordered = [known[name] for name in map(name_of, drawn()) if name in known]
        write(file, {"about": about, "rows": ordered})
        torch.cuda.empty_cache()
    for line in summary(list(known.values())):
        print(line)


if __name__ == "__main__":
    finish(main)

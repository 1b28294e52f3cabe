"""Writes ``synthetic.json.gz``: a made-up tuning space in the form of a Kernel Tuner cache.

SYNTHETIC: nothing in it was measured on any device. It is rugged (a hash of the configuration
multiplies every time), has failures of each class, and parameters of every type, so that search
strategies can be tried where no recorded space is at hand.

    python tests/data/make_synthetic.py
"""

import gzip
import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

PARAMETERS: dict[str, list[Any]] = {
    "BM": [16, 32, 64, 128],
    "BN": [16, 32, 64, 128],
    "BK": [8, 16],
    "TM": [1, 2, 4, 8],
    "STAGES": [1, 2, 3],
    "LAYOUT": ["row", "column", "tiled"],
    "VECTOR": [False, True],
    "FIXED": [7],
}


def main() -> None:
    """Write the file beside this one; the same bytes every time."""
    names = list(PARAMETERS)
    points = [dict(zip(names, p, strict=True)) for p in itertools.product(*PARAMETERS.values())]
    cache = {",".join(map(str, p.values())): {**p, **outcome(p)} for p in points if is_valid(p)}
    data = {
        "device_name": "synthetic landscape, measured on no device",
        "kernel_name": "synthetic",
        "problem_size": [4096, 4096],
        "tune_params_keys": names,
        "tune_params": PARAMETERS,
        "objective": "time",
        "cache": cache,
    }
    text = json.dumps(data, indent=0)
    target = Path(__file__).with_name("synthetic.json.gz")
    target.write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"{target.name}: {len(cache)} of {len(points)} points")


def is_valid(p: dict[str, Any]) -> bool:
    """Whole warps, and at least a row of threads for each tile."""
    threads = p["BM"] // p["TM"] * p["BN"] // 4
    return bool(32 <= threads <= 1024) and p["BK"] * p["BM"] >= 512


def outcome(p: dict[str, Any]) -> dict[str, Any]:
    """A time with three samples, or the class of failure."""
    shared = 4 * p["STAGES"] * p["BK"] * (p["BM"] + p["BN"])
    if shared > 65536:
        return {"time": "CompilationFailedConfig", "compile_time": 300.0}
    if p["VECTOR"] and p["BK"] == 8 and p["LAYOUT"] == "column":
        return {"time": "RuntimeFailedConfig", "compile_time": 400.0}
    time = 1.0
    time *= 1 + abs(p["BM"] - 64) / 64 + abs(p["BN"] - 128) / 256
    time *= {1: 2.0, 2: 1.3, 4: 1.0, 8: 1.1}[p["TM"]]
    time *= {1: 1.5, 2: 1.0, 3: 1.05}[p["STAGES"]]
    time *= {"row": 1.2, "column": 1.4, "tiled": 1.0}[p["LAYOUT"]]
    time *= (0.9 if p["BK"] > 8 else 1.1) if p["VECTOR"] else 1.0
    time *= 1 + 0.3 * ripple(p)
    samples = [round(time * f, 4) for f in (1.04, 1.0, 1.001, 0.999)]  # the first runs cold
    return {
        "time": round(sum(samples) / 4, 4),
        "times": samples,
        "compile_time": 500.0,
        "verification_time": 20.0,
        "benchmark_time": 4.0,
    }


def ripple(p: dict[str, Any]) -> float:
    """A number in [0, 1) that neighbouring configurations do not share."""
    return hashlib.sha256(str(sorted(p.items())).encode()).digest()[0] / 256


if __name__ == "__main__":
    main()

"""The counters to read, by short name: metrics of Nsight Compute and their meaning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One counter: its metric, its name in tables, and its unit."""

    metric: str
    words: str
    unit: str = ""
    #: Factor from the metric to the unit.
    scale: float = 1.0

    def text(self, counters: Mapping[str, float]) -> str:
        """Return the value of this counter with its unit; empty if it is unknown."""
        value = counters.get(self.metric)
        return "" if value is None else f"{value * self.scale:.4g} {self.unit}".strip()


_LSU = "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op"
_SECTOR = "smsp__sass_average_data_bytes_per_sector_mem_global_op"
_SHARED = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op"
_BANKS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op"
_PEAK = "pct_of_peak_sustained"

#: Reasons why a warp does not issue, and what it waits for. Source: Nsight Compute, Kernel
#: Profiling Guide, "Warp States".
STALLS = {
    "long_scoreboard": "data from global or local memory",
    "short_scoreboard": "data from shared memory or a special unit",
    "wait": "the fixed latency of the instruction before",
    "barrier": "other warps at a barrier",
    "math_pipe_throttle": "a busy arithmetic pipe",
    "lg_throttle": "the full queue of global loads and stores",
    "mio_throttle": "the full queue of shared memory and special units",
    "no_instruction": "the instruction cache",
}

FIGURES: dict[str, Figure] = {
    "time": Figure("gpu__time_duration.sum", "time under ncu", "µs", 1e-3),
    "dram": Figure(f"gpu__dram_throughput.avg.{_PEAK}_elapsed", "memory throughput of peak", "%"),
    "sm": Figure(f"sm__throughput.avg.{_PEAK}_elapsed", "multiprocessor throughput of peak", "%"),
    "dram_read": Figure("dram__bytes_read.sum", "read from memory", "MB", 1e-6),
    "dram_write": Figure("dram__bytes_write.sum", "written to memory", "MB", 1e-6),
    "sectors_ld": Figure(f"{_LSU}_ld.ratio", "sectors per load request"),
    "sectors_st": Figure(f"{_LSU}_st.ratio", "sectors per store request"),
    "used_ld": Figure(f"{_SECTOR}_ld.pct", "loaded sectors used", "%"),
    "used_st": Figure(f"{_SECTOR}_st.pct", "stored sectors used", "%"),
    "l1_hit": Figure("l1tex__t_sector_hit_rate.pct", "L1 hits", "%"),
    "l2_hit": Figure("lts__t_sector_hit_rate.pct", "L2 hits", "%"),
    "wave_ld": Figure(f"{_SHARED}_ld.sum", "wavefronts of shared loads"),
    "wave_st": Figure(f"{_SHARED}_st.sum", "wavefronts of shared stores"),
    "bank_ld": Figure(f"{_BANKS}_ld.sum", "bank conflicts of shared loads"),
    "bank_st": Figure(f"{_BANKS}_st.sum", "bank conflicts of shared stores"),
    "simt": Figure(
        "smsp__thread_inst_executed_per_inst_executed.ratio", "active threads of a warp's 32"
    ),
    "pred": Figure(
        "smsp__thread_inst_executed_pred_on_per_inst_executed.ratio",
        "of these, not switched off by a predicate",
    ),
    "uniform": Figure(
        "smsp__sass_average_branch_targets_threads_uniform.pct", "uniform branches", "%"
    ),
    "occupancy": Figure(f"sm__warps_active.avg.{_PEAK}_active", "achieved occupancy", "%"),
    "local_ld": Figure("smsp__sass_inst_executed_op_local_ld.sum", "loads from local memory"),
    "local_st": Figure("smsp__sass_inst_executed_op_local_st.sum", "stores to local memory"),
    "tensor": Figure(f"sm__pipe_tensor_cycles_active.avg.{_PEAK}_active", "tensor pipe busy", "%"),
    **{
        f"stall_{name}": Figure(
            f"smsp__average_warps_issue_stalled_{name}_per_issue_active.ratio",
            f"warps that wait for {words}",
        )
        for name, words in STALLS.items()
    },
}
METRICS: tuple[str, ...] = tuple(figure.metric for figure in FIGURES.values())
_NAMES = {figure.metric: name for name, figure in FIGURES.items()}


def by_name(values: Mapping[str, float]) -> dict[str, float]:
    """Return counters under their short names."""
    return {_NAMES[metric]: value for metric, value in values.items() if metric in _NAMES}


def stalls(counters: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return the reasons to wait, the longest first, in warps per issued instruction."""
    known = [(name, counters[f"stall_{name}"]) for name in STALLS if f"stall_{name}" in counters]
    return sorted(known, key=lambda stall: -stall[1])

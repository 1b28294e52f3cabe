"""What benchmarks/throughput.py gives to Kernel Tuner is exactly what it gives to us."""

from __future__ import annotations

from dataclasses import replace

import pytest
import throughput  # type: ignore[import-not-found]

from autotune.devices.device import for_arch
from autotune.kernel.launches import launch_sequence

H100 = replace(for_arch("sm_90"), sm_count=132)


@pytest.mark.parametrize("name", throughput.SUBSPACES)
def test_kernel_tuner_gets_the_same_configurations_grids_and_symbols(name: str) -> None:
    pytest.importorskip("kernel_tuner")
    from kernel_tuner.searchspace import Searchspace

    subspace = throughput.SUBSPACES[name]
    matchup = throughput.Matchup(name, H100, subspace.problem, subspace.configurations)
    space = matchup.space()
    halves = [matchup.order(space, half) for half in (0, 1)]
    assert len({*halves[0], *halves[1]}) == subspace.configurations
    chosen = matchup.kernel_tuners(space, 0)
    assert {*chosen} <= {*halves[0]}
    assert len(chosen) == (subspace.sample // 2 or len(halves[0]))
    configurations = [space.configuration(index) for index in chosen]
    expressed = throughput.Expressed(matchup, configurations)
    found = Searchspace(
        expressed.tune_params,
        expressed.is_listed,
        1024,
        block_size_names=["threads", "_one", "_two"],
    )
    points = [dict(zip(expressed.tune_params, values, strict=True)) for values in found.list]
    seen = {tuple(point[name] for name in space.parameters) for point in points}
    assert seen == {
        tuple(configuration[name] for name in space.parameters) for configuration in configurations
    }
    assert len(points) == len(configurations)
    defines = expressed.defines()
    for point in points:
        configuration = throughput._configuration(matchup.kernel, point)
        steps = launch_sequence(matchup.kernel, configuration, matchup.problem, H100)
        assert len(steps.launches) == 1
        assert steps.main == expressed.launch(point)
        assert point["threads"] == steps.main.block[0] * steps.main.block[1]
        assert steps.main.shared_bytes <= 48 * 1024
        symbols = {symbol: value(point) for symbol, value in defines.items()}
        assert symbols == matchup.kernel.macros(configuration, matchup.problem)

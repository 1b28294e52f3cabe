"""Launches at once: what keeps state in its module cannot win, unless its space says so."""

from __future__ import annotations

from contextlib import closing

from autotune.compiling.job import compile_job
from autotune.devices.choose import choose_device
from autotune.kernel.catalog import find_kernel
from autotune.measure.measurement import Status
from autotune.measure.timing import Caches
from autotune.run.bench import Bench
from autotune.run.request import Request, Search
from autotune.run.run import Run
from autotune.search.session import Budget
from autotune.store import Store
from autotune.values import Configuration
from contracts.faults import SPACES


class OverlapContract:
    """Subclass with ``selector``, the device to run on."""

    selector: str

    def test_launches_that_share_a_ticket_are_told_from_those_that_do_not(self):
        """Both are right whenever they run alone, also after they ran at once."""
        kernel, device = find_kernel("ticket", SPACES), choose_device(self.selector)
        (problem,) = kernel.problems[device.backend]
        with closing(Bench(Request(kernel, device, (problem,)))) as bench:
            job = bench.job(problem)
            for ticket, expected, tries in (
                ("module", Status.WRONG_RESULT, 20),  # who meets whom is chance
                ("caller", Status.OK, 3),
            ):
                configuration = Configuration(PIECE=1 << 8, TICKET=ticket)
                compiled = compile_job(kernel, configuration, problem, device)
                binary = bench.compilers.result(compiled).binary
                assert binary is not None
                for _ in range(tries):
                    assert bench.worker.check(job, configuration, binary).status is Status.OK
                    found = bench.worker.check_at_once(job, configuration, binary)
                    if found.status is not Status.OK:
                        break
                assert found.status is expected, found.message
                assert found.message.startswith("out is wrong, by up to" if found.message else "")

    def test_what_shares_state_is_out_unless_it_is_declared(self, tmp_path):
        kernel, device = find_kernel("ticket", SPACES), choose_device(self.selector)
        problems, budget = kernel.problems[device.backend], Budget()
        fixed = {"PIECE": (1 << 8,), "TICKET": ("module", "declared")}
        request = Request(
            kernel,
            device,
            problems,
            budget=budget,
            goal=Search("exhaustive", fixed),
            caches=Caches.HOT,
        )
        for number in range(20):  # who meets whom is chance
            file = tmp_path / f"{number}.sqlite"
            with Store.open(file) as store, closing(Run(request, store)) as tuning:
                (result,) = tuning.run().problems
                rows = store.rows()
            if result.disqualified:
                break
        (out,) = result.disqualified
        assert (out.configuration["TICKET"], out.status) == ("module", Status.WRONG_RESULT)
        assert out.message.startswith("its launches share state: two launches at once on n=")
        assert "declare @ticket.exclusive if its launches must not overlap" in out.message
        assert result.winner is not None
        assert result.winner["TICKET"] == "declared"
        last = {row.measurement.configuration: row.measurement.status for row in rows}
        assert last[out.configuration] is Status.WRONG_RESULT

"""The search session: budget, memory, attempts, events; and whole runs on the CPU device."""

import multiprocessing
import os
import re
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from sample_spaces import changed, write_space

from autotune.devices.choose import choose_device
from autotune.devices.device import for_arch
from autotune.errors import NothingValidError, UsageError
from autotune.kernel.catalog import find_kernel, load_file
from autotune.kernel.space import enumerate_space
from autotune.measure.evaluator import ignore, nothing
from autotune.measure.measurement import Measurement, Status
from autotune.run import verdict
from autotune.run.recording import record_of
from autotune.run.request import EFFORTS, Request, Search, VerifyOne
from autotune.run.run import Run
from autotune.search.base import BudgetSpent
from autotune.search.session import Budget, Measured, Phase, SearchSession, SearchStarted, search
from autotune.search.strategies import exhaustive, random
from autotune.store import RunInfo, Scope, Store
from autotune.values import Configuration, Problem

SPACES = Path(__file__).parent / "data" / "spaces"
SAXPY = Path(__file__).parents[1] / "examples" / "saxpy"
RUN = RunInfo("scale", "Test", "test", 0, "0", "")
SCOPE = Scope(
    kernel="scale",
    problem=Problem(n=1000),
    device_uuid="u",
    device_name="Test",
    driver="1",
    toolchain="1",
    source="s",
    arguments="a",
    timing="cold",
)


# ---------------------------------------------------------------- budgets


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("90s", Budget(seconds=90)),
        ("10m", Budget(seconds=600)),
        ("2h", Budget(seconds=7200)),
        ("200evals", Budget(evaluations=200)),
    ],
)
def test_a_budget_is_read(text, budget):
    assert Budget.parse(text) == budget


NO_BUDGET = (
    "90 s evals -1s 0s 0evals -3evals 0.5evals 1.5evals nans infh 10ms 1e999s tens ²evals 10M"
)


@pytest.mark.parametrize("text", ["", "10 minutes", *NO_BUDGET.split()])
def test_what_is_no_budget_is_refused_with_examples(text):
    with pytest.raises(UsageError, match=r"expected for example 90s, 10m, 2h or 200evals$"):
        Budget.parse(text)


# ---------------------------------------------------------------- the session


class Table:
    """Measures from a formula: an evaluator that counts what is asked of it."""

    def __init__(self):
        self.measured, self.hinted, self.recalled = [], [], []

    def measure(self, configurations, begin=ignore, ahead=None, at_hand=nothing):
        for configuration in configurations:
            begin(configuration)
            self.measured.append(configuration)
            yield self.of(configuration)

    def of(self, configuration):
        if configuration.A == 3:
            return Measurement(configuration, Status.WRONG_RESULT, "three is wrong")
        ms = 1.0 + configuration.A + configuration.B / 10
        return Measurement(configuration, Status.OK, samples_ms=(ms, ms, ms))

    def hint(self, configurations):
        self.hinted.append(list(configurations))

    def recall(self, measurement):
        self.recalled.append(measurement.configuration)


@pytest.fixture
def space(tmp_path):
    """Ten by ten configurations, of which the last is invalid."""
    constraint = (
        '@scale.constraint\ndef c(A, B):\n    """No (9, 9)."""\n    return A + B < 18\n\n\n'
    )
    kernel = load_file(
        write_space(
            tmp_path,
            (
                "    BLOCK=(32, 64),",
                "    BLOCK=(32,),\n    A=tuple(range(10)),\n    B=tuple(range(10)),",
            ),
            ("@scale.launch", f"{constraint}@scale.launch"),
        )
    )
    return enumerate_space(kernel, for_arch("sm_90"))


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "s.sqlite") as opened:
        yield opened


@pytest.fixture
def session(space, store):
    """A session over the table; ``events`` of its listener."""

    def made(evaluator=None, **options):
        events = []
        given = {"budget": Budget(), "scope": SCOPE, **options}
        opened = SearchSession(
            space=space,
            evaluator=evaluator or Table(),
            store=store,
            run_id=store.begin_run(RUN),
            listener=events.append,
            **given,
        )
        opened.events = events
        return opened

    return made


def at(space, a, b):
    """The number of a configuration."""
    return space.index({"BLOCK": 32, "A": a, "B": b})


def test_measurements_come_in_the_order_asked_and_repeats_cost_nothing(space, session):
    made = session(budget=Budget(evaluations=3))
    found = made.measure([at(space, 2, 0), at(space, 0, 5), at(space, 2, 0)])
    assert [
        (measurement.configuration.A, measurement.configuration.B) for measurement in found
    ] == [(2, 0), (0, 5), (2, 0)]
    assert made.evaluations_left == 1
    assert made.measure([at(space, 0, 5)])[0].median_ms == 1.5
    assert made.evaluations_left == 1
    assert len(made.evaluator.measured) == 2


@pytest.mark.parametrize("budget", [1, 7, 20, 98, 99])
@pytest.mark.parametrize("batch", [1, 3, 7, 99])
def test_the_budget_is_kept_to_the_evaluation(space, session, store, budget, batch):
    made = session(budget=Budget(evaluations=budget))

    def batches(space, session, rng):
        for first in range(0, len(space), batch):
            session.measure(range(first, min(first + batch, len(space))))

    found = search(made, batches, 0)
    assert len(found) == len(made.evaluator.measured) == len(store.rows()) == budget
    assert list(found) == list(range(budget))
    assert made.evaluations_left == 0


def test_failures_are_rows_and_never_the_best(space, session, store):
    made = session()
    made.measure([at(space, 3, 0)])
    assert made.best(1) == []
    made.measure([at(space, 9, 8), at(space, 3, 1)])
    assert made.best(2) == [at(space, 9, 8)]
    statuses = [row.measurement.status for row in store.rows()]
    assert statuses == [Status.WRONG_RESULT, Status.OK, Status.WRONG_RESULT]


# ---------------------------------------------------------------- a stream of proposals


class Late(Table):
    """Gives the result of what was begun last, when no more may wait."""

    def measure(self, configurations, begin=ignore, ahead=None, at_hand=nothing):
        waiting = []
        for configuration in configurations:
            waiting.append(configuration)
            if len(waiting) == ahead:
                yield from super().measure([waiting.pop()], begin)
        yield from super().measure(reversed(waiting), begin)


def test_proposals_are_taken_as_results_come_and_told_in_any_order(session):
    made, told = session(Late()), []

    def proposals():
        for number in range(6):
            assert number - len(told) < 3
            yield number

    made.stream(proposals(), lambda number, row: told.append((number, row.configuration)), 3)
    assert [number for number, _ in told] == [2, 3, 4, 5, 1, 0] == list(made.measurements)
    assert all(made.space.configuration(number) == asked for number, asked in told)


def test_a_stream_keeps_the_budget_to_the_evaluation(session, store):
    made, told = session(Late(), budget=Budget(evaluations=7)), []
    with pytest.raises(BudgetSpent):
        made.stream(iter(range(99)), lambda number, row: told.append(number), 3)
    assert sorted(told) == list(range(7)) == sorted(made.measurements)
    assert len(store.rows()) == 7


def test_a_stream_is_answered_at_once_where_an_answer_is_known(session):
    session().measure([1, 2])
    made, told = session(Late()), []
    made.measure([3])
    made.stream(iter([3, 1, 0, 2]), lambda number, row: told.append(number), 9)
    assert told == [3, 1, 2, 0]
    assert len(made.evaluator.measured) == 2


# ---------------------------------------------------------------- memory


def test_what_an_earlier_run_measured_is_remembered(space, session, store):
    first = session()
    first.measure([at(space, 5, 5), at(space, 3, 3)])
    second = session(budget=Budget(evaluations=3))
    found = second.measure([at(space, 3, 3), at(space, 0, 0), at(space, 5, 5)])
    assert second.evaluator.measured == [Configuration(BLOCK=32, A=0, B=0)]
    assert found == [
        first.measurements[at(space, 3, 3)],
        found[1],
        first.measurements[at(space, 5, 5)],
    ]
    assert second.evaluator.recalled == [found[0].configuration, found[2].configuration]
    assert second.evaluations_left == 0  # so that the same command takes the same path
    assert len(store.rows()) == 3


def test_a_resumed_search_ends_where_an_uninterrupted_one_does(session):
    begun = search(session(budget=Budget(evaluations=20)), random, 7)
    again = session(budget=Budget(evaluations=50))
    resumed = search(again, random, 7)
    assert len(again.evaluator.measured) == 30
    assert list(resumed)[:20] == list(begun)
    uninterrupted = session(budget=Budget(evaluations=50), fresh=True)
    assert list(search(uninterrupted, random, 7)) == list(resumed)


@pytest.mark.parametrize(
    "change",
    [
        {"problem": Problem(n=1001)},
        {"device_uuid": "v"},
        {"driver": "2"},
        {"toolchain": "2"},
        {"source": "t"},
        {"arguments": "b"},
        {"timing": "hot"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_memory_of_something_else_is_none(session, change):
    session().measure([0])
    other = session(scope=replace(SCOPE, **change))
    other.measure([0])
    assert len(other.evaluator.measured) == 1


@pytest.fixture
def remember(space, store):
    """Keep rows of earlier runs, in ms by number, on a device."""

    def keep(ms_by_number, uuid="u", status=Status.OK):
        rows = [
            Measurement(space.configuration(number), status, samples_ms=(ms,) * 3)
            for number, ms in ms_by_number.items()
        ]
        store.add_many(store.begin_run(RUN), replace(SCOPE, device_uuid=uuid), rows)

    return keep


def known(made):
    return {row.configuration: row.median_ms for row in made.known()}


def test_rows_of_further_devices_answer_where_those_before_have_none(space, session, remember):
    for uuid, rows in (("u", {0: 1.0}), ("v", {0: 2.0, 1: 3.0}), ("w", {1: 4.0, 2: 5.0})):
        remember(rows, uuid)
    made = session(others=("v", "w"))
    expected = {space.configuration(number): ms for number, ms in ((0, 1.0), (1, 3.0), (2, 5.0))}
    assert known(made) == expected
    assert [row.median_ms for row in made.measure([0, 1, 2])] == [1.0, 3.0, 5.0]
    assert known(made) == expected


def test_what_was_stopped_early_is_timed_in_full_where_nothing_valid_is_faster(
    space, session, store, remember
):
    """What stopped it may lie outside of a restricted space; rows of this search do not count."""
    remember({0: 1.0, at(space, 5, 0): 5.0})
    remember({at(space, 5, b): b + 1.0 for b in (4, 8)}, status=Status.STOPPED_EARLY)
    rows = [row.median_ms for row in session().known()]
    assert rows == [1.0, 5.0, 5.0, 9.0]
    part = space.restricted({"A": [5]})
    made = SearchSession(part, Table(), store, store.begin_run(RUN), SCOPE, Budget())
    assert [row.median_ms for row in made.known()] == [5.0, 9.0]
    made.measure([4, 8])
    assert made.evaluator.measured == [part.configuration(4)]


def test_a_faster_row_of_this_search_validates_no_remembered_one(space, session, remember):
    remember({4: 5.0}, status=Status.STOPPED_EARLY)
    made = session()
    made.measure([0, 4])
    assert len(made.evaluator.measured) == 2


def test_results_are_in_the_order_asked_whenever_they_come(session):
    made = session(Late())
    assert [row.configuration for row in made.measure([3, 1, 2])] == [
        made.space.configuration(number) for number in (3, 1, 2)
    ]
    assert list(made.measurements) == [3, 1, 2]


# ---------------------------------------------------------------- attempts


def _die_while_measuring(path, configurations, times):
    """A run that ends in the middle of a measurement, as a crash of the machine would end it."""
    with Store.open(path) as store:
        for _ in range(times):
            store.open_attempts(store.begin_run(RUN), SCOPE, configurations)
        os._exit(1)


def die_while_measuring(path, *configurations, times=1):
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_die_while_measuring, args=(path, configurations, times))
    process.start()
    process.join(60)
    assert process.exitcode == 1


@pytest.fixture
def path(tmp_path):
    return tmp_path / "s.sqlite"


def test_an_attempt_found_open_once_is_tried_again_and_twice_is_a_crash(
    space, session, store, path
):
    once, twice = space.configuration(5), space.configuration(6)
    die_while_measuring(path, once, twice)
    die_while_measuring(path, twice)
    made = session()
    found = made.measure([5, 6, 7])
    assert [measurement.status for measurement in found] == [Status.OK, Status.CRASHED, Status.OK]
    assert found[1].message == "2 runs ended while it was being measured"
    assert made.evaluator.measured == [once, space.configuration(7)]
    assert [row.measurement.configuration for row in store.rows()].count(twice) == 1
    later = session()
    assert later.measure([6])[0].status is Status.CRASHED
    assert later.evaluator.measured == []
    assert len(store.rows()) == 3


def test_the_verdict_on_a_killer_is_remembered_but_fresh_tries_it_again(space, session, path):
    """After a driver's update, say: --fresh is how a person asks for another trial."""
    die_while_measuring(path, space.configuration(6), times=2)
    session().measure([6])
    again = session(fresh=True)
    assert again.measure([6])[0].status is Status.OK
    assert session().measure([6])[0].status is Status.OK


def test_ctrl_c_leaves_the_rows_before_it(space, session, store):
    class Interrupted(Table):
        def of(self, configuration):
            if len(self.measured) == 3:
                raise KeyboardInterrupt
            return super().of(configuration)

    with pytest.raises(KeyboardInterrupt):
        search(session(Interrupted()), exhaustive, 0)
    assert len(store.rows()) == 2
    assert len(search(session(budget=Budget(evaluations=4)), exhaustive, 0)) == 4


# ---------------------------------------------------------------- hints, events, first ones


def test_hints_leave_out_what_is_known(space, session):
    session().measure([4])
    made = session()
    made.measure([0])
    made.hint([0, 1, 4, 2])
    assert made.evaluator.hinted == [[space.configuration(1), space.configuration(2)]]


def test_events_tell_what_happens_in_order(space, session):
    session().measure([at(space, 1, 0)])
    made = session(budget=Budget(evaluations=9, seconds=1000))
    made.measure([at(space, 3, 0), at(space, 1, 0), at(space, 0, 0), at(space, 2, 0)])
    started, *rows = made.events
    assert started == SearchStarted(SCOPE.problem, Budget(1000, 9))
    assert all(isinstance(row, Measured) and row.problem == SCOPE.problem for row in rows)
    assert [row.is_remembered for row in rows] == [False, True, False, False]
    left_s = [1000, *(row.seconds_left for row in rows), 0]
    assert left_s == sorted(left_s, reverse=True)


def test_known_good_ones_come_first_once_and_only_where_valid(space, session):
    first = [
        {"BLOCK": 32, "A": 4, "B": 4},
        {"BLOCK": 32, "A": 9, "B": 9},  # removed by the constraint
        {"BLOCK": 32, "A": 4, "B": 4},
        {"BLOCK": 16, "A": 4, "B": 4},  # no such value
        {"BLOCK": 32, "A": 4},  # incomplete
        {"BLOCK": 32, "A": 2, "B": 1},
    ]
    made = session(budget=Budget(evaluations=5))
    found = search(made, exhaustive, 0, [Configuration(values) for values in first])
    assert list(found) == [at(space, 4, 4), at(space, 2, 1), 0, 1, 2]


# ---------------------------------------------------------------- whole runs on a device


@pytest.mark.parametrize(
    ("strategy", "budget", "ended_by"),
    [
        (exhaustive, Budget(), "all"),
        (exhaustive, Budget(evaluations=99), "all"),
        (exhaustive, Budget(evaluations=3), "budget of 3 evaluations"),
        (exhaustive, Budget(seconds=1e-9), "time"),
        (lambda space, session, rng: session.measure([1]), Budget(), "nothing more proposed"),
    ],
)
def test_a_search_says_what_ended_it(space, strategy, budget, ended_by):
    session = SearchSession(space, Table(), None, 0, SCOPE, budget)
    search(session, strategy, 0)
    assert session.ended_by == ended_by


@pytest.fixture
def tuned(opencl_device, path, kept_processes):
    """Tune a kernel on the CPU; the result, and the events as ``.events`` of the function.

    A listener is told each of them with the run.
    """

    def run(kernel, listener=lambda tuning, event: None, **options):
        events = []

        def told(event):
            events.append(event)
            listener(tuning, event)

        goal = options.pop("goal", None) or Search(
            options.pop("strategy", "exhaustive"),
            options.pop("fixed", {}),
            fresh=options.pop("fresh", False),
        )
        given = {"goal": goal, "budget": Budget(), "timeout_s": 60.0, **options}
        request = Request(kernel, choose_device(opencl_device), **given)
        with Store.open(path) as store:
            tuning = Run(request, store, told)
            try:
                return tuning.run()
            finally:
                tuning.close()
                run.events = events
                run.new = [e for e in events if isinstance(e, Measured) and not e.is_remembered]

    return run


@pytest.fixture
def saxpy(tmp_path):
    """A copy of the example whose space file can be changed."""
    shutil.copytree(SAXPY, tmp_path / "saxpy")
    file = tmp_path / "saxpy" / "spaces" / "saxpy.py"
    original = file.read_text()

    def edited(*edits):
        file.write_text(changed(original, *edits))
        return load_file(file)

    return edited


EDGES = ("    BLOCK=", "    edge_problems=[Problem(n=63)],\n    BLOCK=")


@pytest.fixture
def wrong(saxpy, tmp_path):
    """Make a copy of the example of which some blocks are wrong at some size."""

    def made(blocks, size, *edits):
        source = tmp_path / "saxpy" / "kernels" / "saxpy.cu"
        kernel = saxpy(*edits)
        spoilt = f"#if BLOCK {blocks}\n if (n == {size}) out[i] = 0;\n#endif\n    }}\n}}"
        source.write_text(changed(source.read_text(), ("    }\n}", spoilt)))
        return kernel

    return made


N = Problem(n=4099)
FIXED = {"ITEMS": (2,), "BLOCK": (32, 64)}


def test_a_new_value_in_a_list_measures_only_itself_again(tuned, saxpy, path):
    """Nor does anything else that says only what to try; what is computed does."""
    blocks, options = "(32, 64, 128, 256, 512, 1024)", {"problems": (N,), "fixed": {"ITEMS": (2,)}}
    tuned(saxpy((blocks, "(32, 64)")), **options)
    assert len(tuned.new) == 2
    comment = ("# threads per block", "# another comment")
    result = tuned(saxpy((blocks, "(32, 96, 64)"), comment), **options)
    assert [event.measurement.configuration.BLOCK for event in tuned.new] == [96]
    assert len(result.problems[0].measured) == 3
    tuned(saxpy((blocks, "(32, 64)"), ("rng.uniform(1, 4)", "rng.uniform(1, 3)")), **options)
    assert len(tuned.new) == 2
    with Store.open(path) as store:
        assert len(store.rows()) == 5


def test_the_budget_of_a_command_is_divided_among_its_problems(tuned, saxpy):
    problems = tuple(Problem(n=n) for n in (100, 200, 300))
    result = tuned(saxpy(), problems=problems, strategy="random", budget=Budget(evaluations=5))
    assert [len(solved.measured) for solved in result.problems] == [2, 2, 1]
    assert len(tuned.new) == 5


def test_several_launches_with_fill_workspace_and_static_field(tuned):
    """Each step needs the one before it; TAPS is compiled in, so two problems have two binaries."""
    kernel = find_kernel("steps", SPACES)
    result = tuned(kernel, problems=kernel.problems["opencl"])
    for solved in result.problems:
        assert {found.status for found in solved.measured} == {Status.OK}, solved.measured
        assert len(solved.measured) == len(result.space) == 6
        assert solved.disqualified == ()
        checks = {(check.output, check.dataset) for check in solved.measured[0].checks}
        outputs = ("y", "total", "count")
        assert checks == {(name, which) for name in outputs for which in ("exact", "random")}
    keys = [{found.binary_key for found in solved.measured} for solved in result.problems]
    assert not keys[0] & keys[1]
    assert len(result.solved) == 2


def test_the_default_and_seeds_come_first_whatever_they_say_of_what_does_not_apply(tuned):
    """The default names UNROLL=4 with a MODE to which UNROLL does not apply; one seed is invalid."""
    kernel = find_kernel("steps", SPACES)
    options = {"problems": kernel.problems["opencl"][:1], "budget": Budget(evaluations=2)}
    (result,) = tuned(kernel, **options).problems
    assert [measurement.configuration for measurement in result.measured] == [
        Configuration(BLOCK=32, MODE="plain", UNROLL=1),
        Configuration(BLOCK=64, MODE="unrolled", UNROLL=4),
    ]


BROKEN = {
    "no fill": ('Fill("count", 0),', ""),
    "no middle launch": (
        'Launch(1, 1, entry="finish", args=("partials", "total", blocks(c))),',
        "",
    ),
    "part of the workspace": ('"total", blocks(c)', '"total", blocks(c) - 1'),
}


@pytest.mark.parametrize("edit", BROKEN.values(), ids=BROKEN)
def test_a_sequence_with_one_step_wrong_has_no_winner(tuned, tmp_path, edit):
    """Each would go unnoticed if only one launch, or only one output, were checked."""
    shutil.copytree(SPACES.parent / "kernels", tmp_path / "kernels")
    (tmp_path / "spaces").mkdir()
    file = tmp_path / "spaces" / "steps.py"
    file.write_text(changed((SPACES / "steps.py").read_text(), edit))
    kernel = load_file(file)
    only = Configuration(BLOCK=32, MODE="plain", UNROLL=1)
    with pytest.raises(NothingValidError, match="1 wrong_result"):
        tuned(kernel, problems=kernel.problems["opencl"][:1], goal=VerifyOne(only))


def test_a_constant_on_a_device_without_module_symbols_says_what_to_do(tuned, tmp_path):
    constant = (
        ("import Kernel, Launch, Out", "import Constant, Kernel, Launch, Out"),
        ('"n": p.n', '"n": p.n, "taps": Constant(x[:3])'),
    )
    kernel = load_file(write_space(tmp_path, *constant))
    with pytest.raises(NothingValidError, match=r"2 launch_failed.*pass constants as inputs"):
        tuned(kernel, problems=kernel.problems["opencl"])


def test_a_configuration_outside_the_space_is_refused_with_the_broken_rule(tmp_path):
    edits = (
        "@scale.launch",
        "@scale.constraint\ndef small(BLOCK):\n    return BLOCK < 64\n\n\n@scale.launch",
    )
    kernel, device = load_file(write_space(tmp_path, edits)), for_arch("sm_90")
    space = enumerate_space(kernel, device)
    VerifyOne(Configuration(BLOCK=32)).require_member(kernel, device, space)
    with pytest.raises(NothingValidError, match=r"^scale: BLOCK=64 is not valid on .*: small"):
        VerifyOne(Configuration(BLOCK=64)).require_member(kernel, device, space)


def test_one_configuration_is_verified_and_timed_without_a_search(tuned, saxpy):
    only = Configuration(BLOCK=128, ITEMS=4)
    (result,) = tuned(saxpy(), problems=(N,), goal=VerifyOne(only)).problems
    assert [measurement.configuration for measurement in result.measured] == [only]
    assert result.winner == only
    tuned(saxpy(), problems=(N,), goal=VerifyOne(only))
    assert len(tuned.new) == 1, "it is asked for by name, so it is timed again"
    with pytest.raises(UsageError, match="unknown value of BLOCK: '96'"):
        tuned(saxpy(), problems=(N,), goal=VerifyOne(Configuration(BLOCK=96, ITEMS=4)))


def test_finalists_that_fail_on_odd_sizes_are_disqualified_and_their_rows_say_so(
    tuned, wrong, path
):
    """Right on the tuned size, wrong on one that no tile divides: a bug that only a few sizes show."""
    kernel = wrong("== 64", 63, EDGES)
    (result,) = tuned(kernel, problems=(Problem(n=4096),), fixed=FIXED).problems
    (bad,) = result.disqualified
    assert bad.configuration == Configuration(BLOCK=64, ITEMS=2)
    assert bad.status is Status.WRONG_RESULT
    assert re.match(r"on n=63 with other inputs: out\[\d+\] is 0, expected", bad.message)
    assert result.winner.BLOCK == 32
    assert len(result.measured) == 2
    statuses = {trial.configuration.BLOCK: trial.status for trial in result.trials}
    assert statuses == {32: Status.OK, 64: Status.WRONG_RESULT}
    with Store.open(path) as store:
        last = store.rows()[-1].measurement
    assert (last.configuration, last.status) == (bad.configuration, bad.status)
    tuned(kernel, problems=(Problem(n=4096),), fixed=FIXED)
    assert tuned.new == []


#: Only where contenders are raced, and only in the worker: the launch function of BLOCK=64 fails.
IN_A_RACE = (
    "@saxpy.launch\ndef launch(c, p):\n",
    "@saxpy.launch\ndef launch(c, p):\n"
    "    import os, traceback\n"
    "    racing = any(one.name == 'run_heat' for one in traceback.extract_stack())\n"
    "    if racing and c.BLOCK == 64:\n"
    "        os._exit(4)\n",
)


def test_a_finalist_that_fails_in_the_race_is_disqualified_and_the_run_goes_on(tuned, saxpy, path):
    (result,) = tuned(saxpy(IN_A_RACE), problems=(N,), fixed=FIXED).problems
    (bad,) = result.disqualified
    assert (bad.configuration.BLOCK, bad.status) == (64, Status.CRASHED)
    assert bad.message == "in the finals: the process died twice: exit code 4"
    assert result.winner.BLOCK == 32
    assert len(result.result.finalists) == 1
    with Store.open(path) as store:
        last = store.rows()[-1].measurement
    assert (last.configuration, last.status) == (bad.configuration, bad.status)


def test_what_is_deterministic_has_a_place_in_the_finals_and_in_the_record(tuned, saxpy, tmp_path):
    """Though it is the slowest, and the one before it is wrong on an odd size."""
    declared = "@saxpy.deterministic\ndef d(c, p):\n    return c.BLOCK <= 128\n\n\n@saxpy.launch\n"
    kernel = saxpy(("@saxpy.launch\n", declared), EDGES)
    source = tmp_path / "saxpy" / "kernels" / "saxpy.cu"
    slow = "for (int k = 0; k < 300; ++k) ((GLOBAL volatile float*)out)[i] = out[i];"
    worse = f"#if BLOCK == 128\n{slow}\n#elif BLOCK < 128\nif (n == 63) out[i] = 0;\n#endif\n"
    worse = f"if (i >= n) break;\n{worse}"
    source.write_text(source.read_text().replace("    }\n}", f"{worse}    }}\n}}"))
    effort = replace(EFFORTS["quick"], finalists=5)
    fixed = {"ITEMS": (2,), "BLOCK": (64, 128, 256, 512, 1024)}
    run = tuned(kernel, problems=(N,), fixed=fixed, effort=effort)
    (found,) = record_of(run).problems
    finalists = [c.configuration["BLOCK"] for c in run.problems[0].result.finalists]
    assert sorted(finalists) == [128, 256, 512, 1024]
    assert found.configuration["BLOCK"] > 128 and not found.plan.deterministic
    best = found.race.best_deterministic
    assert (best.configuration["BLOCK"], found.plans[1].deterministic) == (128, True)
    assert found.plans[1].configuration == best.configuration
    assert 3 <= best.identical_runs <= 100


def test_a_recorded_winner_races_however_slow_it_was_in_the_search(tuned, saxpy, tmp_path):
    source = tmp_path / "saxpy" / "kernels" / "saxpy.cu"
    slow = "#if BLOCK == 32\nfor (int k = 0; k < 300; ++k) ((GLOBAL volatile float*)out)[i] = 0;\n#endif\n"
    kernel, (before, _, after) = saxpy(), source.read_text().partition("if (i < n) out")
    source.write_text(f"{before}if (i >= n) break;\n{slow}out{after}")
    known = Configuration(BLOCK=32, ITEMS=2)
    only = {"effort": replace(EFFORTS["quick"], finalists=1), "fixed": FIXED, "problems": (N,)}
    (alone,) = tuned(kernel, **only).problems
    (raced,) = tuned(kernel, recorded={N: (known,)}, **only).problems
    assert alone.winner == raced.winner != known
    assert [len(found.result.finalists) for found in (alone, raced)] == [1, 2]


FLOORED = ("ceil_div(p.n, c.BLOCK * c.ITEMS)", "p.n // (c.BLOCK * c.ITEMS)")
WHOLE = (
    "@saxpy.launch",
    "@saxpy.requires\ndef requires(c, p):\n    return p.n % (c.BLOCK * c.ITEMS) == 0\n\n\n@saxpy.launch",
)


@pytest.mark.many_sizes
def test_a_grid_that_leaves_the_last_elements_out_wins_only_for_sizes_that_it_requires(
    tuned, saxpy
):
    """Nobody declares an odd size here."""
    options = {"problems": (Problem(n=4096),), "fixed": FIXED}
    message = r"on n=4095 .*\(not written\).*@saxpy.requires, .*: return p.n % 128 == 0$"
    with (
        pytest.warns(UserWarning, match=r"not verified at n=1 .*grid=\(0,\)"),
        pytest.raises(NothingValidError, match=message),
    ):
        tuned(saxpy(FLOORED), **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (result,) = tuned(saxpy(FLOORED, WHOLE), fresh=True, **options).problems
    assert result.disqualified == ()


@pytest.mark.many_sizes
def test_an_index_that_overflows_at_a_large_size_is_wrong(tuned, saxpy, tmp_path):
    source = tmp_path / "saxpy" / "kernels" / "saxpy.cu"
    kernel = saxpy()
    narrow = "#if BLOCK == 64\nif (i * n >= n * n) continue;\n#endif\nif (i < n)"
    source.write_text(changed(source.read_text(), ("if (i < n)", narrow)))
    (result,) = tuned(kernel, problems=(Problem(n=30000),), fixed=FIXED).problems
    (bad,) = result.disqualified
    assert bad.configuration.BLOCK == 64
    assert re.match(r"on n=\d{5,} .*wrong at 1\).*return p.n <= 30001$", bad.message)


@pytest.mark.many_sizes
def test_sizes_that_the_functions_refuse_disqualify_nothing(tuned, saxpy):
    raising = ("    x, y =", '    if p.n % 2:\n        raise ValueError("odd")\n    x, y =')
    with pytest.warns(UserWarning, match=r"not verified at n=999 .*ValueError: odd") as told:
        (result,) = tuned(saxpy(raising), problems=(Problem(n=1000),), fixed=FIXED).problems
    assert result.disqualified == () and len(told) == 1


@pytest.mark.many_sizes
def test_a_size_where_all_values_are_0_proves_nothing(tuned, saxpy, tmp_path):
    """The variance of one number, computed in one pass, is a rounding error."""
    source = tmp_path / "saxpy" / "kernels" / "saxpy.cu"
    kernel = saxpy(("return alpha * x + y", "return (alpha * x + y) * (x.size > 1)"))
    source.write_text(
        changed(source.read_text(), ("if (i < n)", "if (n == 1) out[i] = 1e-9f; else if (i < n)"))
    )
    (result,) = tuned(kernel, problems=(Problem(n=1000),), fixed=FIXED).problems
    assert result.disqualified == ()


@pytest.mark.many_sizes
def test_a_crash_at_another_size_disqualifies(tuned, saxpy):
    dies = f"""def launch(c, p):
    import os
    if p.n == 4095 and c.BLOCK == 64 and os.getpid() != {os.getpid()}:
        os._exit(4)
"""
    kernel = saxpy(("def launch(c, p):\n", dies))
    (result,) = tuned(kernel, problems=(Problem(n=4096),), fixed=FIXED).problems
    (bad,) = result.disqualified
    assert (bad.configuration.BLOCK, bad.status) == (64, Status.CRASHED)
    assert "the process died twice" in bad.message


def test_where_all_finalists_are_out_the_next_best_take_their_places(tuned, wrong):
    kernel = wrong("!= 32", 63, EDGES)
    effort = replace(EFFORTS["quick"], finalists=1)
    fixed = {"ITEMS": (2,), "BLOCK": (32, 64, 128)}
    (result,) = tuned(kernel, problems=(N,), fixed=fixed, effort=effort).problems
    assert result.winner.BLOCK == 32
    assert 32 not in [measurement.configuration.BLOCK for measurement in result.disqualified]


def test_what_is_wrong_at_an_odd_size_answers_for_no_other_problem(tuned, wrong):
    kernel = wrong("== 32", 63, EDGES)
    fixed = {"ITEMS": (1,), "BLOCK": (32, 64)}
    result = tuned(kernel, problems=(Problem(n=4096), Problem(n=8192)), fixed=fixed)
    assert result.portfolio.configurations == (Configuration(BLOCK=64, ITEMS=1),)
    assert [len(solved.disqualified) for solved in result.problems] == [1, 1]


def test_what_is_wrong_on_one_problem_answers_for_no_other(tuned, wrong):
    """Where it is right it wins; a lookup of other sizes gets the default instead."""
    kernel = wrong("== 64", 8192)
    fixed = {"ITEMS": (1,), "BLOCK": (64,)}
    result = tuned(kernel, problems=(Problem(n=4096), Problem(n=8192)), fixed=fixed)
    assert [solved.result is not None for solved in result.problems] == [True, False]
    made = record_of(result)
    assert [entry.problem for entry in made.problems] == [{"n": 4096}]
    assert made.portfolio.tables == ()


def test_what_a_configuration_requires_is_asked_of_every_problem(tuned, saxpy):
    """A problem that breaks it prunes it there, and disqualifies it nowhere."""
    requires = (
        "@saxpy.requires\ndef requires(c, p):\n"
        "    return p.n % 64 == 0 if c.BLOCK == 64 else True\n\n\n@saxpy.launch"
    )
    kernel = saxpy(EDGES, ("@saxpy.launch", requires))
    result = tuned(kernel, problems=(Problem(n=4096), N), fixed=FIXED)
    even, odd = result.problems
    assert [measurement.status for measurement in even.measured] == [Status.OK, Status.OK]
    assert even.disqualified == ()
    pruned = next(row for row in odd.measured if row.status is Status.PRUNED)
    assert [row.status for row in odd.measured if row is not pruned] == [Status.OK]
    assert pruned.message == "it requires what n=4099 does not meet"
    where = result.portfolio.configurations.index(Configuration(BLOCK=64, ITEMS=2))
    assert result.portfolio.median_ms[where][0] is not None
    assert result.portfolio.median_ms[where][1] is None


def test_what_won_at_the_nearest_sizes_is_tried_first(tuned, saxpy):
    sizes = [Problem(n=1 << e) for e in (8, 14, 13)]
    result = tuned(saxpy(), problems=tuple(sizes), fixed=FIXED)
    _, near, last = result.problems
    winner = verdict.candidates(near.measured, 1)[0].configuration
    assert last.measured[0].configuration == winner


def test_a_portfolio_that_cannot_be_measured_costs_no_winner(tuned, saxpy):
    def end_process(tuning, event):
        if isinstance(event, Phase) and event.name == "portfolio":
            tuning.worker.actor.close()

    with pytest.warns(UserWarning, match="the processes of the run were ended"):
        result = tuned(saxpy(), end_process, problems=(N, Problem(n=100)), fixed=FIXED)
    assert result.portfolio is None
    assert len(result.solved) == 2


def test_values_that_nothing_has_end_the_run(tuned, saxpy):
    with pytest.raises(UsageError, match="unknown value of BLOCK: '33'"):
        tuned(saxpy(), problems=(N,), fixed={"BLOCK": (33,)})
    with pytest.raises(UsageError, match="unknown parameter 'BLOK'"):
        tuned(saxpy(), problems=(N,), fixed={"BLOK": (32,)})

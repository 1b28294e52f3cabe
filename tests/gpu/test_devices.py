"""The CUDA backend on a GPU: the contract of backends, and what only CUDA has."""

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from contracts.backend import KERNELS, ONE, ExecutorContract
from sample_spaces import SOURCE, changed, write_space

from autotune.cli import run
from autotune.devices.base import BoundFill, BoundLaunch, LaunchError
from autotune.devices.choose import backend, choose_device
from autotune.devices.cuda_timer import CudaTimer
from autotune.devices.device import Clocks, for_arch
from autotune.kernel.catalog import find_kernel, load_file
from autotune.kernel.launches import LaunchSequence, exceeded_limit
from autotune.kernel.spec import Launch
from autotune.measure.measurement import Status
from autotune.run.device_limits import known_limits
from autotune.run.recording import record_of
from autotune.run.request import Request, Search
from autotune.run.run import Run
from autotune.search.session import Budget, Event, SearchStarted
from autotune.store import Store
from autotune.values import Problem
from autotune.vendor import PLAIN, cublas_call

CONSTANTS = """
__constant__ float taps[3];
__constant__ int shift;
extern "C" __global__ void tapped(float* out) {
    out[threadIdx.x] = taps[threadIdx.x] + shift;
}
"""
READ = """
extern "C" __global__ void read(const float4* x, float* out, int count) {
    float sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        sum += x[i].x + x[i].y + x[i].z + x[i].w;
    if (sum == -1.0f) out[0] = sum;  // never, but the compiler cannot know
}
"""
CYCLES = """
extern "C" __global__ void cycles(int count) {
    const long long start = clock64();
    while (clock64() - start < count) {}
}
"""
DYNAMIC = """
extern "C" __global__ void dynamic(float* out, int count) {
    extern __shared__ float tile[];
    for (int i = threadIdx.x; i < count; i += blockDim.x) tile[i] = i;
    __syncthreads();
    float sum = 0.0f;
    for (int i = threadIdx.x; i < count; i += blockDim.x) sum += tile[count - 1 - i];
    atomicAdd(out, sum > 0.0f ? 1.0f : 0.0f);
}
"""


@pytest.mark.gpu
@pytest.mark.alone
class TestExecutingOnCuda(ExecutorContract):
    selector = "cuda:0"

    def address(self, buffer):
        return buffer.inner.data.ptr

    def loaded(self, executor, text, **constants):
        binary = backend("cuda").compile(text, {}, (), executor.device)
        return executor.load(binary, constants)

    def test_constants_are_set_before_the_first_launch(self, executor):
        """Two data sets have two values: each module keeps its own."""
        out = executor.allocate(12)
        modules = {
            scale: self.loaded(
                executor,
                CONSTANTS,
                taps=scale * np.arange(3, dtype=np.float32),
                shift=np.array([scale], np.int32),
            )
            for scale in (1, 10)
        }
        for scale in (1, 10, 1):
            executor.run(modules[scale], [BoundLaunch("tapped", ONE, (3, 1, 1), 0, (out,))])
            found = executor.read(out, np.dtype("f4"), (3,))
            assert found.tolist() == [scale, 2 * scale, 3 * scale]

    def test_a_constant_that_the_module_lacks_is_a_refusal(self, executor):
        with pytest.raises(LaunchError):
            self.loaded(executor, CONSTANTS, misspelt=np.ones(3, np.float32))

    @pytest.mark.parametrize("kibibytes", [1, 48, 64, "most"])
    def test_dynamic_shared_memory_up_to_the_limit(self, executor, kibibytes):
        most = executor.device.shared_bytes_per_block
        shared = most if kibibytes == "most" else kibibytes * 1024
        module, out = self.loaded(executor, DYNAMIC), self.buffer(executor, np.zeros(1, "f4"))
        args = (out, np.int32(shared // 4))
        executor.run(module, [BoundLaunch("dynamic", ONE, (128, 1, 1), shared, args)])
        assert executor.read(out, np.dtype("f4"), (1,))[0] == 128

    def test_more_shared_memory_than_the_device_has_is_refused_as_planned(self, executor):
        shared = executor.device.shared_bytes_per_block + 1024
        plan = LaunchSequence((Launch(ONE, ONE, shared, "dynamic"),))
        assert "shared memory" in exceeded_limit(plan, None, executor.device)
        module, out = self.loaded(executor, DYNAMIC), self.buffer(executor, np.zeros(1, "f4"))
        step = BoundLaunch("dynamic", ONE, ONE, shared, (out, np.int32(1)))
        with pytest.raises(LaunchError):
            executor.run(module, [step])
        executor.run(module, [BoundLaunch("dynamic", ONE, ONE, 64, (out, np.int32(2)))])

    def test_limits_of_the_device_are_the_published_ones(self, executor):
        """The table that plans without a device must not promise more than there is."""
        published = for_arch(executor.device.arch)
        assert executor.device.shared_bytes_per_block == published.shared_bytes_per_block
        assert executor.device.max_threads_per_sm == published.max_threads_per_sm
        assert executor.device.peak_gb_per_s > 0
        assert executor.device.peak_gflop_per_s > 0

    def test_clocks_are_read(self, executor):
        clocks = executor.clocks()
        assert isinstance(clocks, Clocks)
        assert clocks.sm_mhz and 100 < clocks.sm_mhz < 5000
        assert clocks.temperature_c and 0 < clocks.temperature_c < 120

    # ------------------------------------------------------------ graphs

    @pytest.fixture
    def views(self, executor):
        """Two vectors on the device that nothing else uses."""
        import cupy

        with cupy.cuda.using_allocator(cupy.cuda.MemoryPool().malloc):
            return cupy.arange(4096, dtype=cupy.float32), cupy.zeros(4096, cupy.float32)

    def test_a_sequence_is_launched_as_one_graph(self, executor, module):
        fill = BoundFill(executor.allocate(64), np.int32(0))
        timer = self.ready(executor, module, [self.spin(executor, 100), fill])
        assert timer.launched_by == "graph"

    def test_a_graph_of_short_kernels_takes_no_longer_than_their_launches(self, executor, module):
        """What a graph is for: eight kernels of about a microsecond, and the gaps between them."""
        steps = [self.spin(executor, 10)] * 8
        timer = self.ready(executor, module, steps)
        graph = np.median(timer(30))
        timer.by_stream()
        assert graph <= 1.02 * np.median(timer(30))

    def test_a_call_of_a_library_is_captured(self, executor, views):
        import cupy

        x, out = views
        call = lambda: cupy.multiply(x, 2, out=out)  # noqa: E731
        call()
        timer = executor.timer_of(call, cold=True)
        assert timer.launched_by == "graph"
        out.fill(0)
        assert all(sample_ms > 0 for sample_ms in timer(3) + timer.hot(3))
        assert (out.get() == 2 * np.arange(4096)).all()

    def test_cublas_is_captured_and_computes(self, executor, views):
        """Its workspace is not allocated in the graph, and nothing of it is TF32."""
        x, out = views
        a, c = x[:1024].reshape(32, 32), out[:1024].reshape(32, 32)
        a[...] = (a % 5 + 1) * np.float32(1 + 2.0**-12)  # whose last bit TF32 rounds away
        call = cublas_call(
            "cublasSgemm_v2", PLAIN, PLAIN, 32, 32, 32, 1.0, a, 32, a, 32, 0.0, c, 32
        )
        call()
        timer = executor.timer_of(call, cold=True)
        assert timer.launched_by == "graph"
        out.fill(0)
        assert all(0 < sample_ms < 0.1 for sample_ms in timer(3) + timer.hot(3))
        exact = a.get().astype(np.float64)
        assert np.allclose(c.get(), exact @ exact, rtol=1e-5, atol=0)
        refused = cublas_call(
            "cublasSgemm_v2", PLAIN, PLAIN, -1, 32, 32, 1.0, a, 32, a, 32, 0.0, c, 32
        )
        with pytest.raises(RuntimeError, match="cublasSgemm_v2: status 7"):
            refused()

    def test_what_timing_costs_is_taken_off(self, executor):
        """Two kernels take twice as long as one, though events and a launch cost as much as one."""
        module = self.loaded(executor, CYCLES)
        once, twice = (
            self.ready(
                executor, module, [BoundLaunch("cycles", ONE, ONE, 0, (np.int32(4000),))] * n
            )
            for n in (1, 2)
        )
        assert 0.5e-3 < once.overhead_ms < 6e-3
        single, double = np.median(once(30)), np.median(twice(30))
        assert 1.8 < double / single < 2.4
        assert (double + once.overhead_ms) / (single + once.overhead_ms) < 1.8
        once.by_stream()
        assert once.overhead_ms == 0

    @pytest.mark.parametrize("obstacle", ["allocates", "waits", "fails"])
    def test_what_cannot_be_captured_is_launched_one_by_one(self, executor, views, obstacle):
        """And the stream is as usable as before: for the next capture too."""
        import cupy

        x, out = views

        def call():
            cupy.multiply(x, 2, out=out)
            if obstacle == "allocates":
                out[...] = x + x
            if obstacle == "waits":
                executor.stream.synchronize()
            if obstacle == "fails" and executor.stream.is_capturing():
                raise ArithmeticError("not now")

        call()
        timer = executor.timer_of(call, cold=True)
        assert timer.launched_by == "stream"
        assert all(sample_ms > 0 for sample_ms in timer(3) + timer.hot(3))
        assert (out.get() == 2 * np.arange(4096)).all()
        assert executor.timer_of(lambda: cupy.add(x, x, out=out), cold=True).launched_by == "graph"

    def test_a_library_is_launched_the_way_that_suits_it(self, executor):
        """A graph's copies of many MiB are slower than the stream's."""
        import cupy
        from cupy.cuda import runtime

        x = cupy.random.default_rng(0).standard_normal(1 << 28, dtype=cupy.float32)
        out = cupy.empty_like(x)

        def call():
            stream, kind = cupy.cuda.get_current_stream().ptr, runtime.memcpyDeviceToDevice
            runtime.memcpyAsync(out.data.ptr, x.data.ptr, x.nbytes, kind, stream)

        call()
        graph, timer = CudaTimer(executor, call, cold=True), executor.timer_of(call, cold=True)
        by_stream_ms = in_graph_ms = timed_ms = float("inf")
        for _ in range(5):  # in turn, since other processes may have the GPU for a while
            by_stream_ms = min(by_stream_ms, *executor.samples_ms(call, 3, executor.flush))
            in_graph_ms = min(in_graph_ms, *graph(3))
            timed_ms = min(timed_ms, *timer(3))
        assert timed_ms < 1.05 * min(by_stream_ms, in_graph_ms)
        if by_stream_ms < 0.9 * in_graph_ms:  # well beyond what is tolerated; so on an H100
            assert (timer.launched_by, timer.overhead_ms) == ("stream", 0)

    def test_thousands_of_timers_leave_no_memory_behind(self, executor, module):
        import cupy

        steps = [self.spin(executor, 10)]
        executor.run(module, steps)

        def free_after(count):
            for _ in range(count):
                executor.timer(module, steps, cold=True)(1)
            return cupy.cuda.runtime.memGetInfo()[0]

        # Other processes may take memory of the device meanwhile; a leak shows each time.
        assert min(free_after(50) - free_after(500) for _ in range(3)) < 4 << 20

    def test_hot_samples_find_in_the_l2_cache_what_cold_ones_do_not(self, executor):
        count = executor.device.l2_bytes // 4 // 16
        x, out = self.buffer(executor, np.ones(4 * count, np.float32)), executor.allocate(4)
        grid = (8 * executor.device.sm_count, 1, 1)
        step = BoundLaunch("read", grid, (256, 1, 1), 0, (x, out, np.int32(count)))
        timer = self.ready(executor, self.loaded(executor, READ), [step])
        assert min(timer(20)) > 1.1 * min(timer.hot(20))
        assert min(timer.clean(20)) > 1.1 * min(timer.hot(20))


def tuned(kernel, store, **options):
    """Every configuration of a kernel, measured on the GPU."""
    request = Request(
        kernel,
        choose_device("cuda:0"),
        kernel.problems["cuda"],
        goal=Search("exhaustive"),
        budget=Budget(),
        **options,
    )
    with Store.open(store) as opened:
        tuning = Run(request, opened)
        try:
            return tuning.run()
        finally:
            tuning.close()


@pytest.mark.gpu
def test_several_launches_with_fill_workspace_and_static_field(tmp_path):
    kernel = find_kernel("steps", KERNELS.parent / "spaces")
    for result in tuned(kernel, tmp_path / "s.sqlite").problems:
        timed = {Status.OK, Status.STOPPED_EARLY}
        assert {measurement.status for measurement in result.measured} <= timed, result.measured
        assert len(result.measured) == 6
        assert result.disqualified == ()


@pytest.mark.gpu
def test_a_constant_is_set_for_each_data_set(tmp_path):
    """Exact and random data have taps of their own, so one set of taps cannot be right for both."""
    constant = (
        ("import Kernel, Launch, Out", "import Constant, Kernel, Launch, Out"),
        ('"n": p.n', '"n": p.n, "taps": Constant(x[:3])'),
        ("def reference(x, factor):", "def reference(x, factor, taps):"),
        ("return factor * x", "return factor * x + taps[2]"),
    )
    kernel = load_file(write_space(tmp_path, *constant))
    source = (
        ("KERNEL(BLOCK", "namespace far { static __constant__ float taps[3]; }\nKERNEL(BLOCK"),
        ("factor * x[i]", "factor * x[i] + far::taps[2]"),
    )
    (tmp_path / "kernels" / "scale.cu").write_text(changed(SOURCE, *source))
    (result,) = tuned(kernel, tmp_path / "s.sqlite").problems
    assert {measurement.status for measurement in result.measured} <= {
        Status.OK,
        Status.STOPPED_EARLY,
    }
    assert result.result is not None


@pytest.mark.gpu
def test_parameters_without_effect_share_one_measurement(tmp_path):
    """NVRTC gives both the same code, so the second costs no launch."""
    unused = ("    BLOCK=(32, 64),", "    BLOCK=(64,),\n    UNUSED=(1, 2, 3),")
    kernel = load_file(write_space(tmp_path, unused))
    (result,) = tuned(kernel, tmp_path / "s.sqlite").problems
    assert len(result.measured) == 3
    assert len({measurement.samples_ms for measurement in result.measured}) == 1


@pytest.mark.gpu
@pytest.mark.alone
def test_what_the_l2_cache_holds_is_timed_clean_and_hot_and_the_rest_cold(tmp_path):
    device = choose_device("cuda:0")
    problems = (Problem(n=device.l2_bytes // 8), Problem(n=device.l2_bytes))
    request = Request(find_kernel("reduce"), device, problems, budget=Budget(evaluations=8))
    with Store.open(tmp_path / "s.sqlite") as store, closing(Run(request, store)) as tuning:
        small, large = record_of(tuning.run()).problems
        rows = {row.problem: row.timing for row in store.rows()}
    assert [rows[problem] for problem in problems] == ["mixed:graph", "cold:graph"]
    assert [small.race.timing, large.race.timing] == ["mixed:graph", "cold:graph"]
    for times in (small.winner, small.race.vendor):
        # Clean and hot are measured in other rounds. Loads that tell the cache to forget first find little in it
        # after a flush: a mixed time may be as long as a clean one.
        assert 0.95 * times.hot_ms < times.time_ms.value < 1.05 * times.clean_ms, times


# ---------------------------------------------------------------------- compiling during a slow reference


#: Waits for the binary of the default, at most a minute.
REFERENCE = """
    import os, pathlib, time
    made = pathlib.Path(os.environ["AUTOTUNE_CACHE_DIR"], "binaries")
    end_s = time.monotonic() + 60
    while not [*made.rglob("*.msgpack")] and time.monotonic() < end_s:
        time.sleep(0.01)
    return factor * x"""


@pytest.mark.gpu
def test_the_compilers_do_not_wait_for_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "cache"))
    kernel = load_file(write_space(tmp_path, ("\n    return factor * x", REFERENCE)))
    device = choose_device("cuda:0")
    request = Request(
        kernel, device, (Problem(n=1000),), goal=Search("random"), budget=Budget(evaluations=2)
    )
    made: list[int] = []

    def told(event: Event) -> None:
        if isinstance(event, SearchStarted):
            made.append(len([*(tmp_path / "cache" / "binaries").rglob("*.msgpack")]))

    with Store.open(tmp_path / "store.sqlite") as store, closing(Run(request, store, told)) as run:
        assert run.run().solved
    # The reference waits for the first; a fast compiler has made the second by then.
    (binaries,) = made
    assert binaries >= 1


@pytest.mark.gpu
def test_doctor_tunes_limits_into_the_users_records(capsys: pytest.CaptureFixture[str]) -> None:
    device = choose_device("cuda:0")
    assert run(["doctor", "--limits", "--json", "--device", "cuda:0"]) == 0
    shown, limits = json.loads(capsys.readouterr().out), known_limits(device)
    assert limits.keys() >= {"read", "copy", "ffma"}
    assert shown == {"name": device.name, "uuid": device.uuid, "limits": limits}


@pytest.mark.gpu
def test_after_an_upgrade_the_same_machine_code_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another compiler is named in the record; its code is what this one makes."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    write_space(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert run(["run", "scale", "--budget", "5evals", "--device", "cuda:0"]) == 0
    (file,) = (tmp_path / "data").rglob("scale.json")
    document = json.loads(file.read_text())
    for entry in document["problems"]:
        raced = [found for found in entry["race"]["contenders"] if "configuration" in found]
        assert all(len(found["code"]) == 64 for found in raced)
        entry["origin"]["toolchain"] = "nvrtc 1.0"
    file.write_text(json.dumps(document))
    capsys.readouterr()
    assert run(["retune", "scale", "--stale", "--json", "--device", "cuda:0"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == len(document["problems"])
    for row in rows:
        assert (row["action"], row["result"], row["after_ms"]) == ("re-compile", "confirmed", None)
        assert "the machine code that was measured" in row["message"]

"""long_rows on a GPU: every function beside torch in float64, rows that begin anywhere, and what lies around them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune import load
from autotune.devices.choose import choose_device
from autotune.kernel.catalog import find_kernel, load_file
from autotune.kernel.space import is_member
from autotune.values import Problem

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:no tuned record")]
torch = pytest.importorskip("torch")
F = torch.nn.functional
ROOT = Path(__file__).parents[2]
FUNCTIONS = (
    *("softmax", "rms_norm", "rms_norm_residual"),
    *("layer_norm", "cross_entropy", "cross_entropy_gradient"),
)
#: Largest error of a result of about 1, by type.
BOUNDS = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
EPS = 1e-5
KERNEL = find_kernel("long_rows")
#: CLUSTER, THREADS, PIECES, MIN_BLOCKS.
CONFIGURATIONS = [
    *((1, 128, 2, 4), (1, 512, 8, 1), (2, 256, 3, 2), (3, 128, 4, 4), (4, 512, 6, 2)),
    *((6, 256, 1, 1), (8, 256, 2, 4), (8, 1024, 4, 1), (4, 512, 16, 1)),
]


@pytest.fixture
def configured(tmp_path: Path) -> Callable[..., Any]:
    """A function that returns long_rows without its records, in one configuration or in its defaults."""
    for name in ("kernels", "spaces"):
        (tmp_path / name).mkdir()
    for file in (*ROOT.glob("kernels/*.h"), ROOT / "kernels" / "long_rows.cu"):
        shutil.copy(file, tmp_path / "kernels")
    for name in ("_rows", "long_rows"):
        shutil.copy(ROOT / "spaces" / f"{name}.py", tmp_path / "spaces")
    kernel = load_file(tmp_path / "spaces" / "long_rows.py")

    def made(values: tuple[int, ...] | None = None) -> Any:
        if values:
            names = ("CLUSTER", "THREADS", "PIECES", "MIN_BLOCKS")
            kernel.sources[""].default_values = dict(zip(names, values, strict=True))
            if not is_member(kernel, kernel.default(), choose_device("cuda:0")):
                pytest.skip(f"{kernel.default()} is not for this GPU")
        return load(kernel)

    return made


def drawn(*shape: int, dtype: str, seed: int = 1) -> Any:
    torch.manual_seed(seed)
    return torch.randn(shape, device="cuda").to(getattr(torch, dtype))


def arguments(function: str, x: Any) -> dict[str, Any]:
    """Further arguments of a function of rows."""
    rows, columns = x.shape
    dtype = str(x.dtype).removeprefix("torch.")
    target = (torch.arange(rows, device="cuda", dtype=torch.int32) * 977 + columns - 1) % columns
    every = {
        "weight": drawn(columns, dtype=dtype, seed=2),
        "bias": drawn(columns, dtype=dtype, seed=3),
        "residual": drawn(rows, columns, dtype=dtype, seed=4),
        "target": target.to(torch.int32),
    }
    names = {
        "rms_norm": ["weight"],
        "rms_norm_residual": ["weight", "residual"],
        "layer_norm": ["weight", "bias"],
        "cross_entropy": ["target"],
        "cross_entropy_gradient": ["target"],
    }.get(function, [])
    return {name: every[name] for name in names}


def expected(function: str, x: Any, more: dict[str, Any]) -> tuple[Any, ...]:
    """Return what torch computes in float64."""
    wide = x.double()
    given = {name: value if name == "target" else value.double() for name, value in more.items()}
    last = x.shape[-1:]
    if function == "softmax":
        return (wide.softmax(-1),)
    if function == "layer_norm":
        return (F.layer_norm(wide, last, given["weight"], given["bias"], EPS),)
    if function.startswith("rms_norm"):
        total = wide + given.get("residual", 0)
        y = F.rms_norm(total, last, given["weight"], EPS)
        return (y, total) if "residual" in given else (y,)
    leaf = wide.requires_grad_()
    loss = F.cross_entropy(leaf, given["target"].long(), reduction="none")
    loss.sum().backward()
    return (loss.detach(), leaf.grad)[: 1 + function.endswith("gradient")]


def compare(long_rows: Any, function: str, x: Any, dtype: str, **named: Any) -> None:
    """Compare all results with torch's."""
    more = arguments(function, x)
    wanted = expected(function, x, more)
    more = {name: value.clone() for name, value in more.items()}
    found = long_rows(x, function, **more, eps=EPS, **named)
    found = found if isinstance(found, tuple) else (found,)
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        bound = BOUNDS[dtype]
        torch.testing.assert_close(ours.double(), theirs, rtol=bound, atol=bound)
        if function == "softmax":  # values are small: of the row's sum
            torch.testing.assert_close(
                ours.double().sum(-1), torch.ones_like(theirs[..., 0]), rtol=bound, atol=bound
            )
            assert float((ours.double() - theirs).abs().max() / theirs.max()) < bound


@pytest.mark.parametrize("seed", range(len(KERNEL.seeds)))
def test_every_seed_is_right(configured: Any, seed: int) -> None:
    """For all functions, at as many columns as fit but one, and at an odd length."""
    values = tuple(int(value) for value in KERNEL.completed(KERNEL.seeds[seed]).values())
    cluster, threads, pieces, _ = values
    long_rows = configured(values)
    for dtype, each in (("float32", 4), ("bfloat16", 8)):
        room = cluster * threads * pieces * each
        for columns in (room - 1, max(515, room * 5 // 8 + 1)):
            x = drawn(3, columns, dtype=dtype)
            for function in FUNCTIONS:
                problem = Problem(rows=3, columns=columns, dtype=dtype, function=function)
                if KERNEL.allows(KERNEL.completed(KERNEL.seeds[seed]), problem):
                    compare(long_rows, function, x, dtype)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("values", CONFIGURATIONS, ids=lambda each: "-".join(map(str, each)))
def test_rows_that_fit_are_right(
    configured: Any, values: tuple[int, ...], dtype: str, function: str
) -> None:
    """As many columns as fit, aligned and not; a piece less and more; a quarter; and every misalignment."""
    cluster, threads, pieces, _ = values
    each = 4 if dtype == "float32" else 8
    room = cluster * threads * pieces * each
    lengths = {room, room + each - 1, room - each, room - each + 1, room - 1}
    lengths |= {room // 2 + number for number in range(1, each)} | {max(512, room // 4) + 3}
    long_rows = configured(values)
    tried = 0
    for columns in sorted(lengths):
        problem = Problem(rows=1, columns=columns, dtype=dtype, function=function)
        if long_rows.kernel.allows(long_rows.kernel.default(), problem):
            compare(long_rows, function, drawn(each + 1, columns, dtype=dtype), dtype)
            tried += 1
    if not tried:
        pytest.skip("not enough registers for this function")


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("shape", [(1, 512), (3, 1003), (2000, 4097), (300, 20011), (2, 200007)])
def test_defaults_answer_any_length(
    configured: Any, shape: tuple[int, int], dtype: str, function: str
) -> None:
    if choose_device("cuda:0").compute_capability < 90 and shape[1] > 100000:
        pytest.skip("only clusters have room for it")
    if shape[1] > 200000 and dtype == "float32":
        pytest.skip("longer than all seeds have room for")
    compare(configured(), function, drawn(*shape, dtype=dtype), dtype)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("values", [(1, 512, 8, 1), (4, 256, 4, 1)])
def test_infinities_and_nan_are_as_in_torch(
    configured: Any, values: tuple[int, ...], dtype: str
) -> None:
    """A row of -infinity alone, with one number, with NaN, with +infinity; large numbers apart."""
    columns = 10007
    x = drawn(7, columns, dtype=dtype)
    x[0] = -torch.inf
    x[1] = -torch.inf
    x[1, 5000] = 3.0
    x[2, columns - 1] = torch.nan
    x[3, 0] = torch.inf
    x[4, ::2] = -torch.inf
    x[5, : columns // 2] -= 1000
    x[6, 1] = 1000.0
    long_rows = configured(values)
    theirs = x.double().softmax(-1)
    ours = long_rows(x, "softmax").double()
    torch.testing.assert_close(ours, theirs, rtol=BOUNDS[dtype], atol=BOUNDS[dtype], equal_nan=True)
    target = torch.tensor([0, 5000, 5, 7, 1, columns - 1, 1], device="cuda", dtype=torch.int32)
    loss, gradient = long_rows(x, "cross_entropy_gradient", target=target)
    wanted = F.cross_entropy(x.double(), target.long(), reduction="none")
    torch.testing.assert_close(loss.double(), wanted, rtol=1e-5, atol=1e-4, equal_nan=True)
    theirs[torch.arange(7, device="cuda"), target.long()] -= 1
    torch.testing.assert_close(
        gradient.double(), theirs, rtol=BOUNDS[dtype], atol=BOUNDS[dtype], equal_nan=True
    )
    weight = torch.ones(columns, device="cuda", dtype=x.dtype)
    for function, more in (("rms_norm", {}), ("layer_norm", {"bias": weight})):
        y = long_rows(x, function, weight=weight, **more)
        assert y[:5].isnan().any(-1).tolist() == [True, True, True, True, True]
        assert not y[5:].isnan().any()


@pytest.mark.parametrize("values", [(1, 512, 8, 1), (4, 256, 4, 1), (8, 128, 4, 4)])
@pytest.mark.parametrize("offset", [1e2, 1e4, -3e5])
def test_a_large_mean_costs_no_more_digits_than_in_torch(
    configured: Any, values: tuple[int, ...], offset: float
) -> None:
    x = drawn(5, 13001, dtype="float32") + offset
    more = arguments("layer_norm", x)
    (wanted,) = expected("layer_norm", x, more)
    ours = configured(values)(x, "layer_norm", **more, eps=EPS)
    theirs = F.layer_norm(x, x.shape[-1:], more["weight"], more["bias"], EPS)
    errors = [float((each.double() - wanted).abs().max()) for each in (ours, theirs)]
    assert errors[0] <= 3 * errors[1] + 1e-5, errors


@pytest.mark.parametrize("function", ["softmax", "rms_norm_residual", "layer_norm"])
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("columns", [4096, 4099, 4101, 4102])
@pytest.mark.parametrize("values", [(1, 512, 4, 1), (4, 128, 4, 4)])
def test_neighbours_are_neither_read_nor_written(
    configured: Any, values: tuple[int, ...], columns: int, dtype: str, function: str
) -> None:
    rows, guard = 9, 64
    kind = getattr(torch, dtype)

    def framed(content: Any) -> tuple[Any, Any]:
        """An array between NaN, and all of its memory."""
        memory = torch.full((content.numel() + 2 * guard,), torch.nan, device="cuda", dtype=kind)
        view = memory[guard:-guard].view(content.shape)
        view.copy_(content)
        return view, memory

    x, around_x = framed(drawn(rows, columns, dtype=dtype))
    out, around_out = framed(torch.zeros(rows, columns))
    more = arguments(function, x)
    wanted = expected(function, x, more)
    frames = {name: framed(value) for name, value in more.items()}
    views = {name: view for name, (view, _) in frames.items()}
    configured(values)(x, function, **views, out=out, eps=EPS)
    found = (out, views["residual"]) if "residual" in views else (out,)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=BOUNDS[dtype], atol=BOUNDS[dtype])
    for memory in (around_x, around_out, *(whole for _, whole in frames.values())):
        assert memory[:guard].isnan().all() and memory[-guard:].isnan().all()


@pytest.mark.parametrize("dtype", BOUNDS)
def test_arrays_that_begin_anywhere(configured: Any, dtype: str) -> None:
    """Each array a different number of elements behind an aligned address."""
    rows, columns = 4, 5003

    def moved(content: Any, by: int) -> Any:
        memory = torch.empty(content.numel() + 8, device="cuda", dtype=content.dtype)
        view = memory[by : by + content.numel()].view(content.shape)
        view.copy_(content)
        return view

    x = moved(drawn(rows, columns, dtype=dtype), 1)
    more = arguments("layer_norm", x)
    (wanted,) = expected("layer_norm", x, more)
    out = moved(torch.zeros_like(x), 3)
    given = {"weight": moved(more["weight"], 2), "bias": moved(more["bias"], 1)}
    result = configured()(x, "layer_norm", **given, out=out, eps=EPS)
    assert result is out
    torch.testing.assert_close(out.double(), wanted, rtol=BOUNDS[dtype], atol=BOUNDS[dtype])


@pytest.mark.parametrize("values", [(1, 512, 4, 1), (4, 128, 4, 4)])
@pytest.mark.parametrize("columns", [4096, 5003])
def test_a_result_may_be_written_over_x(
    configured: Any, values: tuple[int, ...], columns: int
) -> None:
    x = drawn(700, columns, dtype="float32")
    wanted = x.double().softmax(-1)
    assert configured(values)(x, "softmax", out=x) is x
    torch.testing.assert_close(x.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("values", [(1, 512, 4, 1), (8, 128, 2, 4)])
def test_every_run_gives_the_same_bits(configured: Any, values: tuple[int, ...]) -> None:
    x = drawn(500, 6001, dtype="float32")
    more, long_rows = arguments("layer_norm", x), configured(values)
    first, *others = (long_rows(x, "layer_norm", **more) for _ in range(20))
    assert all(torch.equal(first, other) for other in others)

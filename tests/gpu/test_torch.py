"""Operators of torch: results, gradients, compiled and exported.

Every test runs for tensors of a GPU and of the host, whose kernels run on the OpenCL device, so that
a machine with torch and no GPU can run half of them: ``pytest -m gpu tests/gpu/test_torch.py``.
"""

import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from autotune import load
from autotune.errors import UsageError

torch = pytest.importorskip("torch")
torch_ops = pytest.importorskip("autotune.torch_ops")
linalg = torch_ops.linalg

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:no tuned record")]
PAGE = Path(__file__).parents[2] / "docs" / "calling-torch.md"


@pytest.fixture(params=["cuda", "cpu"])
def device(request: pytest.FixtureRequest) -> str:
    """A type of device that tensors are on and kernels can run for."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    if request.param == "cpu":
        request.getfixturevalue("opencl_device")
    torch.manual_seed(1)
    torch.compiler.reset()  # it counts how often a function was compiled
    return str(request.param)


def normal(device: str, *shape: int, gradient: bool = False) -> Any:
    return torch.randn(shape, device=device, requires_grad=gradient)


def assert_close(found: Any, expected: Any) -> None:
    """Of sums of a few hundred normal numbers, against float64."""
    torch.testing.assert_close(found.double(), expected.double(), rtol=1e-5, atol=1e-4)


# ---------------------------------------------------------------------- operators

SHAPES = [
    ((33, 65), (65, 17)),
    ((1, 65), (65, 17)),
    ((33, 65), (65, 1)),
    ((3, 33, 65), (3, 65, 17)),
    ((3, 33, 65), (65, 17)),
    ((33, 65), (3, 65, 17)),
    ((1, 33, 65), (3, 65, 17)),
]


@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_matmul_and_its_gradients(device: str, a: Any, b: Any) -> None:
    """A matrix that serves a whole batch gets the sum of the gradients."""
    factors = [normal(device, *shape, gradient=True) for shape in (a, b)]
    doubles = [factor.detach().double().requires_grad_() for factor in factors]
    found, expected = torch_ops.matmul(*factors, alpha=2.0), 2 * (doubles[0] @ doubles[1])
    assert found.dtype is torch.float32 and found.device.type == device
    assert_close(found, expected)
    grad = torch.randn_like(found)
    for ours, theirs in zip(
        torch.autograd.grad(found, factors, grad),
        torch.autograd.grad(expected, doubles, grad.double()),
        strict=True,
    ):
        assert_close(ours, theirs)


def test_tf32x3_is_another_kernel(device: str) -> None:
    if device == "cpu":
        pytest.skip("sgemm_tf32x3 is CUDA only")
    a, b = normal(device, 130, 70, gradient=True), normal(device, 70, 50, gradient=True)
    assert_close(torch_ops.matmul(a, b, precision="tf32x3"), a.double() @ b.double())
    torch_ops.matmul(a, b, precision="tf32x3").sum().backward()
    assert_close(a.grad, torch.ones(130, 50, device=device).double() @ b.double().T)


def test_gradient_of_a_gradient(device: str) -> None:
    a, b = normal(device, 9, 5, gradient=True), normal(device, 5, 7, gradient=True)

    def second(multiply: Callable[..., Any]) -> Any:
        (first,) = torch.autograd.grad(multiply(a, b).square().sum(), a, create_graph=True)
        return torch.autograd.grad(first.square().sum(), b)[0]

    torch.testing.assert_close(second(torch_ops.matmul), second(torch.matmul), rtol=1e-4, atol=1e-3)


def test_a_factor_is_kept_only_where_a_gradient_needs_it(device: str) -> None:
    weights, x = normal(device, 5, 7), normal(device, 9, 5, gradient=True)
    result = torch_ops.matmul(x, weights)
    saved = result.grad_fn.saved_tensors
    assert saved[0] is None and saved[1].data_ptr() == weights.data_ptr()


def test_out_is_written_and_read(device: str) -> None:
    """Also where it is a part of something larger, of which the rest is left alone."""
    a, b, wide = normal(device, 33, 65), normal(device, 65, 17), normal(device, 33, 20)
    before = wide.clone()
    out = wide[:, 1:18]
    assert torch_ops.matmul(a, b, out, alpha=0.5, beta=2.0) is out
    assert_close(out, 0.5 * (a.double() @ b.double()) + 2 * before[:, 1:18].double())
    assert torch.equal(wide[:, 0], before[:, 0]) and torch.equal(wide[:, 18:], before[:, 18:])
    y = normal(device, 33)
    expected = a.double() @ b[:, 0].double() - y.double()
    assert_close(torch_ops.matvec(a, b[:, 0].contiguous(), y, beta=-1.0), expected)


def test_what_a_gradient_needs_cannot_be_overwritten_unnoticed(device: str) -> None:
    a, b, c = normal(device, 8, 8, gradient=True), normal(device, 8, 8), normal(device, 8, 8)
    result = (a * c).sum()
    torch_ops.matmul(b, b, c)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


def test_matvec_transpose_total_and_their_gradients(device: str) -> None:
    a, x = normal(device, 33, 65, gradient=True), normal(device, 65, gradient=True)
    batch = normal(device, 3, 5, 7, gradient=True)

    def value(matvec: Any, transpose: Any, total: Any) -> Any:
        y = matvec(a, x)
        weights = torch.arange(105, device=device).reshape(3, 7, 5) / 105
        return total(transpose(batch) * weights) + total(y * y)

    ours = value(torch_ops.matvec, torch_ops.transpose, torch_ops.total)
    theirs = value(torch.mv, lambda t: t.mT, torch.sum)
    assert ours.shape == ()
    assert_close(ours, theirs)
    inputs = (a, x, batch)
    pairs = zip(torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, inputs), strict=True)
    for found, expected in pairs:
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)
    assert torch_ops.transpose(batch).is_contiguous()


def operators() -> set[str]:
    """Names of all operators of the namespace."""
    known = torch._C._dispatch_get_all_op_names()
    return {name.removeprefix("autotune::") for name in known if name.startswith("autotune::")}


#: Their kernels are Triton's: tests/gpu/test_rows.py.
ROWS = ("softmax", "rms_norm", "added_rms_norm", "layer_norm", "cross_entropy")


@pytest.mark.parametrize("name", sorted(each for each in operators() if not each.startswith(ROWS)))
def test_opcheck(device: str, name: str) -> None:
    if "tf32x3" in name and device == "cpu":
        pytest.skip("sgemm_tf32x3 is CUDA only")
    wants_gradient = not name.endswith("_out")
    a, b, batch, x = (
        normal(device, *shape, gradient=wants_gradient)
        for shape in ((5, 7), (7, 3), (2, 5, 7), (7,))
    )
    matrices: list[tuple[Any, ...]] = [(a, b), (batch, b, 2.0), (b.mT, a.mT)]
    into = [(a, b, normal(device, 5, 3)), (batch, b, normal(device, 2, 5, 3), 2.0, 0.5)]
    samples: dict[str, list[tuple[Any, ...]]] = {
        "sgemm": matrices,
        "sgemm_out": into,
        "sgemm_tf32x3": matrices,
        "sgemm_tf32x3_out": into,
        "gemv": [(a, x), (a, x, 2.0)],
        "gemv_out": [(a, x, normal(device, 5), 2.0, 0.5)],
        "transpose": [(a,), (batch,)],
        "reduce": [(x,), (batch,)],
    }
    for arguments in samples[name]:
        torch.library.opcheck(getattr(torch.ops.autotune, name).default, arguments)


def test_what_does_not_fit_is_one_line(device: str) -> None:
    a, b = normal(device, 5, 7), normal(device, 7, 3)
    with pytest.raises(UsageError, match="float32"):
        torch_ops.matmul(a.double(), b.double())
    with pytest.raises(UsageError):
        torch_ops.matmul(a, a)
    with pytest.raises(UsageError, match="pass out"):
        torch_ops.matmul(a, b, beta=1.0)
    with pytest.raises(UsageError, match=r"unknown precision 'tf32'.*float32, tf32x3"):
        torch_ops.matmul(a, b, precision="tf32")
    with pytest.raises(UsageError, match="has no gradient"):
        torch_ops.matmul(a.requires_grad_(), b, normal(device, 5, 3))
    with pytest.raises(RuntimeError, match=r"\[5, 7\] and \[5, 7\] cannot be multiplied"):
        torch.compile(torch_ops.matmul, fullgraph=True, backend="eager")(a, a)


# ---------------------------------------------------------------------- compiled, exported, captured


class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Two layers of our operators, and a loss."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(normal(device, 24, 40))
        self.second = torch.nn.Parameter(normal(device, 10, 24))

    def forward(self, x: Any) -> Any:
        hidden = torch_ops.matmul(x, self.first.T).relu()
        result = torch_ops.transpose(torch_ops.matmul(hidden, self.second.T, alpha=0.1))
        return torch_ops.total(result) + torch_ops.matvec(result, x[:, 0].contiguous()).sum()


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_without_a_break(device: str, dynamic: bool) -> None:
    model = Model(device)
    compiled = torch.compile(model, fullgraph=True, dynamic=dynamic)
    for rows in (16, 23):
        x = normal(device, rows, 40)
        expected = torch.autograd.grad(model(x), model.parameters())
        found = torch.autograd.grad(compiled(x), model.parameters())
        for ours, theirs in zip(found, expected, strict=True):
            assert_close(ours, theirs)


def writes(multiply: Any, a: Any, b: Any, out: Any) -> Any:
    multiply(a, b, out=out, beta=1.0)
    return out + 1


@pytest.mark.parametrize("dynamic", [False, None, True])
@pytest.mark.parametrize(
    ("program", "shapes"),
    [
        (lambda multiply, a, b: multiply(a, b).relu(), [(33, 65), (65, 17)]),
        (lambda multiply, a, b: multiply(b.T, b=a.T, alpha=0.5), [(33, 65), (65, 17)]),
        (lambda multiply, a, b: multiply(a[:, 1:9], b[:8, :1]), [(33, 65), (65, 17)]),
        (lambda multiply, a, b: multiply(a[:0], b), [(33, 65), (65, 17)]),
        (writes, [(33, 65), (65, 17), (33, 17)]),
    ],
)
def test_a_loaded_kernel_is_compiled_without_a_break(
    device: str, dynamic: bool | None, program: Any, shapes: Any
) -> None:
    """Also with a passed result, for another kernel (gemv), and where nothing is launched."""
    multiply = load("sgemm")
    compiled = torch.compile(partial(program, multiply), fullgraph=True, dynamic=dynamic)
    for rows in (33, 40, 41):
        tensors = [normal(device, *(rows if n == 33 else n for n in shape)) for shape in shapes]
        copies = [tensor.clone() for tensor in tensors]
        assert_close(compiled(*tensors), program(multiply, *copies).double())
        for tensor, copy in zip(tensors, copies, strict=True):
            assert_close(tensor, copy.double())


def test_a_call_is_compiled_while_other_threads_import(device: str) -> None:
    multiply = load("sgemm")
    compiled = torch.compile(lambda a, b: multiply(a, b), fullgraph=True)
    names, is_done = (f"imported_meanwhile_{number}" for number in count()), Event()

    def add_modules() -> None:
        for name in names:
            sys.modules[name] = sys
            if is_done.wait(1e-4):
                break

    with ThreadPoolExecutor(1) as threads:
        adding = threads.submit(add_modules)
        try:
            a, b = normal(device, 33, 65), normal(device, 65, 17)
            assert_close(compiled(a, b), a.double() @ b.double())
        finally:
            is_done.set()
            adding.result()
            for name in [name for name in sys.modules if name.startswith("imported_meanwhile_")]:
                del sys.modules[name]


def test_numbers_of_a_loaded_kernel_may_change_in_a_compiled_program(device: str) -> None:
    multiply, a, b = load("sgemm"), normal(device, 9, 5), normal(device, 5, 7)
    compiled = torch.compile(lambda alpha: multiply(a, b, alpha=alpha), fullgraph=True)
    for alpha in (2.0, 3.5, 4.5):
        assert_close(compiled(alpha), alpha * (a.double() @ b.double()))


def test_a_loaded_kernel_is_exported(device: str) -> None:
    class Product(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, a: Any, b: Any) -> Any:
            return multiply(a, b) + 1

    multiply, a, b = load("sgemm"), normal(device, 9, 5), normal(device, 5, 7)
    exported = torch.export.export(Product(), (a, b))
    assert "autotune.load.default" in {str(node.target) for node in exported.graph.nodes}
    assert_close(exported.module()(a, b), a.double() @ b.double() + 1)


def test_a_call_that_cannot_be_is_refused_while_it_is_compiled(device: str) -> None:
    multiply, a = load("sgemm"), normal(device, 9, 5)
    with pytest.raises(Exception, match="a must have as many columns as b has rows"):
        torch.compile(multiply, fullgraph=True)(a, a)


def test_exported(device: str) -> None:
    model = Model(device)
    rows = torch.export.Dim("rows", min=2, max=64)
    x = normal(device, 16, 40)
    exported = torch.export.export(model, (x,), dynamic_shapes=({0: rows},))
    called = {str(node.target) for node in exported.graph.nodes}
    assert {
        f"autotune.{name}.default" for name in ("sgemm", "gemv", "transpose", "reduce")
    } <= called
    x = normal(device, 31, 40)
    assert_close(exported.module()(x), model(x))


def test_captured(device: str) -> None:
    if device == "cpu":
        pytest.skip("graphs are CUDA's")
    model, x = Model(device).requires_grad_(False), normal(device, 16, 40)
    expected = model(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = model(x)
    x.mul_(2.0)
    graph.replay()
    assert_close(found, model(x))
    x.div_(2.0)
    compiled = torch.compile(model, fullgraph=True, mode="reduce-overhead")
    for _ in range(4):
        assert_close(compiled(x), expected)


# ---------------------------------------------------------------------- behind torch's products


def test_tensors_that_look_alike_are_told_apart(device: str) -> None:
    """The imaginary part of a conjugate lies as that of the number does, with the other sign."""
    z = torch.view_as_complex(normal(device, 4, 5, 2))
    b = normal(device, 5, 6)
    assert_close(linalg.matmul(z.imag, b), z.imag @ b)
    with pytest.raises(UsageError, match="sgemm: a is a sparse, conjugated or negated tensor"):
        linalg.matmul(z.conj().imag, b)
    with pytest.raises(UsageError, match="sgemm: a is a sparse, conjugated or"):
        linalg.matmul(b.T.to_sparse(), b)
    linalg.matmul(b.T.clone(), b)
    with pytest.raises(UsageError, match="sgemm: a is a tensor on meta"):
        linalg.matmul(b.T.clone().to("meta"), b.to("meta"))
    assert linalg.matmul(b[:, :0].T, b).device == b.device


# ---------------------------------------------------------------------- the page

BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_blocks_of_the_page_run(device: str, block: str, tmp_path: Path) -> None:
    program = f"import torch\ntorch.set_default_device({device!r})\n{block}"
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr

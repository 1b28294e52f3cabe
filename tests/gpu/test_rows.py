"""softmax, rms_norm, layer_norm and cross_entropy on a GPU: beside torch in float64, with gradients."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from autotune import load
from autotune.kernel.catalog import load_file

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:no tuned record")]
pytest.importorskip("triton")
torch = pytest.importorskip("torch")
F = torch.nn.functional
ROOT = Path(__file__).parents[2]
#: Largest error of a result of about 1, by type.
BOUNDS = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}


def drawn(*shape: int, dtype: str) -> Any:
    torch.manual_seed(1)
    return torch.randn(shape, device="cuda").to(getattr(torch, dtype))


def compare(ours: Any, theirs: Any, dtype: str) -> None:
    torch.testing.assert_close(ours.double(), theirs, rtol=BOUNDS[dtype], atol=BOUNDS[dtype])


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (33, 1000), (4, 5, 4096), (2, 131072)])
def test_rows_are_those_of_torch(shape: tuple[int, ...], dtype: str) -> None:
    x, weight = drawn(*shape, dtype=dtype), drawn(shape[-1], dtype=dtype)
    wide, last = x.double(), shape[-1:]
    compare(load("softmax")(x), wide.softmax(-1), dtype)
    compare(
        load("layer_norm")(x, weight, weight),
        F.layer_norm(wide, last, weight.double(), weight.double()),
        dtype,
    )
    compare(load("rms_norm")(x, weight), F.rms_norm(wide, last, weight.double(), 1e-6), dtype)
    residual = x.clone()
    y, total = load("rms_norm")(x, weight, residual=residual)
    assert total is residual
    compare(total, 2 * wide, dtype)
    compare(y, F.rms_norm(2 * wide, last, weight.double(), 1e-6), dtype)
    logits = x.reshape(-1, shape[-1])
    target = torch.arange(len(logits), device="cuda", dtype=torch.int32) % shape[-1]
    expected = F.cross_entropy(logits.double(), target.long(), reduction="none")
    compare(load("cross_entropy")(logits, target), expected, dtype)


PLANS = [
    {"PLAN": "split", "SPLIT": 4, "WARPS": 4},
    {"PLAN": "split", "SPLIT": 8, "WARPS": 16, "num_stages": 2},
    {"PLAN": "loop", "WARPS": 16, "num_stages": 3},
]


@pytest.fixture(params=PLANS, ids=lambda plan: "-".join(map(str, plan.values())))
def planned(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A function that loads a kernel, without its records, with another plan than whole rows."""
    for name in ("kernels", "spaces"):
        (tmp_path / name).mkdir()
    shutil.copy(ROOT / "kernels" / "rows.py", tmp_path / "kernels")
    names = ("_rows", "softmax", "rms_norm", "layer_norm", "cross_entropy")
    for name in names:
        shutil.copy(ROOT / "spaces" / f"{name}.py", tmp_path / "spaces")

    def loaded(name: str) -> Any:
        kernel = load_file(tmp_path / "spaces" / f"{name}.py")
        kernel.sources[""].default_values = {"PER": 8, **request.param}
        return load(kernel)

    return loaded


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("shape", [(3, 4160), (2, 16399), (5, 50257), (37, 77912)])
def test_rows_of_other_plans_are_those_of_torch(
    planned: Any, shape: tuple[int, int], dtype: str
) -> None:
    """Twice, since the second call finds what the first one left between its functions."""
    x, weight = drawn(*shape, dtype=dtype), drawn(shape[1], dtype=dtype)
    target = torch.arange(shape[0], device="cuda", dtype=torch.int32)
    target[-1] = shape[1] - 1
    functions = {
        name: planned(name) for name in ("softmax", "rms_norm", "layer_norm", "cross_entropy")
    }
    for given in (x, x.flip(0) + 3):
        wide, factors = given.double(), weight.double()
        compare(functions["softmax"](given), wide.softmax(-1), dtype)
        compare(
            functions["layer_norm"](given, weight, weight),
            F.layer_norm(wide, shape[1:], factors, factors),
            dtype,
        )
        compare(
            functions["rms_norm"](given, weight), F.rms_norm(wide, shape[1:], factors, 1e-6), dtype
        )
        residual = x.clone()
        y, total = functions["rms_norm"](given, weight, residual=residual)
        both = wide + x.double()
        compare(total, both, dtype)
        compare(y, F.rms_norm(both, shape[1:], factors, 1e-6), dtype)
        leaf = wide.clone().requires_grad_()
        wanted = F.cross_entropy(leaf, target.long(), reduction="none")
        wanted.sum().backward()
        compare(functions["cross_entropy"](given, target), wanted.detach(), dtype)
        loss, gradient = functions["cross_entropy"](given, target, with_gradient=True)
        compare(loss, wanted.detach(), dtype)
        compare(gradient, leaf.grad, dtype)


@pytest.mark.parametrize("dtype", BOUNDS)
def test_gradients_are_those_of_torch(dtype: str) -> None:
    from autotune import torch_ops

    def gradients(function: Any, *tensors: Any) -> list[Any]:
        leaves = [each.detach().clone().requires_grad_() for each in tensors]
        found = function(*leaves)
        for each in found if isinstance(found, tuple) else (found,):
            each.mul(
                torch.arange(1, 1 + each.shape[-1], device="cuda") / each.shape[-1]
            ).sum().backward(retain_graph=True)
        return [leaf.grad for leaf in leaves]

    x, weight = drawn(33, 129, dtype=dtype), drawn(129, dtype=dtype)
    target = torch.arange(33, device="cuda")
    for ours, theirs, tensors in (
        (torch_ops.softmax, lambda x: x.softmax(-1), (x,)),
        (torch_ops.rms_norm, lambda x, w: F.rms_norm(x, (129,), w, 1e-6), (x, weight)),
        (
            lambda x, w, r: torch_ops.rms_norm(x, w, r),
            lambda x, w, r: (F.rms_norm(x + r, (129,), w, 1e-6), x + r),
            (x, weight, x.flip(0)),
        ),
        (torch_ops.layer_norm, lambda x, w, b: F.layer_norm(x, (129,), w, b), (x, weight, weight)),
        (
            lambda x: torch_ops.cross_entropy(x, target),
            lambda x: F.cross_entropy(x, target, reduction="none"),
            (x,),
        ),
    ):
        wide = gradients(theirs, *(each.double() for each in tensors))
        for one, other in zip(gradients(ours, *tensors), wide, strict=True):
            torch.testing.assert_close(
                one.double(), other, rtol=8 * BOUNDS[dtype], atol=8 * BOUNDS[dtype]
            )


@pytest.mark.parametrize(
    "name",
    [
        *("softmax", "rms_norm", "added_rms_norm", "layer_norm"),
        *("cross_entropy", "cross_entropy_and_gradient"),
    ],
)
def test_operators_pass_the_checks_of_torch(name: str) -> None:
    from autotune import torch_ops  # noqa: F401

    x, weight = (
        each.requires_grad_()
        for each in (drawn(5, 64, dtype="float32"), drawn(64, dtype="float32"))
    )
    target = torch.arange(5, device="cuda", dtype=torch.int32)
    given = {
        "softmax": (x,),
        "rms_norm": (x, weight, 1e-6),
        "added_rms_norm": (x, weight, x.detach().clone().requires_grad_(), 1e-6),
        "layer_norm": (x, weight, weight.detach().clone().requires_grad_(), 1e-5),
        "cross_entropy": (x.detach(), target),
        "cross_entropy_and_gradient": (x, target),
    }
    torch.library.opcheck(getattr(torch.ops.autotune, name).default, given[name])

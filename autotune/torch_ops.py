"""Operators of torch for the functions of `linalg`: eager, compiled, exported, with gradients.

Importing it registers ``torch.ops.autotune``. Operators are defined by ``torch.library.Library``,
since the checks of its wrapper ``torch.library.custom_op`` double the time of a call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from autotune import linalg
from autotune.errors import MissingDependencyError, UsageError, unknown

try:
    import torch
except ImportError as error:
    raise MissingDependencyError("torch", "torch", "autotune.torch_ops") from error

#: Devices of the tensors that a kernel can be called with.
_BACKENDS = ("CPU", "CUDA")
_LIBRARY = torch.library.Library("autotune", "FRAGMENT")


# ---------------------------------------------------------------------- operators


def _define(schema: str, compute: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Define an operator of ``torch.ops.autotune``; ``fake`` gives results of the right shape."""
    name = schema.partition("(")[0]
    _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    for backend in _BACKENDS:
        _LIBRARY.impl(name, compute, backend)
    torch.library.register_fake(f"autotune::{name}", fake, lib=_LIBRARY)
    return getattr(torch.ops.autotune, name).default


def _define_product(
    name: str,
    function: Callable[..., Any],
    shape: Callable[[Any, Any], tuple[int, ...]],
    gradients: Callable[[Any, Any], Any],
) -> tuple[Any, Any]:
    """Define the operator of a product, and the operator that writes into a tensor."""

    def compute(a: Any, b: Any, alpha: float = 1.0) -> Any:
        return function(a, b, alpha=alpha)

    def compute_into(a: Any, b: Any, out: Any, alpha: float = 1.0, beta: float = 0.0) -> None:
        function(a, b, out, alpha=alpha, beta=beta)
        if not out.is_inference():
            torch.autograd.graph.increment_version(out)  # autograd must notice the write

    def fake(a: Any, b: Any, alpha: float = 1.0) -> Any:
        return a.new_empty(shape(a, b))

    def fake_into(a: Any, b: Any, out: Any, alpha: float = 1.0, beta: float = 0.0) -> None:
        shape(a, b)

    operator = _define(f"{name}(Tensor a, Tensor b, float alpha=1.0) -> Tensor", compute, fake)
    torch.library.register_autograd(
        f"autotune::{name}", gradients, setup_context=_save_factors, lib=_LIBRARY
    )
    into = _define(
        f"{name}_out(Tensor a, Tensor b, Tensor(a!) out, float alpha=1.0, float beta=0.0) -> ()",
        compute_into,
        fake_into,
    )
    return operator, into


def _save_factors(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    a, b, ctx.alpha = inputs
    needs_a, needs_b = ctx.needs_input_grad[:2]
    ctx.shapes = a.shape, b.shape
    ctx.save_for_backward(a if needs_b else None, b if needs_a else None)


def _matrix_product_shape(a: Any, b: Any) -> tuple[int, ...]:
    torch._check(
        a.ndim in (2, 3) and b.ndim in (2, 3) and a.shape[-1] == b.shape[-2],
        lambda: f"matrices {list(a.shape)} and {list(b.shape)} cannot be multiplied",
    )
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return (*batch, a.shape[-2], b.shape[-1])


def _matrix_product_gradients(operator: str, ctx: Any, grad: Any) -> tuple[Any, Any, None]:
    """Of C = A B: dA = dC Bᵀ and dB = Aᵀ dC, summed over the batch where a matrix had none."""
    multiply = getattr(torch.ops.autotune, operator)
    a, b = ctx.saved_tensors
    grad = grad.contiguous()  # the gradient of a sum is one expanded number
    of_a, of_b = ctx.shapes
    grad_a = grad_b = None
    if ctx.needs_input_grad[0]:
        grad_a = multiply(grad, b.mT, ctx.alpha).sum_to_size(of_a)
    if ctx.needs_input_grad[1]:
        if len(of_b) == 2 and a.ndim == 3:  # the product sums over the batch
            a, grad = a.flatten(0, 1), grad.flatten(0, 1)
        grad_b = multiply(a.mT, grad, ctx.alpha).sum_to_size(of_b)
    return grad_a, grad_b, None


def _matvec_shape(a: Any, x: Any) -> tuple[int, ...]:
    torch._check(
        a.ndim == 2 and x.ndim == 1 and a.shape[1] == x.shape[0],
        lambda: f"matrix {list(a.shape)} and vector {list(x.shape)} cannot be multiplied",
    )
    return (a.shape[0],)


def _matvec_gradients(ctx: Any, grad: Any) -> tuple[Any, Any, None]:
    """Of y = A x: dA = dy xᵀ and dx = Aᵀ dy."""
    a, x = ctx.saved_tensors
    grad_a = ctx.alpha * torch.outer(grad, x) if ctx.needs_input_grad[0] else None
    grad_x = _GEMV(a.mT, grad.contiguous(), ctx.alpha) if ctx.needs_input_grad[1] else None
    return grad_a, grad_x, None


def _transposed(x: Any) -> Any:
    torch._check(x.ndim in (2, 3), lambda: f"{list(x.shape)} is neither a matrix nor a batch")
    return x.new_empty((*x.shape[:-2], x.shape[-1], x.shape[-2]))


#: By precision: the product, and the product that writes into a tensor.
_PRODUCTS = {
    precision: _define_product(
        name,
        partial(linalg.matmul, precision=precision),
        _matrix_product_shape,
        partial(_matrix_product_gradients, name),
    )
    for precision, name in linalg.PRODUCTS.items()
}
_GEMV, _GEMV_OUT = _define_product("gemv", linalg.matvec, _matvec_shape, _matvec_gradients)
_TRANSPOSE = _define("transpose(Tensor x) -> Tensor", linalg.transpose, _transposed)
_REDUCE = _define(
    "reduce(Tensor x) -> Tensor",
    lambda x: linalg.total(x).reshape(()),
    lambda x: x.new_empty(()),
)
torch.library.register_autograd(
    "autotune::transpose", lambda ctx, grad: _TRANSPOSE(grad.contiguous()), lib=_LIBRARY
)
torch.library.register_autograd(
    "autotune::reduce",
    lambda ctx, grad: grad.expand(ctx.shape),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "shape", inputs[0].shape),
    lib=_LIBRARY,
)


# ---------------------------------------------------------------------- functions


def matmul(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    precision: str = "float32",
) -> Any:
    """Return ``alpha * a @ b + beta * out``: `linalg.matmul` on tensors, with gradients.

    Parameters
    ----------
    a, b, out : torch.Tensor
        float32, of the shapes of `linalg.matmul`; ``out`` is optional.
    alpha, beta, precision
        As of `linalg.matmul`.

    Returns
    -------
    torch.Tensor
        ``out``, or a new tensor.

    Raises
    ------
    UsageError
        As `linalg.matmul`; and if a gradient of what is written into ``out`` is wanted.
    """
    if precision not in _PRODUCTS:
        raise UsageError(unknown("precision", precision, _PRODUCTS))
    return _called(*_PRODUCTS[precision], a, b, out, alpha, beta)


def matvec(a: Any, x: Any, out: Any = None, *, alpha: float = 1.0, beta: float = 0.0) -> Any:
    """Return ``alpha * a @ x + beta * out``: `linalg.matvec` on tensors, with gradients.

    Parameters
    ----------
    a, x, out : torch.Tensor
        float32, of the shapes of `linalg.matvec`; ``out`` is optional.
    alpha, beta : float
        As of `linalg.matvec`.

    Returns
    -------
    torch.Tensor
        ``out``, or a new tensor.

    Raises
    ------
    UsageError
        As `linalg.matvec`; and if a gradient of what is written into ``out`` is wanted.
    """
    return _called(_GEMV, _GEMV_OUT, a, x, out, alpha, beta)


def transpose(x: Any) -> Any:
    """Return a contiguous copy with the last two axes exchanged, with a gradient.

    Parameters
    ----------
    x : torch.Tensor
        float32, (m, n) or a batch, (batch, m, n).

    Returns
    -------
    torch.Tensor
        (n, m) or (batch, n, m), new.

    Raises
    ------
    UsageError
        If ``x`` is not float32, or neither a matrix nor a batch of matrices.
    """
    return _TRANSPOSE(x)


def total(x: Any) -> Any:
    """Return the sum of all elements as a tensor without axes, with a gradient.

    Parameters
    ----------
    x : torch.Tensor
        float32, of any shape.

    Returns
    -------
    torch.Tensor
        (), new.

    Raises
    ------
    UsageError
        If ``x`` is not float32.
    """
    return _REDUCE(x)


def _called(operator: Any, into: Any, a: Any, b: Any, out: Any, alpha: float, beta: float) -> Any:
    if out is None:
        if beta:
            raise UsageError(f"beta={beta} scales the values of out: pass out")
        return operator(a, b, alpha)
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad or out.requires_grad):
        raise UsageError(
            "a product written into out has no gradient; call without out, or on detached tensors"
        )
    into(a, b, out, alpha, beta)
    return out

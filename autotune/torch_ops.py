"""Torch operators for the functions of `linalg` and for rows, with gradients; eager, compiled and exported.

The import registers ``torch.ops.autotune``. ``torch.library.Library`` defines the operators, because the checks
of its wrapper ``torch.library.custom_op`` double the time of a call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from autotune import linalg
from autotune.errors import MissingDependencyError, UsageError, unknown

try:
    import torch
except ImportError as error:
    raise MissingDependencyError("torch", "torch", "autotune.torch_ops") from error

#: Devices of the tensors that kernels take.
_BACKENDS = ("CPU", "CUDA")
_LIBRARY = torch.library.Library("autotune", "FRAGMENT")


# ---------------------------------------------------------------------- operators


def _define(schema: str, compute: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Define an operator of ``torch.ops.autotune``; ``fake`` returns results of the same shape without data."""
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
    """Define two operators of a product: one returns a new tensor, one writes into a tensor."""

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
    """Return dA = dC Bᵀ and dB = Aᵀ dC for C = A B, summed over the batch for a matrix without batch."""
    multiply = getattr(torch.ops.autotune, operator)
    a, b = ctx.saved_tensors
    grad = grad.contiguous()  # the gradient of a sum is a broadcast number
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
    """Return dA = dy xᵀ and dx = Aᵀ dy for y = A x."""
    a, x = ctx.saved_tensors
    grad_a = ctx.alpha * torch.outer(grad, x) if ctx.needs_input_grad[0] else None
    grad_x = _GEMV(a.mT, grad.contiguous(), ctx.alpha) if ctx.needs_input_grad[1] else None
    return grad_a, grad_x, None


def _transposed(x: Any) -> Any:
    torch._check(x.ndim in (2, 3), lambda: f"{list(x.shape)} is neither a matrix nor a batch")
    return x.new_empty((*x.shape[:-2], x.shape[-1], x.shape[-2]))


#: By precision: the product that returns a new tensor, and the product that writes into a tensor.
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


# ---------------------------------------------------------------------- operators on rows


@cache
def _tuned(kernel: str) -> Callable[..., Any]:
    from autotune.calling.load import load

    return load(kernel)


def _define_rows(
    schema: str,
    compute: Callable[..., Any],
    fake: Callable[..., Any],
    gradients: Callable[..., Any],
    save: Callable[..., None],
) -> Any:
    """Define an operator with a gradient."""
    operator, name = _define(schema, compute, fake), schema.partition("(")[0]
    torch.library.register_autograd(
        f"autotune::{name}", gradients, setup_context=save, lib=_LIBRARY
    )
    return operator


def _softmax_gradient(ctx: Any, grad: Any) -> Any:
    """Return dx = y (dy - sum(y dy)) for y = softmax(x)."""
    (y,) = ctx.saved_tensors
    weighted = grad.float() * y
    return (weighted - y * weighted.sum(-1, keepdim=True)).to(y.dtype)


def _normal_gradients(x: Any, weight: Any, eps: float, grad: Any, is_centred: bool) -> Any:
    """Return dx and dw for y = n w; n is x scaled to mean square 1, after centring if ``is_centred``."""
    x, grad = x.float(), grad.float()
    if is_centred:
        x = x - x.mean(-1, keepdim=True)
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    normal, weighted = x * scale, grad * weight
    change = weighted - normal * (weighted * normal).mean(-1, keepdim=True)
    if is_centred:
        change = change - weighted.mean(-1, keepdim=True)
    of_weight = (grad * normal).flatten(0, -2).sum(0)
    return (scale * change).to(weight.dtype), of_weight.to(weight.dtype)


def _save_norm(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, weight, *_, ctx.eps = inputs
    ctx.save_for_backward(x, weight)


def _save_sum(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.eps = inputs[-1]
    ctx.save_for_backward(output[1], inputs[1])


def _layer_norm_gradients(ctx: Any, grad: Any) -> tuple[Any, ...]:
    x, weight = ctx.saved_tensors
    of_bias = grad.float().flatten(0, -2).sum(0).to(weight.dtype)
    return (*_normal_gradients(x, weight, ctx.eps, grad, True), of_bias, None)


def _rms_norm_gradients(ctx: Any, grad: Any) -> tuple[Any, ...]:
    x, weight = ctx.saved_tensors
    return (*_normal_gradients(x, weight, ctx.eps, grad, False), None)


def _added_rms_norm_gradients(ctx: Any, grad: Any, of_total: Any) -> tuple[Any, ...]:
    total, weight = ctx.saved_tensors
    of_x, of_weight = _normal_gradients(total, weight, ctx.eps, grad, False)
    of_x = of_x + of_total
    return of_x, of_weight, of_x, None


def _added_rms_norm(x: Any, weight: Any, residual: Any, eps: float) -> tuple[Any, Any]:
    total = residual.clone(memory_format=torch.contiguous_format)
    y, _ = _tuned("rms_norm")(x.contiguous(), weight, residual=total, eps=eps)
    return y, total


def _loss_and_gradient(x: Any, target: Any) -> tuple[Any, Any]:
    found: tuple[Any, Any] = _tuned("cross_entropy")(x.contiguous(), target, with_gradient=True)
    return found


_SOFTMAX = _define_rows(
    "softmax(Tensor x) -> Tensor",
    lambda x: _tuned("softmax")(x.contiguous()),
    lambda x: x.new_empty(x.shape),
    _softmax_gradient,
    lambda ctx, inputs, output: ctx.save_for_backward(output),
)
_RMS_NORM = _define_rows(
    "rms_norm(Tensor x, Tensor weight, float eps) -> Tensor",
    lambda x, weight, eps: _tuned("rms_norm")(x.contiguous(), weight, eps=eps),
    lambda x, weight, eps: x.new_empty(x.shape),
    _rms_norm_gradients,
    _save_norm,
)
_ADDED_RMS_NORM = _define_rows(
    "added_rms_norm(Tensor x, Tensor weight, Tensor residual, float eps) -> (Tensor, Tensor)",
    _added_rms_norm,
    lambda x, weight, residual, eps: (x.new_empty(x.shape), x.new_empty(x.shape)),
    _added_rms_norm_gradients,
    _save_sum,
)
_LAYER_NORM = _define_rows(
    "layer_norm(Tensor x, Tensor weight, Tensor bias, float eps) -> Tensor",
    lambda x, weight, bias, eps: _tuned("layer_norm")(x.contiguous(), weight, bias, eps=eps),
    lambda x, weight, bias, eps: x.new_empty(x.shape),
    _layer_norm_gradients,
    _save_norm,
)
_CROSS_ENTROPY = _define(
    "cross_entropy(Tensor x, Tensor target) -> Tensor",
    lambda x, target: _tuned("cross_entropy")(x.contiguous(), target),
    lambda x, target: x.new_empty(x.shape[:1], dtype=torch.float32),
)
_LOSS_AND_GRADIENT = _define_rows(
    "cross_entropy_and_gradient(Tensor x, Tensor target) -> (Tensor, Tensor)",
    _loss_and_gradient,
    lambda x, target: (x.new_empty(x.shape[:1], dtype=torch.float32), x.new_empty(x.shape)),
    lambda ctx, grad, _: (
        ctx.saved_tensors[0] * grad[:, None].to(ctx.saved_tensors[0].dtype),
        None,
    ),
    lambda ctx, inputs, output: ctx.save_for_backward(output[1]),
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
        See `linalg.matmul`.

    Returns
    -------
    torch.Tensor
        ``out``, or a new tensor.

    Raises
    ------
    UsageError
        In the cases of `linalg.matmul`, and if ``out`` is given and a tensor requires a gradient.
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
        See `linalg.matvec`.

    Returns
    -------
    torch.Tensor
        ``out``, or a new tensor.

    Raises
    ------
    UsageError
        In the cases of `linalg.matvec`, and if ``out`` is given and a tensor requires a gradient.
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


def softmax(x: Any) -> Any:
    """Return the softmax along the last axis, with a gradient.

    Parameters
    ----------
    x : torch.Tensor
        float32, float16 or bfloat16.

    Returns
    -------
    torch.Tensor
        Of the shape and type of ``x``, new.

    Raises
    ------
    UsageError
        If ``x`` has another type.
    """
    return _SOFTMAX(x)


def rms_norm(x: Any, weight: Any, residual: Any = None, eps: float = 1e-6) -> Any:
    """Return ``x`` divided by its root mean square along the last axis, times ``weight``, with gradients.

    Parameters
    ----------
    x : torch.Tensor
        float32, float16 or bfloat16, (..., n).
    weight : torch.Tensor
        (n,), of the type of ``x``.
    residual : torch.Tensor, optional
        Of the shape and type of ``x``; added to ``x`` first.
    eps : float
        Added to the mean square.

    Returns
    -------
    torch.Tensor, or tuple of two
        The result; with a residual also the sum ``x + residual``.

    Raises
    ------
    UsageError
        If the tensors do not fit each other.
    """
    if residual is None:
        return _RMS_NORM(x, weight, eps)
    return _ADDED_RMS_NORM(x, weight, residual, eps)


def layer_norm(x: Any, weight: Any, bias: Any, eps: float = 1e-5) -> Any:
    """Return ``x`` normalised along the last axis, times ``weight``, plus ``bias``, with gradients.

    Parameters
    ----------
    x : torch.Tensor
        float32, float16 or bfloat16, (..., n).
    weight, bias : torch.Tensor
        (n,), of the type of ``x``.
    eps : float
        Added to the variance.

    Returns
    -------
    torch.Tensor
        Of the shape and type of ``x``, new.

    Raises
    ------
    UsageError
        If the tensors do not fit each other.
    """
    return _LAYER_NORM(x, weight, bias, eps)


def cross_entropy(x: Any, target: Any) -> Any:
    """Return the cross entropy of each row of logits, with a gradient that the same launch computes.

    Parameters
    ----------
    x : torch.Tensor
        float32, float16 or bfloat16, (rows, classes).
    target : torch.Tensor
        Integers in [0, classes), (rows,). They are not checked.

    Returns
    -------
    torch.Tensor
        (rows,), float32, new.

    Raises
    ------
    UsageError
        If the tensors do not fit each other.
    """
    target = target.to(torch.int32)
    if torch.is_grad_enabled() and x.requires_grad:
        return _LOSS_AND_GRADIENT(x, target)[0]
    return _CROSS_ENTROPY(x, target)


def _called(operator: Any, into: Any, a: Any, b: Any, out: Any, alpha: float, beta: float) -> Any:
    if out is None:
        if beta:
            raise UsageError(f"beta={beta} scales the values of out; pass out")
        return operator(a, b, alpha)
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad or out.requires_grad):
        raise UsageError(
            "a product that is written into out has no gradient; call without out, or detach the tensors"
        )
    into(a, b, out, alpha, beta)
    return out

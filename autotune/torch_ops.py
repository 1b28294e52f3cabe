"""Tuned kernels as operators of torch: eager, compiled, exported, differentiated; or behind torch.mm.

Importing it registers ``torch.ops.autotune``, whose faces are the functions here: those of `linalg`
by name and arguments, with gradients. `switch_on` puts the kernels behind torch's own products.
How a kernel is called is `linalg`'s.

Operators are defined by ``torch.library.Library``, which ``torch.library.custom_op`` wraps: what the
wrapper looks at in every call takes as long as the rest of the call.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from autotune import linalg
from autotune.errors import MissingDependencyError, UsageError, unknown

try:
    import torch
except ImportError as error:
    raise MissingDependencyError("torch", "torch", "autotune.torch_ops") from error

#: What a tensor must be on for a kernel to be called with it.
_BACKENDS = ("CPU", "CUDA")
_LIBRARY = torch.library.Library("autotune", "FRAGMENT")


# ---------------------------------------------------------------------- operators


def _define(schema: str, compute: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Make an operator of the namespace; ``fake`` makes its results from shapes alone."""
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
    """Make the operator of a product, and the one that writes into a tensor."""

    def compute(a: Any, b: Any, alpha: float = 1.0) -> Any:
        return function(a, b, alpha=alpha)

    def compute_into(a: Any, b: Any, out: Any, alpha: float = 1.0, beta: float = 0.0) -> None:
        function(a, b, out, alpha=alpha, beta=beta)
        if not out.is_inference():
            torch.autograd.graph.increment_version(out)  # what saved it for a gradient must notice

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
    """Keep of a product's factors what the gradients that are wanted need."""
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
    grad = grad.contiguous()  # of a sum it is one number, expanded
    of_a, of_b = ctx.shapes
    grad_a = grad_b = None
    if ctx.needs_input_grad[0]:
        grad_a = multiply(grad, b.mT, ctx.alpha).sum_to_size(of_a)
    if ctx.needs_input_grad[1]:
        if len(of_b) == 2 and a.ndim == 3:  # the sum over the batch is the product's
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


#: By precision: the product, and the one that writes into a tensor.
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
    """Matrix product, ``alpha * a @ b + beta * out``: `linalg.matmul` with gradients.

    Parameters
    ----------
    a : torch.Tensor
        float32, (m, k) or a batch of such, (batch, m, k).
    b : torch.Tensor
        float32, (k, n) or a batch of such.
    out : torch.Tensor, optional
        float32, (m, n) or a batch of such; written, and read where ``beta`` is not 0.
    alpha : float
        Factor of the product.
    beta : float
        Factor of what ``out`` holds.
    precision : {"float32", "tf32x3"}
        As of `linalg.matmul`.

    Returns
    -------
    torch.Tensor
        ``out``, or a new tensor.

    Raises
    ------
    UsageError
        If the tensors do not fit each other, there is no such precision, or a gradient is wanted of
        what is written into ``out``.
    """
    if precision not in _PRODUCTS:
        raise UsageError(unknown("precision", precision, _PRODUCTS))
    return _called(*_PRODUCTS[precision], a, b, out, alpha, beta)


def matvec(a: Any, x: Any, out: Any = None, *, alpha: float = 1.0, beta: float = 0.0) -> Any:
    """Product of a matrix and a vector, ``alpha * a @ x + beta * out``: `linalg.matvec` with gradients.

    Parameters
    ----------
    a : torch.Tensor
        float32, (m, n).
    x : torch.Tensor
        float32, (n,).
    out : torch.Tensor, optional
        float32, (m,); written, and read where ``beta`` is not 0.
    alpha : float
        Factor of the product.
    beta : float
        Factor of what ``out`` holds.

    Returns
    -------
    torch.Tensor
        ``out``, or a new tensor.

    Raises
    ------
    UsageError
        If the tensors do not fit each other, or a gradient is wanted of what is written into ``out``.
    """
    return _called(_GEMV, _GEMV_OUT, a, x, out, alpha, beta)


def transpose(x: Any) -> Any:
    """A contiguous copy with the last two axes exchanged: `linalg.transpose` with a gradient.

    Parameters
    ----------
    x : torch.Tensor
        float32, (m, n) or a batch of such, (batch, m, n).

    Returns
    -------
    torch.Tensor
        (n, m) or (batch, n, m), new.

    Raises
    ------
    UsageError
        If ``x`` is not float32, or no matrix and no batch of such.
    """
    return _TRANSPOSE(x)


def total(x: Any) -> Any:
    """The sum of all elements, as a tensor without axes: `linalg.total` with a gradient.

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
            raise UsageError(f"beta={beta} scales what out holds: give out")
        return operator(a, b, alpha)
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad or out.requires_grad):
        raise UsageError(
            "what is written into out has no gradient; call without out, or on detached tensors"
        )
    into(a, b, out, alpha, beta)
    return out


# ---------------------------------------------------------------------- behind torch's own products


@dataclass(frozen=True)
class _Switch:
    """What stands in for torch's products on one type of device."""

    precision: str
    library: Any


#: By type of device; one process has one dispatcher.
_switches: dict[str, _Switch] = {}


def switch_on(precision: str = "float32", device: str = "cuda") -> None:
    """Compute torch's own products of float32 tensors with tuned kernels from here on, in all threads.

    These are ``torch.mm``, ``addmm``, ``bmm`` and ``mv``, with and without ``out``, which ``@``,
    ``torch.matmul`` and ``torch.nn.functional.linear`` and their gradients come down to. What the
    kernels do not take, other types among it, torch computes as before.

    Parameters
    ----------
    precision : {"float32", "tf32x3"}
        As of `linalg.matmul`. It holds whatever ``torch.set_float32_matmul_precision`` says.
    device : {"cuda", "cpu"}
        Type of device of the tensors.

    Raises
    ------
    UsageError
        If there is no such precision or device, or torch is older than 2.9 or knows no CUDA.
    """
    if precision not in _PRODUCTS:
        raise UsageError(unknown("precision", precision, _PRODUCTS))
    if device.upper() not in _BACKENDS:
        raise UsageError(unknown("device", device, [name.lower() for name in _BACKENDS]))
    if not hasattr(torch.library, "get_kernel"):
        raise UsageError(f"behind torch.mm needs torch 2.9 or newer, this is {torch.__version__}")
    if device == "cuda" and not torch.backends.cuda.is_built():
        raise UsageError("this torch was built without CUDA and has no products there to replace")
    switch_off(device)
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators")  # it overrides
        for name, product in _stand_ins(precision).items():
            original = torch.library.get_kernel(f"aten::{name}", device.upper())
            replaced = _replaced(product, original)
            # torch 2.12 and later has put a kernel of its own behind bmm in the same way.
            library.impl(name, replaced, device.upper(), with_keyset=True, allow_override=True)
    _switches[device] = _Switch(precision, library)


def switch_off(device: str = "cuda") -> None:
    """Undo `switch_on`; nothing happens where it is off.

    Parameters
    ----------
    device : {"cuda", "cpu"}
        Type of device of the tensors.
    """
    if device in _switches:
        _switches.pop(device).library._destroy()


@contextmanager
def switched_on(precision: str = "float32", device: str = "cuda") -> Iterator[None]:
    """`switch_on` for a block; what was before is restored at its end.

    Parameters
    ----------
    precision : {"float32", "tf32x3"}
        As of `linalg.matmul`.
    device : {"cuda", "cpu"}
        Type of device of the tensors.

    Raises
    ------
    UsageError
        As `switch_on` does.
    """
    before = _switches.get(device)
    switch_on(precision, device)
    try:
        yield
    finally:
        if before is None:
            switch_off(device)
        else:
            switch_on(before.precision, device)


def _replaced(product: Callable[..., Any], original: Any) -> Callable[..., Any]:
    """A kernel of the dispatcher: a product, and torch's own kernel where that gives nothing."""

    def replaced(keys: Any, *args: Any, **named: Any) -> Any:
        try:
            result = product(*args, **named)
        except UsageError:  # torch may take it, or says in its own words why not
            result = None
        return original.call_boxed(keys, *args, **named) if result is None else result

    return replaced


def _stand_ins(precision: str) -> dict[str, Callable[..., Any]]:
    """Functions with the arguments of torch's products; None is for what is left to torch."""
    matmul = partial(linalg.matmul, precision=precision)

    def mm(a: Any, b: Any, *, out: Any = None) -> Any:
        fits = _are_float32(2, 2, a, b) and not _share_memory(out, a, b)
        return matmul(a, b, out) if fits else None

    def bmm(a: Any, b: Any, *, out: Any = None) -> Any:
        fits = _are_float32(3, 3, a, b) and a.shape[0] == b.shape[0]
        fits = fits and not _share_memory(out, a, b)
        return matmul(a, b, out) if fits else None

    def mv(a: Any, x: Any) -> Any:
        return linalg.matvec(a, x) if _are_float32(2, 1, a, x) else None

    def addmm(c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1, out: Any = None) -> Any:
        if not _are_float32(2, 2, a, b) or _share_memory(out, a, b):
            return None
        shape = (a.shape[0], b.shape[1])
        if out is not None and out.shape != shape:
            return None
        if out is None:
            out = a.new_empty(shape)
        if beta:
            out.copy_(c)
        return matmul(a, b, out, alpha=alpha, beta=beta)

    return {
        "mm": mm,
        "mm.out": mm,
        "bmm": bmm,
        "bmm.out": bmm,
        "addmm": addmm,
        "addmm.out": addmm,
        "mv": mv,
    }


def _share_memory(out: Any, a: Any, b: Any) -> bool:
    """Whether an output may overlap what is read, which torch refuses."""
    if out is None:
        return False
    memory = out.untyped_storage().data_ptr()
    return memory in (a.untyped_storage().data_ptr(), b.untyped_storage().data_ptr())


def _are_float32(axes_a: int, axes_b: int, a: Any, b: Any) -> bool:
    """Whether two tensors are float32 and have so many axes."""
    float32 = torch.float32
    return a.dtype is float32 and b.dtype is float32 and a.ndim == axes_a and b.ndim == axes_b

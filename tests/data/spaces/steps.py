"""Several launches with a fill, a workspace, an argument changed in place and a static field."""

from autotune import Fill, InOut, Kernel, Launch, Out, Problem, ceil_div

steps = Kernel(
    "steps.cu",
    problems=[Problem(n=1000, taps=3), Problem(n=777, taps=2)],
    edge_problems=[Problem(n=1, taps=3), Problem(n=65, taps=2)],
    static=("taps",),
    default={"MODE": "plain", "UNROLL": 4},
    seeds=[{"MODE": "unrolled", "BLOCK": 64, "UNROLL": 4}, {"MODE": "unrolled"}],
    BLOCK=(32, 64),  # threads per block
    MODE=("plain", "unrolled"),
    UNROLL=(1, 2, 4),  # turns of the loop over a thread's elements at once
)


@steps.applies("UNROLL")
def is_unrolled(MODE):
    return MODE == "unrolled"


@steps.constraint
def unrolls_at_all(UNROLL):
    """An unrolled loop does several turns at once."""
    return UNROLL > 1


def blocks(c):
    return 4 if c.BLOCK == 32 else 2


@steps.launch
def launch(c, p):
    return (
        Fill("count", 0),
        Launch(blocks(c), c.BLOCK, entry="partial", args=("x", "partials", "count", "n")),
        Launch(1, 1, entry="finish", args=("partials", "total", blocks(c))),
        Launch(ceil_div(p.n, c.BLOCK), c.BLOCK, entry="twice", args=("y", "n")),
    )


@steps.scratch
def scratch(c, p):
    return {"partials": Out(blocks(c))}


@steps.arguments
def arguments(p, rng):
    x, y = (rng.standard_normal(p.n) for _ in "xy")
    outputs = {"y": InOut(y), "total": Out(1), "count": Out(1, "uint32")}
    return {"x": x, **outputs, "n": p.n, "taps": p.taps}


@steps.reference
def reference(x, y, taps, n):
    return {"y": 2 * y, "total": taps * x.sum(), "count": n}

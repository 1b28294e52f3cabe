"""particles: sums over the fields of structs, by kernels/study/particles.cu; arrays of structs or structs of arrays."""

import numpy as np

from autotune import Kernel, Launch, Out, Problem, Work, ceil_div

LAYOUTS = ("aos12", "aos16", "soa", "aosoa")


def structs(n, layout, fields=3):
    """Return a problem with n particles in one of four layouts; the kernel uses their first `fields` fields."""
    return Problem(n=n, layout=layout, fields=fields)


particles = Kernel(
    "particles.cu",
    problems={
        "cuda": [structs(1 << 25, layout, fields) for layout in LAYOUTS for fields in (1, 3)]
        + [structs(1 << 20, layout) for layout in ("aos12", "soa")],
        "opencl": [structs(1 << 17, "aos12"), structs(1 << 17, "soa")],
    },
    edge_problems=[
        *(structs(n, "aos12", fields) for n, fields in ((1, 3), (1001, 2))),
        structs(4099, "aos16", 2),
        *(structs(n, "aosoa", fields) for n, fields in ((33, 3), (4099, 1))),
        structs(1001, "soa"),
    ],
    static=("layout", "fields"),
    variants={stage: {"STAGE": stage} for stage in ("direct", "shared")},
    deterministic=True,  # one thread computes a particle
    BLOCK=(256, 64, 128, 512),  # threads per block
    ITEMS=(1, 2, 4),  # particles per thread
    STAGE=("direct", "shared"),  # where structs are split into fields
)


@particles.requires
def shared_needs_small_structs(c, p):
    """shared: needs structs of 12 bytes."""
    return p.layout == "aos12" if c.STAGE == "shared" else True


@particles.launch
def launch(c, p):
    args = ("p", "out", "n")
    return Launch(grid=(ceil_div(p.n, c.BLOCK * c.ITEMS),), block=(c.BLOCK,), args=args)


@particles.arguments
def arguments(p, rng):
    """Return the arguments; only the reference uses layout and fields, which are compiled in."""
    floats = {"aos12": 3 * p.n, "aos16": 4 * p.n, "soa": 3 * p.n, "aosoa": ceil_div(p.n, 32) * 96}
    return {
        "p": rng.standard_normal(floats[p.layout]),
        "out": Out(p.n),
        "n": np.int64(p.n),
        "layout": LAYOUTS.index(p.layout),
        "fields": p.fields,
    }


@particles.reference
def reference(p, n, layout, fields):
    by_field = {
        "aos12": lambda: p.reshape(-1, 3).T,
        "aos16": lambda: p.reshape(-1, 4).T,
        "soa": lambda: p.reshape(3, -1),
        "aosoa": lambda: p.reshape(-1, 3, 32).transpose(1, 0, 2).reshape(3, -1),
    }[LAYOUTS[layout]]()
    return by_field[:fields, :n].sum(0)


@particles.tolerance
def tolerance(p):
    """Bound the error of two additions of numbers below 8."""
    return 16 * float(np.finfo(np.float32).eps)


@particles.work
def work(p):
    """Count the used fields, not whole sectors."""
    return Work(flops=p.n * (p.fields - 1), bytes_read=4 * p.fields * p.n, bytes_written=4 * p.n)

"""triangles: number of triangles of a graph at their first vertex, by kernels/triangles.cu."""

import numpy as np

from autotune import Kernel, Launch, Out, Problem, Work, ceil_div

KINDS = ("uniform", "powerlaw", "banded", "blocks")
TEAMS = {"merge": 1, "search": 32, "hash": 128}
VARIANTS = {alg: {"ALG": alg, "BLOCK": 128, "TEAM": team} for alg, team in TEAMS.items()}


def graph(kind, n, each=16):
    """Return a problem with n vertices and at most `each` edges per vertex, distributed as in a kind of graph."""
    return Problem(kind=kind, n=n, each=each)


triangles = Kernel(
    "triangles.cu",
    problems={
        "cuda": [graph(kind, 1 << 18) for kind in KINDS] + [graph("powerlaw", 1 << 20, 32)],
        "opencl": [graph("powerlaw", 2000), graph("blocks", 1001, 8)],
    },
    edge_problems=[
        graph("uniform", 1, 1),
        graph("uniform", 67, 30),
        graph("powerlaw", 999, 20),
        graph("banded", 513, 9),
        graph("blocks", 333, 12),
    ],
    seeds=[*VARIANTS.values()],
    variants=VARIANTS,
    default=VARIANTS["search"],
    deterministic=True,  # integers are exact in any order
    ALG=("merge", "search", "hash"),  # how to intersect two lists
    BLOCK=(64, 128, 256),  # threads per block
    TEAM=(1, 4, 8, 32, 64, 128, 256),  # threads per vertex
    SLOTS=(1024, 512, 4096),  # hash: slots of the table
)


@triangles.applies("SLOTS")
def uses_a_table(ALG):
    return ALG == "hash"


@triangles.constraint
def teams_divide_blocks(ALG, BLOCK, TEAM):
    """A block has whole teams; hash: one team."""
    return TEAM == BLOCK if ALG == "hash" else BLOCK >= TEAM


@triangles.launch
def launch(c, p):
    return Launch(grid=(ceil_div(p.n, c.BLOCK // c.TEAM),), block=(c.BLOCK,))


@triangles.arguments
def arguments(p, rng):
    """Return each edge once, from the vertex of lower degree to the other. The kernel ignores unused places."""
    edges = p.n * p.each
    i = np.repeat(np.arange(p.n), p.each)
    if p.kind == "powerlaw":
        j = (p.n * rng.random(edges) ** 4).astype(np.int64)
    elif p.kind == "banded":
        j = i + rng.integers(1, 2 * p.each, edges)
    elif p.kind == "blocks":
        j = i // 32 * 32 + rng.integers(0, 32, edges)
    else:
        j = rng.integers(0, p.n, edges)
    i, j = i[(i != j) & (j < p.n)], j[(i != j) & (j < p.n)]
    pairs = np.unique(np.minimum(i, j) * p.n + np.maximum(i, j))
    i, j = pairs // p.n, pairs % p.n
    degree = np.bincount(i, minlength=p.n) + np.bincount(j, minlength=p.n)
    turned = degree[i] * p.n + i > degree[j] * p.n + j
    first, second = np.where(turned, j, i), np.where(turned, i, j)
    order = np.lexsort((second, first))
    columns = np.zeros(edges, np.int32)
    columns[: len(order)] = second[order]
    row_start = np.concatenate([[0], np.cumsum(np.bincount(first, minlength=p.n))])
    counted = {"row_start": row_start.astype(np.int32), "columns": columns}
    return {**counted, "count": Out(p.n, "int32"), "n": p.n}


@triangles.reference
def reference(row_start, columns, n):
    """Count pairs of consecutive edges that a third edge closes."""
    from scipy.sparse import csr_array

    # SciPy does not check indices, and `autotune check` changes some to test the reference.
    if row_start[0] or row_start[-1] > len(columns) or (row_start[1:] < row_start[:-1]).any():
        raise ValueError(
            "row_start: it must begin at 0, never decrease, and end within the columns"
        )
    columns = columns[: row_start[-1]]
    if ((columns < 0) | (columns >= n)).any():
        raise ValueError(f"columns: values must be from 0 to {n - 1}")
    edges = csr_array((np.ones(len(columns), np.int32), columns, row_start), shape=(n, n))
    return (edges @ edges).multiply(edges).sum(axis=1)


@triangles.work
def work(p):
    """Count one read of the graph. The actual number of reads depends on the graph."""
    return Work(bytes_read=4 * p.n * (p.each + 1), bytes_written=4 * p.n)

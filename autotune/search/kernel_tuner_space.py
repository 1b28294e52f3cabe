"""Search spaces of Kernel Tuner over our spaces. Importing this module imports Kernel Tuner."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, zip_longest
from typing import Any

import numpy as np
from kernel_tuner.searchspace import Searchspace

from autotune.kernel.space import Space
from autotune.search.lattice import Lattice, Point, Stuck

#: Maximum number of validity checks between two proposals; a strategy that makes more is in an endless
#: loop. A genetic algorithm waits forever for a child that differs from both of two equal parents.
MAX_CHECKS = 10_000
#: Number of lists of neighbours in the cache, of about 20 KB each.
NEIGHBOURHOODS = 128


class LatticeSearchspace(Searchspace):  # type: ignore[misc]
    """A search space of Kernel Tuner with conditional parameters, without Kernel Tuner's index.

    For 830,000 configurations with 36 parameters that index takes 1.7 s to make. With the index, a list of
    Hamming neighbours takes 40 ms instead of 0.2 ms.

    The list is in descending order, like the list of Kernel Tuner's own solver. Repairs take the first
    neighbour in the list, so the order affects a strategy (adaptive_tabu_greywolf on
    gemm-RTX_3090: 50 evaluations to 95 % descending, 150 ascending).

    A point is valid if its configuration is valid, whatever the values of parameters that do not apply.
    An invalid point without neighbours has the nearest configurations as neighbours: strategies
    repair by neighbours, and take a random configuration if a point has no neighbours.
    """

    def __init__(self, space: Space) -> None:
        self.lattice = lattice = Lattice(space)
        #: Number of validity checks since the last proposal.
        self.checks = 0
        self.get_neighbors_indices = lru_cache(NEIGHBOURHOODS)(self.get_neighbors_indices_no_cache)
        names = [f"p{position}" for position in range(len(lattice.sizes))]
        values = {name: list(range(size)) for name, size in zip(names, lattice.sizes, strict=True)}
        points = (_CachedPoint(names, point) for point in lattice.points[::-1])
        # ``from_cache`` accepts a list of configurations; a restriction would be called for
        # every point of the cartesian product.
        cache = {"tune_params": values, "cache": dict(enumerate(points))}
        super().__init__(None, None, None, from_cache=cache)

    def begin(self, best: Sequence[int]) -> None:
        """Begin another search; ``best`` are the best known configurations, best first.

        They make up half of the first population. Kernel Tuner draws its first population at random,
        and in a thin space few random configurations are fast.
        """
        self.best = [self.size - 1 - index for index in best]

    def is_param_config_valid(self, param_config: Point) -> bool:
        self.checks += 1
        if self.checks > MAX_CHECKS:
            raise Stuck("it is in an endless loop")
        return self.lattice.find(param_config) is not None

    def get_random_sample_indices(self, num_samples: int) -> list[int]:
        # The inherited method shuffles the whole list: 10 ms in a space of 830,000 configurations.
        sample = random.sample(range(self.size), num_samples)
        if num_samples > 1:
            kept = self.best[: num_samples // 2]
            drawn = [index for index in sample if index not in kept]
            # They go to the end: some strategies replace the first point by a random one.
            sample = [*drawn[: num_samples - len(kept)], *kept]
        return sample

    def get_LHS_sample_indices(self, num_samples: int) -> list[int]:  # noqa: N802
        """Return the configurations nearest to a Latin hypercube; the inherited method has no seed."""
        from scipy.stats.qmc import LatinHypercube

        sizes = self.lattice.sizes
        hypercube = LatinHypercube(len(sizes), rng=np.random.default_rng(random.getrandbits(63)))
        points = hypercube.integers([0] * len(sizes), u_bounds=sizes, n=num_samples).tolist()
        nearest = (self.lattice.nearest(point)[0] for point in points)
        chosen = dict.fromkeys(self.size - 1 - number for number in nearest)
        while len(chosen) < num_samples:
            chosen[random.randrange(self.size)] = None
        return list(chosen)

    def get_neighbors_indices_no_cache(
        self, param_config: Point, neighbor_method: str, build_full_cache: bool = False
    ) -> list[int]:
        if neighbor_method == "Hamming":
            found = self.lattice.changed_in_one(param_config)
        elif neighbor_method == "closest-param-indices":
            found = self.lattice.nearest(param_config)
        else:  # every value occurs: "adjacent" and "strictly-adjacent" are the same
            found = self.lattice.adjacent(param_config)
        if not found and self.lattice.find(param_config) is None:
            found = self.lattice.nearest(param_config)
        return [self.size - 1 - index for index in reversed(found)]

    def likely_next(self, proposed: int, best: Sequence[int]) -> Iterable[int]:
        """Return a proposal, then its neighbours and the neighbours of the best, in turn.

        Neighbours differ in one parameter.
        """
        points = map(self.lattice.point, (proposed, *best))
        near = (reversed(self.get_neighbors_indices(point, "Hamming")) for point in points)
        mixed = chain.from_iterable(zip_longest(*near, fillvalue=self.size - 1 - proposed))
        return dict.fromkeys((proposed, *(self.size - 1 - index for index in mixed)))


@dataclass(slots=True)
class _CachedPoint:
    """A configuration in the form of Kernel Tuner's cache; a dict would take ten times the memory."""

    names: list[str]
    point: Any

    def items(self) -> Iterable[tuple[str, int]]:
        return zip(self.names, self.point.tolist(), strict=True)

"""Which cards runs of a fleet have while some of them are lost and other runs end."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from autotune.devices.device import for_arch
from autotune.fleet.cards import Card, lease


class Runs:
    """Workers of some runs that ask for their cards in turns, as `RemoteWorker.card` does."""

    def __init__(self, runs: int, workers: int) -> None:
        self.cards = [
            Card(replace(for_arch("sm_90"), uuid=f"{number:02}"), "tcp://192.0.2.1:1")
            for number in range(runs * workers)
        ]
        self.held: dict[tuple[str, int], Card] = {}
        self.workers = [(chr(65 + run), lane) for run in range(runs) for lane in range(workers)]
        for worker, card in zip(self.workers, self.cards, strict=True):
            self.held[worker] = lease(self.cards, worker[0], card.uuid)

    def ask(self, rounds: int = 4) -> None:
        for worker in self.workers * rounds:
            card = self.held[worker]
            if card.users > 1 or card.owner != worker[0] or card not in self.cards:
                card.users -= 1
                self.held[worker] = lease(self.cards, worker[0], card.uuid)

    def end(self, run: str) -> None:
        for worker in [worker for worker in self.workers if worker[0] == run]:
            self.held.pop(worker).users -= 1
            self.workers.remove(worker)

    def shares(self) -> Counter[str]:
        """How many cards each run has."""
        return Counter(
            {worker[0]: len(self.of(worker[0])) for worker in self.workers if self.of(worker[0])}
        )

    def of(self, run: str) -> set[str]:
        """The cards that a run's workers ask."""
        return {card.uuid for (owner, _), card in self.held.items() if owner == run}


def test_every_worker_gets_the_card_it_wants() -> None:
    runs = Runs(3, 4)
    before = dict(runs.held)
    runs.ask()
    assert runs.held == before
    assert [card.users for card in runs.cards] == [1] * 12


@pytest.mark.parametrize("lost", [1, 3, 4, 7, 8])
def test_what_is_lost_is_lost_by_all_alike(lost: int) -> None:
    runs = Runs(4, 8)
    del runs.cards[:lost]  # all of one run
    runs.ask()
    counts = runs.shares().values()
    assert sum(counts) == 32 - lost
    assert max(counts) - min(counts) <= 1
    before = dict(runs.held)
    runs.ask()
    assert runs.held == before, "cards go on changing hands"


def test_who_shares_moves_to_a_card_that_another_run_leaves() -> None:
    runs = Runs(2, 4)
    del runs.cards[:2]
    runs.ask()
    assert runs.shares() == {"A": 3, "B": 3}
    runs.end("B")
    runs.ask()
    assert runs.shares() == {"A": 4}
    assert sum(card.users for card in runs.cards) == 4


def test_more_runs_than_cards_share_them() -> None:
    runs = Runs(3, 1)
    del runs.cards[1:]
    runs.ask()
    assert runs.cards[0].users == 3
    assert runs.shares() == {"A": 1, "B": 1, "C": 1}

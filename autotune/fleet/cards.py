"""The cards of a fleet: which are of one model, and which of a model's are whose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.devices.device import Device


@dataclass(frozen=True)
class Model:
    """What cards have in common whose times may stand in one record."""

    backend: str
    name: str
    arch: str
    sm_count: int
    driver: str

    def is_called(self, name: str) -> bool:
        """Whether a person may mean it by a name."""
        return name in (self.backend, self.arch) or name.lower() in self.name.lower()

    @classmethod
    def of(cls, device: Device) -> Model:
        """The model of a device."""
        return cls(device.backend, device.name, device.arch, device.sm_count, device.driver)


@dataclass(eq=False)
class Card:
    """One device of the fleet, told from others by its uuid."""

    device: Device
    #: Of the Dask worker that has it.
    address: str
    #: The run whose it is while somebody uses it, and how many workers do.
    owner: object = None
    users: int = 0

    @property
    def uuid(self) -> str:
        return self.device.uuid


def lease(cards: Sequence[Card], owner: object, wanted: str) -> Card:
    """Choose a card for one of a run's workers, and note it: the wanted one if it is free, or another that is.

    Where none is, because some were lost, every run comes to have as many as another, or one more: the
    run that has most loses one, and its worker, which asks again, shares another with its like.

    Parameters
    ----------
    cards : sequence of Card
        Of one model, at least one.
    owner : object
        The run.
    wanted : str
        A card's uuid.
    """
    used = [card for card in cards if card.users]
    own = [card for card in used if card.owner is owner]
    held = Counter(id(card.owner) for card in used)
    richest, most = held.most_common(1)[0] if held else (0, 0)
    if len(used) < len(cards):
        choice = [card for card in cards if not card.users]
    elif most > len(own) + 1:
        choice = [card for card in used if id(card.owner) == richest]
    else:
        choice = own
    chosen = min(choice or cards, key=lambda card: (card.users, card.uuid != wanted))
    if choice:
        chosen.owner = owner
    chosen.users += 1
    return chosen

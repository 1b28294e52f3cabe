"""Which card or compiler of a fleet gets a task, by what its workers announced to a scheduler that is not there."""

from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest

from autotune.devices.device import for_arch
from autotune.errors import AutotuneError

pytest.importorskip("distributed")

from autotune.fleet import client
from autotune.fleet.client import MAX_FAILURES, Fleet, Model, Place
from autotune.fleet.site import drive
from autotune.fleet.worker import COMPILE, NAME, HostError, claim
from autotune.kernel.catalog import find_kernel
from autotune.run.request import Request

GPU = replace(for_arch("sm_90"), name="Large", uuid="a", driver="2")
OTHER = replace(GPU, name="Small")
LARGE = Model.of(GPU)


@pytest.fixture
def fleet(monkeypatch):
    """Make a fleet of workers: by address, the uuids of their cards; compilers are of all, but ``none``."""
    monkeypatch.setattr(client, "toolchain_of", lambda name: f"{name} 1")
    monkeypatch.setattr(client, "RETURN_S", 0.0)
    made = []

    def announced(cards, compilers=1, toolchains=("cuda 1",)):
        values = [asdict(replace(card, uuid=uuid)) for uuid, card in cards.items()]
        tools = {text.split()[0]: text for text in toolchains}
        known = {
            "claim": claim(),
            "toolchains": tools,
            "compilers": compilers,
            "devices": values,
        }
        return {"metrics": {NAME: known}}

    def fleet_of(workers, **others):
        there = {address: announced(cards) for address, cards in workers.items()} | {
            address: announced(*how) for address, how in others.items()
        }
        scheduler = SimpleNamespace(identity=None, address="scheduler")
        connected = SimpleNamespace(
            status="running", scheduler=scheduler, sync=lambda *_, **__: {"workers": there}
        )
        made.append(Fleet(connected))
        made[-1].there = there
        return made[-1]

    yield fleet_of
    for each in made:
        each.__exit__()


def set_aside(fleet, address, times=MAX_FAILURES):
    for _ in range(times - 1):
        fleet.blame(HostError("disk full", address))
    with pytest.warns(UserWarning, match=f"{address} failed 3 times and gets no more tasks"):
        fleet.blame(HostError("disk full", address))


THREE = {"one": {"a": GPU}, "two": {"b": GPU}, "three": {"c": OTHER}}


def uuids(devices):
    return [device.uuid for device in devices]


def test_cards_are_those_of_a_model(fleet):
    made = fleet(THREE)
    assert uuids(card.device for card in made.usable()) == ["a", "b", "c"]
    assert uuids(card.device for card in made.usable(LARGE)) == ["a", "b"]
    assert uuids(made.others(GPU)) == ["b"]


def test_a_task_goes_to_the_card_that_is_wanted_else_to_another_of_its_model(fleet):
    made = fleet(THREE)
    for uuid, address in (("a", "one"), ("b", "two")):
        assert made.measuring_place(LARGE, uuid) == Place(uuid, (address,))
    assert made.measuring_place(LARGE, "a", ["one"]) == Place("b", ("two",))
    places = {made.measuring_place(LARGE, f"lost {i}").resource for i in range(9)}
    assert places == {"a", "b"}


def test_a_worker_is_set_aside_after_its_failures(fleet):
    made = fleet(THREE)
    for _ in range(MAX_FAILURES - 1):
        made.blame(HostError("disk full", "one"))
    assert made.measuring_place(LARGE, "a").resource == "a"
    set_aside(made, "one", times=1)
    assert made.measuring_place(LARGE, "a").resource == "b"
    assert "one" not in made.compiling_place("cuda").addresses
    made.blame(HostError("disk full", "one"))  # told once
    set_aside(made, "two")
    with pytest.raises(AutotuneError, match="no Large of the fleet is left: disk full; disk full"):
        made.measuring_place(LARGE, "a")


@pytest.mark.parametrize(
    ("lost", "aside", "but", "waits"),
    [
        ([], [], ["one", "two"], False),
        ([], ["one"], ["two"], False),
        (["two"], ["one"], [], True),
        (["two"], [], ["one"], True),
        (["one", "two"], [], [], True),
        (["two", "three"], ["one"], ["two"], False),
    ],
)
def test_a_lost_worker_is_waited_for_where_it_would_help(
    fleet, monkeypatch, lost, aside, but, waits
):
    made = fleet(THREE)
    for address in aside:
        set_aside(made, address)
    for address in lost:
        del made.there[address]
    made.look()
    looks = []

    def look_again(_):
        looks.append(1)
        made.there.update({"two": made.there.get("two") or lost_two})
        made.look()

    lost_two = fleet(THREE).there["two"]
    monkeypatch.setattr(client, "RETURN_S", 60.0)
    monkeypatch.setattr(client.time, "sleep", look_again)
    if waits:
        assert made.measuring_place(LARGE, "a", but).resource in {"a", "b"}
    else:
        with pytest.raises(AutotuneError, match="no Large of the fleet is left"):
            made.measuring_place(LARGE, "a", but)
    assert bool(looks) == waits


def test_waiting_ends(fleet):
    made = fleet(THREE)
    made.there.clear()
    made.look()
    with pytest.raises(
        AutotuneError, match="no Large of the fleet is left: their workers are gone"
    ):
        made.measuring_place(LARGE, "a")
    with pytest.raises(AutotuneError, match="no worker of the fleet compiles for cuda"):
        made.compiling_place("cuda")


def test_a_place_has_another_like_it_or_none(fleet):
    made = fleet(THREE)
    card, compilers = Place("a", ("one",)), Place(COMPILE, ("one", "two"))
    assert made.has_other(card, ["one"])
    assert not made.has_other(card, ["one", "two"])
    assert made.has_other(compilers, ["one"])
    assert not made.has_other(compilers, ["one", "two"])
    assert made.is_connected(compilers)
    del made.there["one"]
    made.look()
    assert not made.is_connected(card) and made.is_connected(compilers)
    assert not made.has_other(Place("a", ("one",)), ["two"])


def test_compilers_are_those_for_a_backend(fleet, monkeypatch):
    made = fleet(
        {"one": {"a": GPU}}, two=({}, 3, ("cuda 1",)), three=({}, 5, ("opencl 1", "cuda 2")),
        four=({}, 0),
    )  # fmt: skip
    assert made.compiling_place("cuda") == Place(COMPILE, ("one", "two"))
    assert made.compiling_place("cuda", ["one"]) == Place(COMPILE, ("two",))
    assert (made.compilers("cuda"), made.compilers("opencl")) == (4, 5)
    monkeypatch.setattr(client, "RETURN_S", 60.0)
    monkeypatch.setattr(client.time, "sleep", lambda _: pytest.fail("nobody compiles for it ever"))
    for but in (["one", "two"],):
        with pytest.raises(AutotuneError, match="compiles for cuda; start one with"):
            made.compiling_place("cuda", but)
    with pytest.raises(AutotuneError, match="no worker of the fleet compiles for hip"):
        made.compiling_place("hip")


def test_a_card_of_another_compiler_is_refused(fleet):
    with pytest.warns(
        UserWarning, match="Large at two compiles with cuda 2, this client with cuda 1"
    ):
        made = fleet({"one": {"a": GPU}}, two=({"b": GPU}, 1, ("cuda 2",)))
    assert uuids(card.device for card in made.usable()) == ["a"]


def test_a_card_moves_with_its_worker_only_where_that_is_gone(fleet):
    made = fleet({"one": {"a": GPU}})
    made.there["two"] = made.there["one"]
    made.look()
    assert made.cards["a"].address == "one"
    del made.there["one"]
    made.look()
    assert made.cards["a"].address == "two"


def test_of_two_drivers_the_one_of_most_cards_is_tuned(fleet):
    old = replace(GPU, driver="1")
    made = fleet({"one": {"a": old}, "two": {"b": GPU, "c": GPU}})
    with pytest.warns(UserWarning, match="1 Large with driver 1 are not used"):
        assert made.models() == [LARGE]


def test_a_run_waits_for_a_lost_worker(fleet, monkeypatch):
    made = fleet(THREE)
    there = dict(made.there)
    made.there.clear()
    made.look()

    def return_all(_):
        made.there.update(there)
        made.look()

    monkeypatch.setattr(client, "RETURN_S", 60.0)
    monkeypatch.setattr(client.time, "sleep", return_all)
    request = Request(find_kernel("copy"), GPU, ())
    result = SimpleNamespace(ended=None)
    (ran,) = drive(made, [request], lambda asked, _: (result, asked))
    assert ran.error is None
    assert uuids([ran.published.device, *ran.published.others]) == ["a", "b"]

"""Large arrays in pieces: the same results on any number of cores, and no value changed unseen."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from threading import Event
from typing import Any

import numpy as np
import pytest

from autotune.arrays import (
    PIECE,
    converted,
    in_pieces,
    in_threads,
    narrowed,
)
from autotune.data.draw import Draw

#: Several pieces, and a last, shorter one.
SIZE = 7 * 123_310
assert 3 * PIECE < SIZE < 4 * PIECE - 1000
DRAWS: dict[str, Callable[[Draw], Any]] = {
    "normal": lambda draw: draw.standard_normal((7, 123_310)),
    "double": lambda draw: draw.standard_normal((7, 123_310), np.float64),
    "half": lambda draw: draw.standard_normal(SIZE, np.float16),
    "uniform": lambda draw: draw.uniform(2, 3, (1233, 700)),
}


@contextmanager
def on_a_single_core():
    """Nothing that begins in here has another core."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    yield
    os.sched_setaffinity(0, allowed)


@pytest.fixture(params=[on_a_single_core, nullcontext])
def cores(request):
    """A single core to work on, then all."""
    with request.param():
        yield


def awkward():
    """Float64 values of which each is a float32, special ones among them."""
    values = np.random.default_rng(2).standard_normal((700, 900)).astype(np.float32)
    values.flat[[0, 123_456, 629_999]] = (np.nan, np.inf, -np.inf)
    values.flat[7] = -0.0
    return values.astype(np.float64)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", DRAWS)
def test_numbers_depend_on_the_key_alone(name, exact):
    drawn = DRAWS[name](Draw(exact, 17))
    with on_a_single_core():
        assert drawn.tobytes() == DRAWS[name](Draw(exact, 17)).tobytes()
    assert drawn.tobytes() != DRAWS[name](Draw(exact, 18)).tobytes()


@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize("name", DRAWS)
def test_no_piece_and_no_array_repeats_another(name):
    generator = Draw(False, 5)
    first, second = (DRAWS[name](generator).reshape(-1) for _ in range(2))
    cut = [drawn[i * PIECE : i * PIECE + 465] for drawn in (first, second) for i in range(4)]
    assert len({piece.tobytes() for piece in cut}) == 8


@pytest.mark.usefixtures("cores")
def test_pieces_cover_a_range_once_in_order():
    done = in_pieces(lambda number, begin, end: (number, begin, end), 2501, 500)
    assert done == [(i, 500 * i, min(500 * i + 500, 2501)) for i in range(6)]
    assert in_pieces(lambda *_: 1, 0) == []


@pytest.mark.usefixtures("cores")
def test_the_first_piece_that_fails_fails_the_whole():
    def work(number, *_):
        if number == 2:
            raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        in_pieces(work, 10, 2)


@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize(
    "view",
    [
        lambda a: a,
        lambda a: a.T,
        lambda a: a[::-1, 1:],
        lambda a: a[:, 3],
        lambda a: a.reshape(7, 100, 900).transpose(2, 0, 1),
    ],
)
def test_a_conversion_changes_the_type_alone(view):
    array = view(np.random.default_rng(4).standard_normal((700, 900)).astype(np.float32))
    wide = converted(array, np.float64)
    assert wide.dtype == np.float64 and wide.flags.c_contiguous
    np.testing.assert_array_equal(wide, array)
    back = narrowed(view(awkward()), np.float32)
    assert back is not None and back.dtype == np.float32 and back.flags.c_contiguous
    np.testing.assert_array_equal(back, view(awkward()))
    assert np.signbit(back).tobytes() == np.signbit(view(awkward())).tobytes()


@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize("place", [0, 300_000, 629_999])
@pytest.mark.parametrize("value", [1 / 3, 1e300, 1 + 2.0**-24])
def test_one_value_that_would_change_forbids_a_narrower_type(place, value):
    array = awkward()
    array.flat[place] = value
    assert narrowed(array, np.float32) is None
    assert narrowed(array.T, np.float32) is None
    assert narrowed(array, np.float64) is not None


def test_threads_keep_the_order_and_end_with_an_error() -> None:
    begun, go_on = list[int](), Event()

    def work(number: int) -> int:
        begun.append(number)
        if number == 1:
            raise ValueError("no more")
        go_on.wait(0.01)
        return number * number

    assert in_threads(lambda number: number * number, range(5), 3) == [0, 1, 4, 9, 16]
    assert in_threads(work, (), 0) == []
    with pytest.raises(ValueError, match="no more"):
        in_threads(work, range(1000), 2)
    ended = len(begun)
    time.sleep(0.05)
    assert len(begun) == ended < 1000


def test_an_interrupt_waits_for_no_thread() -> None:
    """One would take ten minutes."""
    begun, go_on = Event(), Event()

    def work(number: int) -> bool:
        if number:
            begun.wait()
            raise KeyboardInterrupt
        begun.set()
        return go_on.wait(600)

    with pytest.raises(KeyboardInterrupt):
        in_threads(work, (1, 0), 2)
    go_on.set()

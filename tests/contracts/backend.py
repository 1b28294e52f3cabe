"""What every backend must do: list devices, compile anywhere, and execute on one device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from autotune.devices.base import (
    GUARD_BYTES,
    BoundFill,
    BoundLaunch,
    Comparison,
    CompileError,
    LaunchError,
    Poison,
    Side,
)
from autotune.devices.choose import backend, choose_device
from autotune.devices.device import Clocks
from autotune.errors import DeviceError
from autotune.kernel.includes import flattened

KERNELS = Path(__file__).parents[1] / "data" / "kernels"
ONE = (1, 1, 1)
#: Sizes around what hardware likes: a byte, a warp, an alignment, a page, several pieces of the compare.
ODD_COUNTS = (1, 3, 31, 257, 1023, 600_001)
DTYPES = (
    "float16",
    "float32",
    "float64",
    "int8",
    "uint8",
    "int16",
    "int32",
    "uint32",
    "int64",
    "uint64",
)


def source():
    return flattened(KERNELS / "contract.cu").text


class CompileContract:
    """Subclass with ``name``, and ``device``: what to compile for; no context is made."""

    name: str

    @pytest.fixture
    def device(self):
        raise NotImplementedError

    def compiled(self, device, text, *options, **defines):
        written = {key: str(value) for key, value in defines.items()}
        return backend(self.name).compile(text, written, options, device)

    def test_the_toolchain_has_a_name_and_a_version(self):
        """It is part of every binary's key: without the version an update would go unnoticed."""
        toolchain = backend(self.name).toolchain()
        assert any(letter.isdigit() for letter in toolchain)
        assert toolchain == backend(self.name).toolchain()

    def test_every_kernel_function_is_reported(self, device):
        binary = self.compiled(device, source())
        names = {entry.name for entry in binary.entries}
        assert names == {"scaled", "reversed_tile", "poke", "typed", "where", "spin"}
        assert binary.code
        assert binary.entry("nothing") is None

    def test_static_shared_memory_is_reported(self, device):
        binary = self.compiled(device, source())
        tile, spin = binary.entry("reversed_tile"), binary.entry("spin")
        assert tile and spin
        assert 1024 <= tile.shared_bytes < 4096
        assert spin.shared_bytes < 1024

    def test_defines_reach_the_source(self, device):
        text = "#if FACTOR != 7\n#error factor is not seven\n#endif\n" + source()
        assert self.compiled(device, text, FACTOR=7).code
        with pytest.raises(CompileError, match="factor is not seven"):
            self.compiled(device, text, FACTOR=8)

    def test_a_mistake_fails_with_the_compilers_words_and_line(self, device):
        text = source().replace("out[index] = value;", "out[index] = valeu;")
        with pytest.raises(CompileError, match="valeu") as caught:
            self.compiled(device, text)
        assert "contract.cu" in str(caught.value)

    def test_an_empty_source_is_no_crash(self, device):
        try:
            assert self.compiled(device, "").entries == ()
        except CompileError as error:
            assert str(error)


class ExecutorContract:
    """Subclass with ``selector``, the device to execute on."""

    selector: str

    @pytest.fixture(scope="class")
    @classmethod
    def executor(cls):
        device = choose_device(cls.selector)
        return backend(device.backend).open(device)

    @pytest.fixture(scope="class")
    @classmethod
    def module(cls, executor):
        binary = backend(executor.device.backend).compile(source(), {}, (), executor.device)
        return executor.load(binary, {})

    def buffer(self, executor, array, offset_bytes=0):
        """A buffer that holds an array, between intact guard bands."""
        given = np.asarray(array)
        made = executor.allocate(given.nbytes, offset_bytes)
        executor.restore_guards(made)
        executor.write(made, given)
        return made

    def intact(self, executor, buffer):
        """Return whether no guard band of a buffer has changed since `restore_guards`."""
        _, (found,), _ = executor.inspect([], [buffer])
        return found

    def same(self, executor, buffer, other):
        """Whether two buffers hold the same bytes."""
        _, _, (found,) = executor.inspect([], [], [(buffer, other)])
        return found

    # ------------------------------------------------------------ devices

    def test_devices_are_told_apart_and_know_their_limits(self):
        kind = backend(self.selector.partition(":")[0])
        devices = kind.devices()
        assert devices == kind.devices()
        assert kind.why_unavailable() == ""
        assert len({device.selector for device in devices}) == len(devices)
        for device in devices:
            assert device.backend == kind.name
            assert device.name and device.arch and device.uuid and device.driver
            assert device.max_threads_per_block >= 256
            assert device.shared_bytes_per_block >= 16 * 1024
            assert device.l2_bytes > 0
            assert device.memory_bytes > 1 << 28
            assert choose_device(device.selector) == device

    def test_the_executor_knows_its_device(self, executor):
        assert executor.device == choose_device(self.selector)
        assert isinstance(executor.clocks(), Clocks)

    # ------------------------------------------------------------ buffers

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("count", ODD_COUNTS)
    def test_what_is_written_is_read(self, executor, dtype, count):
        array = np.random.default_rng(count).integers(0, 100, count).astype(dtype)
        buffer = self.buffer(executor, array)
        read = executor.read(buffer, np.dtype(dtype), (count,))
        assert read.dtype == array.dtype
        assert np.array_equal(read, array)
        assert self.intact(executor, buffer)

    def test_arrays_of_any_layout_and_structured_ones_are_written_in_order(self, executor):
        square = np.arange(12, dtype=np.float32).reshape(3, 4).T
        assert np.array_equal(
            executor.read(self.buffer(executor, square), np.dtype("f4"), (4, 3)), square
        )
        pairs = np.array([(1, 2.5), (3, 4.5)], dtype=[("key", "i4"), ("value", "f4")])
        raw = executor.read(self.buffer(executor, pairs), np.dtype("u1"), (16,))
        assert raw.tobytes() == pairs.tobytes()

    def test_more_memory_than_there_is_is_a_memory_error(self, executor):
        with pytest.raises(MemoryError, match="bytes"):
            executor.allocate(1 << 50)
        assert self.intact(executor, self.buffer(executor, np.zeros(64, np.uint8)))

    @pytest.mark.parametrize("nbytes", [4, 12, 1020, 4096])
    def test_a_write_beyond_either_end_is_seen(self, executor, module, nbytes):
        """One element past the end or before the start, and at the far edge of the guard bands."""
        count, band = nbytes // 4, GUARD_BYTES // 4
        buffer = self.buffer(executor, np.arange(count, dtype=np.int32))
        for index in (-1, count, -band, count + band - 1):
            self.poke(executor, module, buffer, index, 5)
            assert not self.intact(executor, buffer), index
            executor.restore_guards(buffer)
            assert self.intact(executor, buffer)
        self.poke(executor, module, buffer, count - 1, 77)
        self.poke(executor, module, buffer, 0, 77)
        assert self.intact(executor, buffer)
        assert executor.read(buffer, np.dtype("i4"), (count,))[-1] == 77

    @pytest.mark.parametrize("count", [1, 3, 5, 1001])
    @pytest.mark.parametrize("offset_bytes", [4, 8, 12])
    def test_a_buffer_begins_where_it_is_to_and_lies_between_guard_bands_there(
        self, executor, module, offset_bytes, count
    ):
        array = np.arange(count, dtype=np.int32)
        if not executor.device.is_cuda:
            with pytest.raises(
                DeviceError, match=f"aligned, without an offset of {offset_bytes} bytes"
            ):
                executor.allocate(array.nbytes, offset_bytes)
            return
        one, other = (self.buffer(executor, array, offset_bytes) for _ in range(2))
        assert self.address(one) % 256 == offset_bytes
        assert np.array_equal(executor.read(one, np.dtype("i4"), (count,)), array)
        band = (GUARD_BYTES + offset_bytes) // 4
        for index in (-1, -band, count):
            self.poke(executor, module, one, index, 5)
            assert not self.intact(executor, one), index
            executor.restore_guards(one)
            assert self.intact(executor, one)
        for index in {0, count // 2, count - 1}:
            self.poke(executor, module, one, index, 77)
            assert not self.same(executor, one, other), index
            executor.copy(one, other)
            assert self.same(executor, one, other)
        executor.poison(one, Poison.NAN)
        assert (executor.read(one, np.dtype("i4"), (count,)) == -1).all()
        executor.run(module, [BoundFill(one, np.int32(12345))])
        assert (executor.read(one, np.dtype("i4"), (count,)) == 12345).all()
        assert self.intact(executor, one)

    def address(self, buffer):
        """Where a buffer begins, of a backend that places arrays."""
        raise NotImplementedError

    def poke(self, executor, module, buffer, index, value):
        args = (buffer, np.int32(index), np.int32(value))
        executor.run(module, [BoundLaunch("poke", ONE, ONE, 0, args)])

    @pytest.mark.parametrize("count", ODD_COUNTS)
    def test_poison_is_nan_or_a_large_number_and_stays_inside(self, executor, count):
        buffer = self.buffer(executor, np.zeros(count, np.int32))
        executor.poison(buffer, Poison.NAN)
        assert np.isnan(executor.read(buffer, np.dtype("f4"), (count,))).all()
        assert (executor.read(buffer, np.dtype("i4"), (count,)) == -1).all()
        executor.poison(buffer, Poison.FINITE)
        assert (
            executor.read(buffer, np.dtype("f4"), (count,)) == np.frombuffer(b"{{{{", "f4")
        ).all()
        assert (executor.read(buffer, np.dtype("i4"), (count,)) == 2071690107).all()
        assert self.intact(executor, buffer)

    @pytest.mark.parametrize("nbytes", ODD_COUNTS)
    def test_a_copy_is_equal_and_leaves_its_source(self, executor, nbytes):
        array = np.random.default_rng(0).integers(0, 255, nbytes).astype(np.uint8)
        source, target = self.buffer(executor, array), self.buffer(executor, array[::-1] ^ 0xFF)
        assert not self.same(executor, source, target)
        executor.copy(target, source)
        assert self.same(executor, source, target)
        assert np.array_equal(executor.read(source, np.dtype("u1"), (nbytes,)), array)
        assert self.intact(executor, target)

    @pytest.mark.parametrize("position", [0, 500, 1000])
    def test_equal_means_every_byte(self, executor, position):
        array = np.zeros(1001, np.uint8)
        buffer = self.buffer(executor, array)
        array[position] ^= 1
        assert not self.same(executor, buffer, self.buffer(executor, array))

    def test_equal_compares_bytes_not_numbers(self, executor):
        """NaN was changed by nobody; a zero that changed its sign was changed."""
        nan = np.array([np.nan], np.float32)
        assert self.same(executor, self.buffer(executor, nan), self.buffer(executor, nan))
        zeros = (np.array([sign], np.float32) for sign in (0.0, -0.0))
        assert not self.same(executor, *(self.buffer(executor, zero) for zero in zeros))

    # ------------------------------------------------------------ comparing

    def compared(self, executor, got, want, bound=0.0):
        """How an output differs from its expectation: of float64, or an integer of its own type."""
        found = np.asarray(got)
        expected = np.asarray(want, np.float64 if found.dtype.kind == "f" else found.dtype)
        return self.differences(executor, (found, expected, bound))[0]

    def differences(self, executor, *asked):
        """How outputs differ from expectations that are stored as they come."""
        comparisons = [
            Comparison(
                self.buffer(executor, got), got.dtype, self.buffer(executor, want), got.size, bound
            )
            for got, want, bound in asked
        ]
        return executor.inspect(comparisons)[0]

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("count", ODD_COUNTS)
    def test_one_wrong_element_is_found_wherever_it_is(self, executor, dtype, count):
        right = np.random.default_rng(1).integers(0, 100, count).astype(dtype)
        found = self.compared(executor, right, right)
        assert (found.max_error, found.rms_error, found.first_wrong) == (0, 0, None)
        for position in {0, count // 2, count - 1}:
            wrong = right.copy()
            wrong[position] += 1
            found = self.compared(executor, wrong, right)
            assert (found.max_error, found.first_wrong) == (1, position)
            assert found.rms_error == pytest.approx(count**-0.5)

    def test_the_first_of_several_wrong_elements_is_named(self, executor):
        want = np.zeros(900_000)
        got = want.astype(np.float32)
        got[[899_999, 331_337, 400_000]] = (1, -4, 2)
        found = self.compared(executor, got, want)
        assert (found.max_error, found.first_wrong) == (4, 331_337)
        assert found.rms_error == pytest.approx((21 / 900_000) ** 0.5)

    def test_an_error_of_exactly_the_bound_is_right(self, executor):
        got = np.array([1.5, -0.5], np.float32)
        assert self.compared(executor, got, [1, 0], bound=0.5).first_wrong is None
        assert self.compared(executor, got, [1, 0], bound=0.499).first_wrong == 0

    @pytest.mark.parametrize(("dtype", "kind"), [("f2", "f4"), ("f4", "f4"), ("f8", "f8")])
    def test_each_element_may_have_a_bound_of_its_own(self, executor, dtype, kind):
        """The first wrong element is not the one that is furthest off."""
        want, bounds = np.ones(900_000), np.full(900_000, 3.0, kind)
        got = want.astype(dtype)
        got[[5, 331_337, 899_999]] = (4, 1.25, 2)
        bounds[[331_337, 899_999]] = (0.125, 0.0)
        comparison = Comparison(
            self.buffer(executor, got),
            got.dtype,
            self.buffer(executor, want),
            got.size,
            9.0,
            self.buffer(executor, bounds),
        )
        (found,) = executor.inspect([comparison])[0]
        assert (found.max_error, found.first_wrong) == (3, 331_337)

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
    def test_nan_and_infinity_are_right_only_where_they_are_expected(self, executor, dtype):
        inf, nan = np.inf, np.nan
        special = np.array([nan, inf, -inf, 1], dtype)
        assert self.compared(executor, special, special).first_wrong is None
        for got, want in ((nan, 1), (1, nan), (inf, -inf), (inf, nan), (inf, 1), (1, inf)):
            found = self.compared(executor, np.array([0, got], dtype), [0, want], bound=1e30)
            assert found.first_wrong == 1, (got, want)
            assert found.max_error == inf

    def test_a_poisoned_output_is_wrong_from_its_first_element(self, executor):
        for dtype, wide, bound in (("f4", "f8", 1e7), ("i4", "i4", 0.0), ("?", "?", 0.0)):
            want = self.buffer(executor, np.ones(100, wide))
            buffer = executor.allocate(100 * np.dtype(dtype).itemsize)
            for poison in (Poison.NAN, Poison.FINITE):
                executor.poison(buffer, poison)
                comparison = Comparison(buffer, np.dtype(dtype), want, 100, bound)
                assert executor.inspect([comparison])[0][0].first_wrong == 0, (dtype, poison)

    def test_negative_zero_is_zero(self, executor):
        assert self.compared(executor, np.array([-0.0], np.float32), [0.0]).first_wrong is None

    @pytest.mark.parametrize("dtype", ["float16", "float32"])
    def test_expectations_may_be_stored_as_float32(self, executor, dtype):
        got = np.arange(1000).astype(dtype)
        wrong, want = got.copy(), got.astype(np.float32)
        wrong[[700, 999]] += 2
        right, off = self.differences(executor, (got, want, 0.0), (wrong, want, 1.0))
        assert (right.max_error, right.first_wrong) == (0, None)
        assert (off.max_error, off.first_wrong) == (2, 700)

    @pytest.mark.parametrize(
        ("dtype", "got", "want", "off"),
        [
            ("int64", 2**60 + 100, 2**60, 100),
            ("int64", -(2**63), -(2**63) + 1, 1),
            ("int64", -(2**63), 2**63 - 1, 2**64),
            ("uint64", 2**64 - 1, 2**64 - 2, 1),
            ("uint64", 0, 2**64 - 1, 2**64),
            ("int8", -128, 127, 255),
            ("uint8", 0, 255, 255),
            ("uint16", 65535, 0, 65535),
            ("bool", False, True, 1),
        ],
    )
    def test_integers_are_compared_bit_for_bit(self, executor, dtype, got, want, off):
        """As float64 the first would be equal from 2^53 on; how far they are off is rounded only."""
        found, expected = np.full(3, want, dtype), np.full(3, want, dtype)
        found[1] = got
        right, wrong = self.differences(executor, (expected, expected, 0.0), (found, expected, 0.0))
        assert (right.max_error, right.first_wrong) == (0, None)
        assert (wrong.max_error, wrong.first_wrong) == (off, 1)

    def test_float64_keeps_its_last_bit(self, executor):
        found = self.compared(executor, np.array([1.0, 1 + 2.0**-52]), [1.0, 1.0])
        assert (found.max_error, found.first_wrong) == (2.0**-52, 1)

    def test_everything_is_looked_at_together(self, executor, module):
        """Results of several outputs, of guards and of bytes do not mix."""
        arrays = [np.arange(7, dtype=dtype) for dtype in ("f4", "i8", "f2")]
        buffers = [self.buffer(executor, array) for array in arrays]
        wanted = [self.buffer(executor, np.arange(7, dtype=dtype)) for dtype in ("f8", "i8", "f8")]
        asked = [
            Comparison(buffer, array.dtype, want, 7, 0.0)
            for buffer, array, want in zip(buffers, arrays, wanted, strict=True)
        ]
        pairs = [(buffers[1], wanted[1]), (wanted[0], wanted[2])]
        found, intact, same = executor.inspect(asked, buffers, pairs)
        assert [one.first_wrong for one in found] == [None] * 3
        assert (intact, same) == ([True] * 3, [True] * 2)
        self.poke(executor, module, buffers[1], 2 * 5, 1)
        self.poke(executor, module, buffers[2], 4, 1)
        found, intact, same = executor.inspect(asked, buffers, pairs)
        assert [(one.first_wrong, one.max_error) for one in found] == [(None, 0), (5, 4), (None, 0)]
        assert (intact, same) == ([True, True, False], [False, True])

    def test_expectations_keep_double_precision(self, executor):
        """Rounded to the output's type first, an error of half a step would vanish."""
        found = self.compared(executor, np.array([1.0], np.float32), [1 + 2.0**-30], bound=1.0)
        assert found.max_error == 2.0**-30

    def test_a_half_that_overflowed_is_wrong(self, executor):
        found = self.compared(executor, np.array([np.inf], np.float16), [70_000.0], bound=1.0)
        assert found.first_wrong == 0

    # ------------------------------------------------------------ running

    @pytest.mark.parametrize("count", ODD_COUNTS)
    def test_a_kernel_computes(self, executor, module, count):
        x = np.arange(count, dtype=np.float32)
        out = self.buffer(executor, np.full(count, -9, np.float32))
        args = (self.buffer(executor, x), out, np.float32(0.5), np.int32(count))
        executor.run(module, [BoundLaunch("scaled", (-(-count // 64), 1, 1), (64, 1, 1), 0, args)])
        assert np.array_equal(executor.read(out, np.dtype("f4"), (count,)), 2 * x + 0.5)
        assert self.intact(executor, out)

    def test_shared_memory_and_barriers_work(self, executor, module):
        x = np.arange(256, dtype=np.float32)
        out = executor.allocate(1024)
        args = (self.buffer(executor, x), out)
        executor.run(module, [BoundLaunch("reversed_tile", ONE, (32, 1, 1), 0, args)])
        assert np.array_equal(executor.read(out, np.dtype("f4"), (256,)), x[::-1])

    def test_grid_and_block_have_their_dimensions(self, executor, module):
        out = self.buffer(executor, np.full((6, 8), -1, np.int32))
        step = BoundLaunch("where", (2, 3, 1), (4, 2, 1), 0, (out, np.int32(8)))
        executor.run(module, [step])
        y, x = np.mgrid[0:6, 0:8]
        expected = 1000 * (y // 2) + 100 * (x // 4) + 10 * (y % 2) + x % 4
        assert np.array_equal(executor.read(out, np.dtype("i4"), (6, 8)), expected)

    def test_scalars_arrive_in_their_type(self, executor, module):
        out = executor.allocate(40)
        scalars = (
            np.int64(2**40 + 1),
            np.int32(-7),
            np.float32(0.1),
            np.float64(0.1),
            np.uint8(200),
        )
        executor.run(module, [BoundLaunch("typed", ONE, ONE, 0, (out, *scalars))])
        read = executor.read(out, np.dtype("f8"), (5,))
        assert read.tolist() == [2**40 + 1, -7, float(np.float32(0.1)), 0.1, 200]

    @pytest.mark.parametrize(
        "value",
        [np.float32(0), np.float32(-1.5), np.float16(0.1), np.float64(1e300), np.int32(-1),
         np.int32(258), np.int8(3), np.int64(2**40), np.uint8(255)],
        ids=repr,
    )  # fmt: skip
    @pytest.mark.parametrize("count", [1, 3, 1000, 4099])
    def test_a_fill_sets_every_element_and_no_more(self, executor, module, value, count):
        buffer = self.buffer(executor, np.full(count, 7, value.dtype))
        executor.run(module, [BoundFill(buffer, value)])
        assert (executor.read(buffer, value.dtype, (count,)) == value).all()
        assert self.intact(executor, buffer)

    def test_steps_run_in_order_every_time(self, executor, module):
        buffer = self.buffer(executor, np.zeros(4, np.int32))

        def poke(value):
            return BoundLaunch("poke", ONE, ONE, 0, (buffer, np.int32(1), np.int32(value)))

        steps = [poke(5), BoundFill(buffer, np.int32(3)), poke(6)]
        for _ in range(3):
            executor.run(module, steps)
            assert executor.read(buffer, np.dtype("i4"), (4,)).tolist() == [3, 6, 3, 3]
        executor.run(module, steps[::-1])
        assert executor.read(buffer, np.dtype("i4"), (4,)).tolist() == [3, 5, 3, 3]

    def test_a_refused_launch_leaves_the_context_usable(self, executor, module):
        buffer = self.buffer(executor, np.zeros(4, np.int32))
        args = (buffer, np.int32(1), np.int32(5))
        refused = [
            BoundLaunch("poke", ONE, (1 << 20, 1, 1), 0, args),
            BoundLaunch("no_such_kernel", ONE, ONE, 0, args),
        ]
        for step in refused:
            with pytest.raises(LaunchError):
                executor.run(module, [step])
        executor.run(module, [BoundLaunch("poke", ONE, ONE, 0, args)])
        assert executor.read(buffer, np.dtype("i4"), (4,)).tolist() == [0, 5, 0, 0]

    def test_a_foreign_binary_is_refused(self, executor):
        binary = backend(executor.device.backend).compile(source(), {}, (), executor.device)
        with pytest.raises(LaunchError):
            executor.load(type(binary)(b"no code at all", binary.entries, "", "key"), {})

    def test_two_binaries_are_loaded_side_by_side(self, executor):
        x, out = self.buffer(executor, np.ones(1, np.float32)), executor.allocate(4)
        args = (x, out, np.float32(0), np.int32(1))
        modules = {}
        for factor in (3, 4):
            kind = backend(executor.device.backend)
            binary = kind.compile(source(), {"FACTOR": str(factor)}, (), executor.device)
            modules[factor] = executor.load(binary, {})
        for factor in (3, 4, 3):
            step = BoundLaunch("scaled", ONE, (64, 1, 1), 0, args)
            executor.run(modules[factor], [step])
            assert executor.read(out, np.dtype("f4"), (1,))[0] == factor

    def test_sequences_at_once_run_each_on_its_own_buffers(self, executor, module):
        """So often, each made fresh before; the executor goes on where it was."""
        n = 100_003
        x = self.buffer(executor, np.arange(n, dtype=np.float32))
        outs, fresh = [executor.allocate(4 * n) for _ in range(2)], [0, 0]
        sides = []
        for place, out in enumerate(outs):
            args = (x, out, np.float32(place), np.int32(n))

            def renew(place=place, out=out):
                fresh[place] += 1
                executor.poison(out)

            sides.append(
                Side(renew, [BoundLaunch("scaled", (-(-n // 64), 1, 1), (64, 1, 1), 0, args)])
            )
            executor.run(module, sides[-1].steps)
        run = executor.at_once(module, sides, 3)
        for _ in range(2):
            for out in outs:
                executor.poison(out)
            run()
            for place, out in enumerate(outs):
                expected = 2 * np.arange(n, dtype=np.float32) + place
                assert np.array_equal(executor.read(out, np.dtype(np.float32), (n,)), expected)
        assert all(count >= 3 for count in fresh)
        assert executor.run(module, sides[0].steps) > 0

    # ------------------------------------------------------------ timing

    def spin(self, executor, turns):
        buffer = self.buffer(executor, np.zeros(32, np.float32))
        return BoundLaunch("spin", ONE, (32, 1, 1), 0, (buffer, np.int32(turns)))

    def ready(self, executor, module, steps, cold=True):
        """A timer of a sequence, which has run before as timers ask."""
        executor.run(module, steps)
        return executor.timer(module, steps, cold)

    @pytest.mark.parametrize("cold", [True, False], ids=["cold", "hot"])
    def test_a_timer_takes_as_many_samples_as_asked_again_and_again(self, executor, module, cold):
        timer = self.ready(executor, module, [self.spin(executor, 1000)], cold)
        for take in (timer, timer.clean, timer.hot):
            for count in (0, 1, 5):
                samples = take(count)
                assert len(samples) == count
                assert all(isinstance(sample_ms, float) and sample_ms > 0 for sample_ms in samples)

    def test_what_a_timer_takes_grows_with_the_work(self, executor, module):
        """Hot samples too: they are milliseconds of one call, however many make a batch."""
        little, much = (
            self.ready(executor, module, [self.spin(executor, turns)])
            for turns in (20_000, 6_000_000)
        )
        assert min(much(3)) > 20 * min(little(5))
        assert min(much.hot(3)) > 20 * min(little.hot(5))
        assert min(much.clean(3)) > 20 * min(little.clean(5))

    def test_a_sustained_load_ends_when_it_is_enough(self, executor, module):
        """And tells how many calls are done: no more than have run, and more and more."""
        x, out = self.buffer(executor, np.ones(64, np.float32)), executor.allocate(256)
        args = (x, out, np.float32(1), np.int32(64))
        timer = self.ready(executor, module, [BoundLaunch("scaled", ONE, (64, 1, 1), 0, args)])
        for launched_by in ("as it is", "launch by launch"):
            told: list[int] = []

            def is_enough(calls, told=told):
                told.append(calls)
                return calls >= 100

            executor.poison(out)
            timer.sustained(is_enough)
            assert told[0] == 0 and told[-2] < 100 <= told[-1], launched_by
            assert told == sorted(told)
            assert (executor.read(out, np.dtype("f4"), (64,)) == 3).all()
            timer.by_stream()

    def test_every_step_is_in_a_timers_sample(self, executor, module):
        fill = BoundFill(executor.allocate(64), np.int32(0))
        little, much = (self.spin(executor, turns) for turns in (2_000, 3_000_000))
        short = self.ready(executor, module, [little, fill, little])
        for steps in ([much, fill, little], [little, fill, much]):
            long = self.ready(executor, module, steps)
            assert min(long(3)) > 5 * min(short(5))
            assert min(long.hot(3)) > 5 * min(short.hot(5))

    def test_a_timer_runs_the_sequence_each_time(self, executor, module):
        """On what the buffers hold then, as a graph and launch by launch."""
        x, out = (self.buffer(executor, np.ones(64, np.float32)) for _ in range(2))
        args = (x, out, np.float32(1), np.int32(64))
        timer = self.ready(executor, module, [BoundLaunch("scaled", ONE, (64, 1, 1), 0, args)])
        takes = (timer, timer.clean, timer.hot)
        for number, take in enumerate(takes + takes):
            if number == 3:
                timer.by_stream()
                assert timer.launched_by == "stream"
            executor.write(x, np.full(64, number, np.float32))
            executor.poison(out)
            take(2)
            if take == timer.hot:
                executor.poison(out)
                assert len(timer.singly(1)) == 1
            read = executor.read(out, np.dtype("f4"), (64,))
            assert (read == 2 * number + 1).all(), number
        assert self.intact(executor, out)

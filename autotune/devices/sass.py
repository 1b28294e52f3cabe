"""Reads the SASS of a function: widths of memory accesses, share of arithmetic, and loops."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

_LINE = re.compile(
    r"/\*(?P<at>[0-9a-f]{4,})\*/\s+(?:@(?P<guard>!?U?P\w+)\s+)?(?P<opcode>[A-Z][\w.]*)(?P<rest>[^;]*);"
)
_LABEL = re.compile(r"^(\.L_\w+):", re.MULTILINE)
_TARGET = re.compile(r"\((\.L_\w+)\)|\b0x([0-9a-f]+)\s*$")
#: Bytes of an access by the suffix of the opcode; without a suffix an access has 4 bytes.
_BYTES = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16, "256": 32}
_LDSM_BYTES = {"1": 4, "2": 8, "4": 16}
#: Kinds of instructions by the first word of their opcode.
_KINDS = {
    **{"LDG": "global loads", "STG": "global stores", "LDGSTS": "asynchronous copies"},
    **{"LDS": "shared loads", "LDSM": "shared loads", "STS": "shared stores"},
    **{"STSM": "shared stores", "LDL": "local loads", "STL": "local stores"},
}
#: Kinds of memory accesses.
ACCESSES = tuple(dict.fromkeys(_KINDS.values()))
#: Bulk copies: one thread starts the copy of a whole tile.
_BULK = ("UBLKCP", "UTMALDG", "UTMASTG", "UBLKRED")
#: Floating-point instructions of the normal lanes.
_LANES = ("FFMA", "FFMA2", "FMUL", "FADD", "DFMA", "DMUL", "DADD", "HFMA2", "HMUL2", "HADD2")
#: Matrix instructions of tensor cores.
_TENSOR = ("HMMA", "HGMMA", "IMMA", "IGMMA", "QGMMA", "QMMA", "DMMA", "UTCHMMA", "UTCQMMA")
_BARRIERS = ("BAR", "SYNCS", "WARPSYNC", "WARPGROUP", "DEPBAR")
_ATOMICS = ("ATOM", "ATOMG", "ATOMS", "RED", "REDG", "REDUX")
#: Largest step of a loop counter; a larger step belongs to an address.
_MAX_STEP = 64
#: Instructions without a successor, unless a predicate guards them.
_ENDS = ("EXIT", "RET", "BRA", "BRX", "JMP", "JMX", "KILL")


@dataclass(frozen=True)
class Instruction:
    """One instruction of a function."""

    #: Address in the function.
    at: int
    opcode: str
    operands: str
    #: The predicate that guards it; empty without one.
    guard: str = ""
    #: Target address of a branch; None for other instructions, and if a register has the address.
    target: int | None = None

    @property
    def name(self) -> str:
        """First word of the opcode: ``LDG`` of ``LDG.E.128.CONSTANT``."""
        return self.opcode.partition(".")[0]

    @property
    def width(self) -> int:
        """Bytes that a thread accesses."""
        words = self.opcode.split(".")[1:]
        if words and self.name in ("LDSM", "STSM"):
            return _LDSM_BYTES.get(words[-1], 4)
        return next((_BYTES[word] for word in words if word in _BYTES), 4)


@dataclass(frozen=True)
class Mix:
    """The counts of instructions in a piece of code."""

    instructions: int
    #: Accesses by kind, such as ``global loads``, and by bytes per thread.
    accesses: Mapping[str, Mapping[int, int]]
    #: Floating-point and tensor instructions by name.
    arithmetic: Mapping[str, int]
    barriers: int = 0
    atomics: int = 0
    bulk_copies: int = 0
    branches: int = 0
    #: Instructions with a predicate, except branches and exits.
    predicated: int = 0
    calls: int = 0

    @classmethod
    def of(cls, code: Iterable[Instruction]) -> Mix:
        """Count instructions."""
        accesses: dict[str, Counter[int]] = {}
        names: Counter[str] = Counter()
        branches = predicated = 0
        for instruction in code:
            name = instruction.name
            if name == "HFMA2" and "-RZ, RZ" in instruction.operands:
                names["MOV"] += 1  # compilers load a constant into a register in this way
                continue
            names[name] += 1
            if kind := _KINDS.get(name):
                accesses.setdefault(kind, Counter())[instruction.width] += 1
            is_branch = name in ("BRA", "BRX")
            branches += is_branch
            predicated += bool(instruction.guard) and not is_branch and name not in _ENDS
        return cls(
            instructions=names.total(),
            accesses={kind: dict(widths) for kind, widths in accesses.items()},
            arithmetic={name: names[name] for name in (*_LANES, *_TENSOR) if names[name]},
            barriers=sum(names[name] for name in _BARRIERS),
            atomics=sum(names[name] for name in _ATOMICS),
            bulk_copies=sum(names[name] for name in _BULK),
            branches=branches,
            predicated=predicated,
            calls=names["CALL"],
        )

    @property
    def ffma(self) -> int:
        """Multiply-adds in float32; packed instructions of new devices count twice."""
        return self.arithmetic.get("FFMA", 0) + 2 * self.arithmetic.get("FFMA2", 0)

    @property
    def tensor(self) -> int:
        """Instructions of tensor cores."""
        return sum(count for name, count in self.arithmetic.items() if name in _TENSOR)

    def share(self, count: int) -> float:
        """Return a count's share of all instructions."""
        return count / self.instructions if self.instructions else 0.0

    @property
    def widest_loads(self) -> tuple[int, int]:
        """Bytes of the widest loads from global memory, and the number of these loads.

        Code often has a path with vector loads, and a path with single words for the remainder.
        """
        loads: Counter[int] = Counter()
        for kind in ("global loads", "asynchronous copies"):
            loads.update(self.accesses.get(kind, {}))
        width = max(loads, default=0)
        return width, loads[width]


@dataclass(frozen=True)
class Loop:
    """An innermost loop."""

    at: int
    body: Mix
    #: Change of the loop counter in one iteration; None if it was not found.
    step: int | None = None


@dataclass(frozen=True)
class FunctionCode:
    """The instructions of one function, and its loops."""

    mix: Mix
    #: Innermost loops, in the order of their addresses.
    loops: tuple[Loop, ...] = ()

    @cached_property
    def hottest(self) -> Loop | None:
        """The loop with most arithmetic; among equals, the loop with the widest loads.

        None without a loop, or if no loop has arithmetic or the widest loads. The loops then handle edges,
        and the main work is outside of loops.
        """

        def weight(loop: Loop) -> tuple[Any, ...]:
            return loop.body.tensor, loop.body.ffma, loop.body.widest_loads, loop.body.instructions

        found = max(self.loops, key=weight, default=None)
        if found is None or found.body.arithmetic:
            return found
        return found if found.body.widest_loads[0] == self.mix.widest_loads[0] else None


def code_of(text: str, symbol: str) -> FunctionCode | None:
    """Return the code of a function in nvdisasm's text; None if the function is not in it."""
    code = instructions_of(text, symbol)
    if not code:
        return None
    return FunctionCode(Mix.of(code), tuple(_innermost(code)))


def instructions_of(text: str, symbol: str) -> list[Instruction]:
    """Return the instructions of a function, without the padding after its end."""
    start = text.find(f".text.{symbol}:")
    if start < 0:
        return []
    end = text.find("\n//---------------------", start)
    body = text[start : end if end >= 0 else len(text)]
    labels, found = {}, list(_LINE.finditer(body))
    places = [match.start() for match in found]
    for label in _LABEL.finditer(body):
        after = next((i for i, place in enumerate(places) if place > label.start()), None)
        if after is not None:
            labels[label[1]] = int(found[after]["at"], 16)
    code = []
    for match in found:
        at, rest = int(match["at"], 16), match["rest"].strip()
        name = match["opcode"].partition(".")[0]
        target = None
        if name == "BRA" and (goal := _TARGET.search(rest)):
            target = labels.get(goal[1]) if goal[1] else int(goal[2], 16)
        if name == "NOP" or (name == "BRA" and target == at):
            continue
        code.append(Instruction(at, match["opcode"], rest, match["guard"] or "", target))
    return code


def _innermost(code: Sequence[Instruction]) -> Iterable[Loop]:
    """Yield the natural loops, found by their back edges, that contain no other loop.

    Loops that only wait, for example for a barrier in memory, are left out and do not count as inner loops.
    """
    index = {instruction.at: number for number, instruction in enumerate(code)}
    predecessors: list[list[int]] = [[] for _ in code]
    for number, instruction in enumerate(code):
        is_guarded = bool(instruction.guard or _condition(instruction))
        if number + 1 < len(code) and (instruction.name not in _ENDS or is_guarded):
            predecessors[number + 1].append(number)
        if instruction.target in index:
            predecessors[index[instruction.target]].append(number)
    bodies: dict[int, set[int]] = {}
    tails: dict[int, int] = {}
    for tail, branch in enumerate(code):
        head = index.get(branch.target, len(code)) if branch.target is not None else len(code)
        if head > tail:
            continue
        body, reached = {head}, [tail]
        while reached:
            number = reached.pop()
            if number not in body:
                body.add(number)
                reached.extend(predecessors[number])
        if 0 in body and head != 0:
            continue  # not a loop: code that the compiler moved out of line jumps back
        bodies[head] = bodies.get(head, set()) | body
        tails[head] = tail
    found = {head: [code[i] for i in sorted(body)] for head, body in bodies.items()}
    mixes = {head: Mix.of(inside) for head, inside in found.items()}
    working = [head for head, mix in sorted(mixes.items()) if mix.arithmetic or mix.accesses]
    for head in working:
        if not any(bodies[other] < bodies[head] for other in working):
            yield Loop(code[head].at, mixes[head], _step(found[head], code[tails[head]]))


def _condition(branch: Instruction) -> str:
    """Return the predicate among the operands of a branch, as in ``BRA.U UP0, `(.L_x_1)``."""
    found = re.match(r"!?U?P\d\b", branch.operands) if branch.name == "BRA" else None
    return found[0] if found else ""


def _step(body: Sequence[Instruction], branch: Instruction) -> int | None:
    """Return the change per iteration of the counter in a loop's condition; None if it is not found."""
    predicate = (branch.guard or _condition(branch)).lstrip("!")
    compares = [
        instruction
        for instruction in body
        if instruction.name in ("ISETP", "UISETP")
        and instruction.operands.startswith(f"{predicate},")
    ]
    if not predicate or not compares:
        return None
    for register in re.findall(r"\bU?R\d+\b", compares[-1].operands):
        add = re.compile(rf"{register}, (?:P\w+, )?{register}(?:\.reuse)?, (-?0x[0-9a-f]+)\b")
        for instruction in body:
            if instruction.name in ("IADD3", "VIADD", "UIADD3", "IADD", "UVIADD") and (
                found := add.match(instruction.operands)
            ):
                number = int(found[1], 16)
                number -= (1 << 32) if number >= 1 << 31 else 0
                return number if abs(number) <= _MAX_STEP else None
    return None

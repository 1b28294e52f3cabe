"""Reads SASS: the widths of memory accesses, the share of arithmetic, and the loops of one function."""

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
#: Bytes of an access by the part of the opcode that says so; without one it is a word of 4 bytes.
_BYTES = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16, "256": 32}
_LDSM_BYTES = {"1": 4, "2": 8, "4": 16}
#: Kinds of instructions by the first word of their opcode.
_KINDS = {
    **{"LDG": "global loads", "STG": "global stores", "LDGSTS": "asynchronous copies"},
    **{"LDS": "shared loads", "LDSM": "shared loads", "STS": "shared stores"},
    **{"STSM": "shared stores", "LDL": "local loads", "STL": "local stores"},
}
#: Those kinds.
ACCESSES = tuple(dict.fromkeys(_KINDS.values()))
#: Bulk copies, which one thread starts for a whole tile.
_BULK = ("UBLKCP", "UTMALDG", "UTMASTG", "UBLKRED")
#: Floating-point operations of the plain lanes, and matrix instructions of tensor cores.
_LANES = ("FFMA", "FFMA2", "FMUL", "FADD", "DFMA", "DMUL", "DADD", "HFMA2", "HMUL2", "HADD2")
_TENSOR = ("HMMA", "HGMMA", "IMMA", "IGMMA", "QGMMA", "QMMA", "DMMA", "UTCHMMA", "UTCQMMA")
_BARRIERS = ("BAR", "SYNCS", "WARPSYNC", "WARPGROUP", "DEPBAR")
_ATOMICS = ("ATOM", "ATOMG", "ATOMS", "RED", "REDG", "REDUX")
#: A larger step is that of an address.
_MOST_STEPS = 64
#: Nothing follows these unless a predicate guards them.
_ENDS = ("EXIT", "RET", "BRA", "BRX", "JMP", "JMX", "KILL")


@dataclass(frozen=True)
class Instruction:
    """One instruction of a function."""

    at: int
    opcode: str
    operands: str
    #: The predicate that guards it; empty without one.
    guard: str = ""
    #: Address that a branch leads to; None for others, and where a register says so.
    target: int | None = None

    @property
    def name(self) -> str:
        """The first word of the opcode: ``LDG`` of ``LDG.E.128.CONSTANT``."""
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
    """The instructions of a piece of code, counted."""

    instructions: int
    #: Accesses by kind, such as ``global loads``, and by bytes per thread.
    accesses: Mapping[str, Mapping[int, int]]
    #: Floating-point and tensor instructions by name.
    arithmetic: Mapping[str, int]
    barriers: int = 0
    atomics: int = 0
    bulk_copies: int = 0
    branches: int = 0
    #: Guarded by a predicate, branches and exits aside.
    predicated: int = 0
    calls: int = 0

    @classmethod
    def of(cls, code: Iterable[Instruction]) -> Mix:
        """Count instructions."""
        accesses: dict[str, Counter[int]] = {}
        names: Counter[str] = Counter()
        branches = predicated = 0
        for each in code:
            if each.name == "HFMA2" and "-RZ, RZ" in each.operands:
                names["MOV"] += 1  # how compilers write a constant into a register
                continue
            names[each.name] += 1
            if kind := _KINDS.get(each.name):
                accesses.setdefault(kind, Counter())[each.width] += 1
            is_branch = each.name in ("BRA", "BRX")
            branches += is_branch
            predicated += bool(each.guard) and not is_branch and each.name not in _ENDS
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
        """Multiply-adds in float32; the packed ones of new devices count twice."""
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
        """Bytes of the widest loads from global memory, and their number; code often has a path of
        whole vectors and one of single words for the rest."""
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
    #: By how much its counter changes in one pass; None if it was not found.
    step: int | None = None


@dataclass(frozen=True)
class FunctionCode:
    """The instructions of one function, and its loops."""

    mix: Mix
    #: Innermost ones, in the order of their addresses.
    loops: tuple[Loop, ...] = ()

    @cached_property
    def hottest(self) -> Loop | None:
        """The loop with most arithmetic, then the widest loads.

        None without a loop, or if no loop does arithmetic or the widest loads: the loops then handle
        edges, and the work is straight code.
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
    """Return the instructions of a function, without what fills up behind its end."""
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
    """Yield the natural loops that contain no other, as of their branches back.

    Loops that only wait, for a barrier in memory, say, are left out, and do not count as inner ones.
    """
    index = {each.at: i for i, each in enumerate(code)}
    before: list[list[int]] = [[] for _ in code]
    for i, each in enumerate(code):
        is_guarded = bool(each.guard or _condition(each))
        if i + 1 < len(code) and (each.name not in _ENDS or is_guarded):
            before[i + 1].append(i)
        if each.target in index:
            before[index[each.target]].append(i)
    bodies: dict[int, set[int]] = {}
    tails: dict[int, int] = {}
    for tail, each in enumerate(code):
        head = index.get(each.target, len(code)) if each.target is not None else len(code)
        if head > tail:
            continue
        body, reached = {head}, [tail]
        while reached:
            here = reached.pop()
            if here not in body:
                body.add(here)
                reached.extend(before[here])
        if 0 in body and head != 0:
            continue  # entered elsewhere: a jump back from code that was moved out of line
        bodies[head] = bodies.get(head, set()) | body
        tails[head] = tail
    found = {head: [code[i] for i in sorted(body)] for head, body in bodies.items()}
    mixes = {head: Mix.of(inside) for head, inside in found.items()}
    working = [head for head, mix in sorted(mixes.items()) if mix.arithmetic or mix.accesses]
    for head in working:
        if not any(bodies[other] < bodies[head] for other in working):
            yield Loop(code[head].at, mixes[head], _step(found[head], code[tails[head]]))


def _condition(branch: Instruction) -> str:
    """Return the predicate that a branch names as its operand, as in ``BRA.U UP0, `(.L_x_1)``."""
    found = re.match(r"!?U?P\d\b", branch.operands) if branch.name == "BRA" else None
    return found[0] if found else ""


def _step(body: Sequence[Instruction], branch: Instruction) -> int | None:
    """Return by how much the counter changes that a loop's branch depends on."""
    predicate = (branch.guard or _condition(branch)).lstrip("!")
    compares = [
        each
        for each in body
        if each.name in ("ISETP", "UISETP") and each.operands.startswith(f"{predicate},")
    ]
    if not predicate or not compares:
        return None
    for register in re.findall(r"\bU?R\d+\b", compares[-1].operands):
        add = re.compile(rf"{register}, (?:P\w+, )?{register}(?:\.reuse)?, (-?0x[0-9a-f]+)\b")
        for each in body:
            if each.name in ("IADD3", "VIADD", "UIADD3", "IADD", "UVIADD") and (
                found := add.match(each.operands)
            ):
                number = int(found[1], 16)
                number -= (1 << 32) if number >= 1 << 31 else 0
                return number if abs(number) <= _MOST_STEPS else None
    return None

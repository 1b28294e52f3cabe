"""Finds, reads and checks tuned records, at ``<directory>/<device folder>/<kernel>.json``.

Lookup imports this module, so heavy imports are inside the functions that use them.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from autotune.answers.table import MAX_LEVELS, OWN_FEATURES, Portfolio, Prediction, Split
from autotune.errors import RecordError, UsageError, unknown
from autotune.files import data_path
from autotune.kernel.expression import OPERATORS
from autotune.project import (
    Project,
    bundled_project,
    current_folder,
    folder_name,
    id_of,
    project_of,
    space_places,
)
from autotune.tuned.record import FORMAT, SCHEMA_VERSION, TunedRecord, key_of, moment
from autotune.values import SOURCE

if TYPE_CHECKING:
    from os import PathLike
    from pathlib import Path


#: Maximum number of bytes of a record: a hundred times the largest shipped record. Reading takes half a second.
MAX_BYTES = 32 << 20
#: Deepest nesting of operations in a stored expression; it bounds the recursion of functions that walk it.
MAX_DEPTH = 64


class DamagedRecord(RecordError):
    """A truncated or altered record, or a path that is not a file; `update` renames it."""


class RecordFile(NamedTuple):
    """A record, with the layer and the device folder of its file."""

    layer: str
    folder: str
    record: TunedRecord

    @property
    def source(self) -> str:
        """Return layer, device and kernel, for messages."""
        return f"{self.layer}:{self.folder}/{self.record.kernel}"


# ---------------------------------------------------------------------- folders


def layers(owner: Project) -> list[tuple[str, str]]:
    """Return names and folders of the layers of a project's records, highest priority first.

    They are ``AUTOTUNE_TUNED``, the user's data of the project, and the records next to its kernels.
    """
    given = os.environ.get("AUTOTUNE_TUNED")
    kept = "shipped" if owner == bundled_project() else "project"
    found = [("AUTOTUNE_TUNED", given or ""), ("user", user_folder(owner)), (kept, owner.reports)]
    return [(layer, folder) for layer, folder in found if folder]


def user_folder(owner: Project) -> str:
    """Return the folder of this user's records of a project."""
    return data_path("tuned", owner.folder)


def user_folders(kernel: str | None, spaces: Path | None = None) -> list[str]:
    """Return the folders of this user's records: of a kernel, or of the current project and the bundled kernels."""
    if kernel is not None:
        return [user_folder(owner_of(kernel, spaces=spaces))]
    names = dict.fromkeys([*members(current_project()), bundled_project().folder])
    return [data_path("tuned", name) for name in names]


def tuned_folders(kernel: str | None = None) -> list[str]:
    """Return the names of the folders of all projects with records of this user, or with records of a kernel."""
    return [
        folder.name
        for folder in _listed(data_path("tuned"))
        if folder.is_dir()
        and (
            kernel is None
            or any(
                os.path.lexists(os.path.join(device.path, f"{kernel}.json"))
                for device in _listed(folder.path)
            )
        )
    ]


def members(owner: Project, kernel: str | None = None) -> list[str]:
    """Return the names of the `tuned_folders` of a project, including its subfolders'."""
    whole = folder_name(owner.name)
    known = tuned_folders(kernel)
    return [name for name in known if name == whole or name.startswith(f"{whole}:")]


def owner_of(
    kernel: str, asked: str | PathLike[str] | Project | None = None, spaces: Path | None = None
) -> Project:
    """Return the project whose records answer for the name of a kernel.

    ``asked`` is the id or a folder of a project. Default: the project of the nearest space file of the name,
    else of the current folder. This function does not run space files. It leaves out the records in the
    current folder: anyone who can write there could choose the launched configuration.
    """
    if isinstance(asked, Project):
        return asked
    if asked is None:
        for place in space_places(spaces):
            file = os.path.join(place, f"{kernel}.py")
            if os.path.isfile(file):
                found = project_of(os.path.dirname(os.path.realpath(file)))
                return found if found == bundled_project() else found._replace(reports="")
        here = current_project()
    else:
        here = Project.of_id(asked) if isinstance(asked, str) else project_of(asked)
    known = members(here, kernel)
    if here.folder in known or not known:
        return bundled_project() if here.id == bundled_project().id else here
    if len(known) > 1:
        raise UsageError(
            f"{kernel} is tuned in several folders of project {here.name}: "
            f"{', '.join(map(id_of, known))}; select one: set AUTOTUNE_PROJECT, or pass lookup(project=)"
        )
    return Project.of_id(id_of(known[0]))


def current_project() -> Project:
    """Return the project of the current folder, without the records in that folder."""
    return project_of(current_folder())._replace(reports="")


def no_record(kernel: str, owner: Project) -> str:
    """Return the message that a project has no record of a kernel; it names the projects with one."""
    others = [id_of(name) for name in tuned_folders(kernel) if name != owner.folder]
    if not others and any(
        os.path.isfile(os.path.join(place, f"{kernel}.py")) for place in space_places()
    ):
        return f"no tuned record of {kernel} yet; make one with: autotune run {kernel}"
    if not others:
        names = kernel_names(owner, bundled_project()) - {kernel}
        known = unknown("kernel", kernel, sorted(names))
        return f"no tuned record: {known}; make one with: autotune run {kernel}"
    return (
        f"no tuned record of {kernel} in project {owner.id}; it is tuned in: {', '.join(others)}; "
        f"set AUTOTUNE_PROJECT to that project, or tune it here: autotune run {kernel}"
    )


def device_folders(layer: str, directory: str) -> list[str]:
    """Return the device folders of a layer.

    Records of CPUs do not ship: those in a checkout are also in the user's layer.
    """
    return [
        file.name
        for file in _listed(directory)
        if os.path.isdir(file.path) and (layer != "shipped" or not file.name.startswith("opencl_"))
    ]


def path_of(directory: Path, record: TunedRecord) -> Path:
    """Return the file of a record under a directory of tuned records."""
    return directory / record.device.folder / f"{record.kernel}.json"


def stamp(kernel: str, owner: Project) -> tuple[object, ...]:
    """Return a value that changes if a record of a project's kernel is added, removed or replaced."""
    states = ((path, stamp_of(path)) for _, _, path in _files(kernel, owner))
    return tuple((path, *state) for path, state in states if state)


def stamp_of(path: str | PathLike[str]) -> tuple[int, ...]:
    """Return a value that changes if a file is replaced; empty without a file."""
    try:
        state = os.stat(path)
    except OSError:
        return ()
    return state.st_mtime_ns, state.st_size, state.st_ino


def kernel_names(*owners: Project) -> set[str]:
    """Return the names of the kernels of projects with a record in any layer."""
    return {
        file.name[:-5]
        for owner in owners
        for layer, directory in layers(owner)
        for folder in device_folders(layer, directory)
        for file in _listed(os.path.join(directory, folder))
        if _is_record(file.name)
    }


def _is_record(file: str) -> bool:
    """Return whether a file name is of a record; a kernel's other files, ``x.explain.json``, have two dots."""
    return file.endswith(".json") and "." not in file[:-5]


def _listed(directory: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as found:
            return sorted(found, key=lambda file: file.name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        warn(f"{directory}: cannot list tuned records: {error.strerror}")
        return []


def _files(kernel: str, owner: Project) -> Iterator[tuple[str, str, str]]:
    for layer, directory in layers(owner):
        for folder in device_folders(layer, directory):
            path = os.path.join(directory, folder, f"{kernel}.json")
            if os.path.lexists(path):  # also a dangling link, so that reading warns of it
                yield layer, folder, path


# ---------------------------------------------------------------------- reading


#: Records with first calls that this process could not write, by path.
unwritten: dict[str, TunedRecord] = {}


def read_layers(kernel: str, owner: Project) -> list[RecordFile]:
    """Read the readable records of a project's kernel that runs wrote; the first layer comes first."""
    return [file for file in read_with_first_calls(kernel, owner) if file.record.is_tuned]


def read_with_first_calls(kernel: str, owner: Project) -> list[RecordFile]:
    """Read all readable records of a project's kernel, including records with first calls only."""
    files = list(_files(kernel, owner))
    if not any(layer == "user" for layer, _, _ in files):
        warn_of_unowned(kernel)
    found = ((layer, folder, _readable(path)) for layer, folder, path in files)
    known = [RecordFile(layer, folder, record) for layer, folder, record in found if record]
    mine = user_folder(owner) + os.sep
    known += [
        RecordFile("user", record.device.folder, record)
        for path, record in unwritten.items()
        if path.startswith(mine) and record.kernel == kernel
    ]
    return known


def warn_of_unowned(kernel: str) -> None:
    """Warn of the user's records of a kernel in a folder without a project."""
    for folder in tuned_folders():
        path = data_path("tuned", folder, f"{kernel}.json")
        if os.path.lexists(path):
            warn(
                f"tuned record left out: {path}: its project is unknown; if it is of the {kernel} of this "
                f"project, import it: autotune import {path}"
            )


def read_all(directory: Path, kernel: str = "*") -> list[TunedRecord]:
    """Read the readable records below a directory that runs wrote, of one kernel or of all, sorted by path."""
    files = sorted(directory.glob(f"*/{kernel}.json"))
    found = (_readable(path) for path in files if _is_record(path.name))
    return [record for record in found if record and record.is_tuned]


def _readable(path: Path | str) -> TunedRecord | None:
    kernel = os.path.basename(path).removesuffix(".json")
    try:
        record = read(path)
        if record.kernel != kernel:
            raise RecordError(f"{path}: the record is of another kernel, {record.kernel:.40}")
    except RecordError as error:
        warn(
            f"tuned record left out: {error}; repair or remove it, or tune again: autotune run {kernel}"
        )
        return None
    return record


def read(path: Path | str) -> TunedRecord:
    """Read one record, in a time proportional to its length."""
    # Checked before opening, because opening a device file may have effects.
    if os.path.exists(path) and not os.path.isfile(path):
        raise DamagedRecord(f"{path}: not a regular file, so not a tuned record")
    try:
        with open(path, "rb") as file:
            return decode(file.read(MAX_BYTES + 1), str(path))
    except OSError as error:
        raise RecordError(f"{path}: cannot read the tuned record: {error.strerror}") from error


class _Head(msgspec.Struct):
    format: Any = None
    schema_version: Any = None


_HEAD = msgspec.json.Decoder(_Head)
_RECORD = msgspec.json.Decoder(TunedRecord)


def decode(data: bytes, name: str = "record") -> TunedRecord:
    """Decode and check a record from the bytes of its file."""
    if len(data) > MAX_BYTES:
        raise DamagedRecord(f"{name}: more than {MAX_BYTES >> 20} MiB, so not a tuned record")
    try:
        head = _HEAD.decode(data)
        if head.format == FORMAT and head.schema_version == SCHEMA_VERSION:
            record = _RECORD.decode(data)
            check(record)
            return record
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise DamagedRecord(f"{name}: not a tuned record, or damaged: {error!s:.300}") from error
    if head.format != FORMAT:
        raise RecordError(f"{name}: not a tuned record of autotune")
    version = head.schema_version
    if isinstance(version, int) and version < SCHEMA_VERSION:
        raise DamagedRecord(
            f"{name}: tuned record of schema {version}, older than {SCHEMA_VERSION}, the schema of this "
            "autotune; delete the file, and tune again: autotune run KERNEL"
        )
    raise RecordError(
        f"{name}: tuned record of schema {version!s:.40}, newer than {SCHEMA_VERSION}, the schema of this "
        "autotune; upgrade autotune"
    )


def warn(message: str) -> None:
    """Warn of a record that is left out, or of a default in its place."""
    warnings.warn(message, RuntimeWarning, stacklevel=3)


# ---------------------------------------------------------------------- checking


def check(record: TunedRecord) -> None:
    """Raise `ValueError` if a name, a declared value, an expression or the shape of a table is invalid."""
    names = [*record.fields, *record.parameters, *record.layout]
    for name in (record.kernel, *names):
        if not name.isidentifier() or not name.isascii():
            raise ValueError(f"{name!r} is not an identifier")
    if len(set(names)) < len(names):
        raise ValueError("two of the problem fields, parameters and layout fields have one name")
    moment(record.provenance.created)
    _check_sources(record)
    for name, values in record.parameters.items():
        if len({type(value) for value in values}) > 1:
            raise ValueError(f"parameter {name} has values of several types")
    if len({key_of(tuned.problem) for tuned in record.problems}) < len(record.problems):
        raise ValueError("a problem occurs twice")
    _check_members(record)
    integers = {name for name, kind in record.fields.items() if kind == "integer"}
    layout = integers | set(record.layout)
    # Plans of one record have few different grids and conditions.
    plans = list(record.plans())
    grids = {msgspec.json.encode(form): form for plan in plans for form in plan.grid or ()}
    conditions = {msgspec.json.encode(plan.requires): plan.requires for plan in plans}
    for form in grids.values():
        _check_expression(form, integers)
    for condition in conditions.values():
        if condition is not None:
            _check_expression(condition, layout)
    _check_portfolio(record.portfolio, integers)


def _check_sources(record: TunedRecord) -> None:
    if not record.sources:
        return
    if record.parameters.get(SOURCE) != tuple(record.sources):
        raise ValueError(f"the values of parameter {SOURCE} are not the names of the sources")
    own = {name for names in record.sources.values() for name in names}
    if own != record.parameters.keys() - {SOURCE}:
        raise ValueError("the parameters of the sources are not those of the record")


def _check_members(record: TunedRecord) -> None:
    contenders = [found for tuned in record.problems for found in tuned.race.contenders]
    if any(bool(found.vendor) == (found.configuration is not None) for found in contenders):
        raise ValueError("a contender must be either a configuration or a vendor's call")
    for tuned in record.problems:
        if tuned.winner.configuration != tuned.configuration:
            raise ValueError(f"problem {dict(tuned.problem)}: the first plan is not of the winner")
    problems = [tuned.problem for tuned in record.problems] + [*record.portfolio.problems]
    problems += [row.problem for table in record.portfolio.tables for row in table.rows]
    for problem in problems:
        kinds = {n: "integer" if isinstance(v, int) else "categorical" for n, v in problem.items()}
        if kinds != record.fields:
            raise ValueError(f"problem {dict(problem)} does not have the fields {record.fields}")
    configurations: list[Any] = [plan.configuration for plan in record.plans()]
    configurations += record.portfolio.configurations
    configurations += [found.configuration for found in contenders if not found.vendor]
    declared = {name: type(values[0]) for name, values in record.parameters.items()}
    for configuration in configurations:
        is_declared = record.is_declared(configuration)
        if not is_declared or any(type(v) is not declared[n] for n, v in configuration.items()):
            raise ValueError(
                f"configuration {dict(configuration)} does not have the declared parameters and types"
            )


def _check_expression(form: object, integers: set[str], depth: int = 0) -> None:
    match form:
        case [str(operator), first, second] if operator in OPERATORS and depth < MAX_DEPTH:
            _check_expression(first, integers, depth + 1)
            _check_expression(second, integers, depth + 1)
        case str() if form not in integers:
            raise ValueError(f"an expression has {form!r}, which is not an integer problem field")
        case bool() | float() | list() | dict() | None:
            raise ValueError(
                f"not an expression, or one with more than {MAX_DEPTH} nested operations: {form!r}"
            )


def _check_portfolio(portfolio: Portfolio, integers: set[str]) -> None:
    shape = [len(portfolio.problems)] * len(portfolio.configurations)
    if [len(times) for times in portfolio.median_ms] != shape:
        raise ValueError("the portfolio's times do not match its configurations and problems")
    for table in portfolio.tables:
        for cost in table.prediction.costs if table.prediction else ():
            terms = [*cost.fixed, *(term for _, terms in cost.waves for term in terms)]
            names = {name for _, names in terms for name in names} | set(cost.misaligned)
            if names - integers:
                raise ValueError(
                    f"a cost has {sorted(names - integers)}, which are not integer problem fields"
                )
            if cost.plan.grid is None:
                raise ValueError("a cost has no grid")
        if table.prediction:
            _check_trees(table.prediction, len(integers))


def _check_trees(prediction: Prediction, integers: int) -> None:
    if prediction.corrections and len(prediction.corrections) != len(prediction.costs):
        raise ValueError("the corrections do not match the costs")
    pairs = zip(prediction.costs, prediction.corrections, strict=False)
    if any(trees and not cost.waves for cost, trees in pairs):
        raise ValueError("a cost has corrections but no waves")
    trees: list[tuple[Sequence[Split], Sequence[object], int]] = [
        (tree.splits, tree.factors, OWN_FEATURES)
        for trees in prediction.corrections
        for tree in trees
    ]
    if expected := prediction.expected:
        trees.append((expected.splits, expected.shares, 0))
        if len(expected.ranges) != integers:
            raise ValueError("the ranges of an expectation do not match the integer problem fields")
    for splits, outcomes, further in trees:
        if len(splits) > MAX_LEVELS or len(outcomes) != 1 << len(splits):
            raise ValueError("the outcomes of a tree do not match its splits")
        if any(feature >= 2 * integers + further for feature, _ in splits):
            raise ValueError("a tree splits an unknown feature")

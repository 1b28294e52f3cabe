"""`autotune list`, `show`, `explain`, `new`, `check`: commands that inspect kernels without tuning."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autotune.cli import emit_json, shown
from autotune.cli.console import FOLDER, JSON, KERNEL, SPACES, launch_text, show_table
from autotune.errors import UsageError

if TYPE_CHECKING:
    from autotune.devices.device import Device
    from autotune.kernel.space import Space
    from autotune.kernel.spec import Kernel
    from autotune.values import Configuration, Problem


_PROBLEM = click.option(
    "--problem",
    metavar="FIELD=N,...",
    help="Problem size; default: the first problem of the space file.",
)


@click.command("list")
@click.argument("what", type=click.Choice(["kernels", "strategies", "devices"]), default="kernels")
@click.option("--all", "is_all", is_flag=True, help="Also list the kernels of the study notes.")
@SPACES
@JSON
def list_(what: str, is_all: bool, spaces: Path | None, as_json: bool) -> None:
    """List kernels (default), strategies or devices.

    \b
    autotune list
    autotune list --all
    autotune list strategies
    """
    from autotune.cli.console import print_table

    makers: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "kernels": lambda: _kernel_rows(spaces, is_all),
        "strategies": _strategy_rows,
        "devices": _device_rows,
    }
    rows = makers[what]()
    if as_json:
        emit_json(rows)
    elif rows:
        print_table(rows)
    else:
        why = "; to see why, run: autotune doctor" if what == "devices" else ""
        click.echo(f"no {what}{why}", err=True)


def _kernel_rows(spaces: Path | None, is_all: bool) -> list[dict[str, Any]]:
    from autotune.kernel.catalog import listings

    return [
        {
            "kernel": listing.name,
            "about": ("BROKEN " if listing.broken else "")
            + listing.doc.removeprefix(f"{listing.name}: "),
        }
        for listing in listings(spaces)
        if is_all or not listing.teaches
    ]


def _strategy_rows() -> list[dict[str, Any]]:
    from autotune.search.strategies import available

    return [
        {"strategy": search.name, "about": search.doc, "unavailable because": search.unavailable}
        for search in available()
    ]


def _device_rows() -> list[dict[str, Any]]:
    from autotune.devices.choose import backend
    from autotune.devices.device import BACKENDS

    return [
        {
            "device": device.selector,
            "arch": device.arch,
            "name": device.name,
            "driver": device.driver,
        }
        for name in BACKENDS
        for device in backend(name).devices()
    ]


@click.command("show")
@KERNEL
@click.option(
    "--config",
    metavar="NAME=V,...",
    help="Show this configuration, not the search space; other parameters have their defaults.",
)
@click.option("--source", "view", flag_value="source", help="Print the configuration's source.")
@click.option("--ptx", "view", flag_value="ptx", help="Print the configuration's PTX.")
@click.option(
    "--log", "view", flag_value="log", help="Print launches, resources and the compiler's log."
)
@_PROBLEM
@click.option(
    "--device",
    metavar="NAME",
    help="Device (cuda:0, opencl:cpu) or architecture (sm_90); default: the first usable device.",
)
@SPACES
@JSON
def show(
    kernel: str,
    config: str | None,
    view: str | None,
    problem: str | None,
    device: str | None,
    spaces: Path | None,
    as_json: bool,
) -> None:
    """Show the search space of KERNEL and its constraints, or one configuration.

    \b
    autotune show sgemm
    autotune show sgemm --config BM=64,BN=64 --log --device sm_90
    """
    from autotune.kernel import parsing
    from autotune.kernel.catalog import find_kernel
    from autotune.kernel.space import enumerate_space

    declared = find_kernel(kernel, spaces)
    chosen = _device_or_arch(device, declared)
    if config is None and view is None:
        facts = _space_facts(declared, chosen, enumerate_space(declared, chosen))
        if as_json:
            emit_json(facts)
        else:
            _print_space(facts, declared.default())
        return
    configuration = parsing.configuration(declared, config or "")
    size = parsing.problem(declared, problem) if problem else declared.first_problem(chosen.backend)
    _show_configuration(declared, configuration, size, chosen, view)


@click.command("explain")
@KERNEL
@_PROBLEM
@click.option(
    "--variants",
    metavar="NAME,...",
    help="Variants of the space file to compare, and best, the tuned configuration; default: all.",
)
@click.option(
    "--config",
    "configs",
    metavar="NAME=V,...",
    multiple=True,
    help="Another configuration to compare (repeatable).",
)
@click.option("--arch", metavar="sm_NN", help="Compile for this architecture; measure nothing.")
@click.option(
    "--device",
    metavar="NAME",
    help="Measure on cuda:0 or opencl:cpu, or compile for the device of a record, by name; default: the "
    "first GPU, else the device of the newest record.",
)
@click.option(
    "--ablate",
    metavar="NAME,...",
    help="Also show the last variant with each other value of these parameters.",
)
@click.option(
    "--out", type=FOLDER, help="Also write the measurements next to the records of this folder."
)
@click.option("--markdown", is_flag=True, help="Print Markdown.")
@SPACES
@JSON
def explain(
    kernel: str,
    problem: str | None,
    variants: str | None,
    configs: tuple[str, ...],
    arch: str | None,
    device: str | None,
    ablate: str | None,
    out: Path | None,
    markdown: bool,
    spaces: Path | None,
    as_json: bool,
) -> None:
    """Explain why configurations of KERNEL are fast or slow, side by side.

    Without a GPU, prints registers, occupancy and SASS statistics for any architecture, and recorded times
    and counters. On a GPU, also measures times, and counters if Nsight Compute is installed.

    \b
    autotune explain transpose
    autotune explain sgemm --problem m=4096,n=4096,k=4096 --arch sm_90 --variants naive,best
    autotune explain transpose --variants best --ablate VEC
    """
    from autotune.explain import explaining, rendering
    from autotune.explain.variants import KernelVariant, setting_of
    from autotune.kernel import parsing
    from autotune.kernel.catalog import find_kernel
    from autotune.report.text_table import Table

    declared = find_kernel(kernel, spaces)
    size = parsing.problem(declared, problem) if problem else None
    found = explaining.explain(
        setting_of(declared, arch, device, size),
        names_in(variants),
        [KernelVariant(text, parsing.configuration(declared, text)) for text in configs],
        names_in(ablate),
        out,
    )
    if as_json:
        emit_json(rendering.document(found))
        return
    if markdown:
        click.echo(rendering.markdown(found))
        return
    click.echo(rendering.title(found))
    for heading, part in rendering.sections(found):
        click.echo(f"\n{heading}")
        if isinstance(part, Table):
            show_table(part)
        else:
            for line in part:
                click.echo(shown(f"  {line}"))


def names_in(text: str | None) -> list[str]:
    """Split a comma-separated list of names."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def _device_or_arch(text: str | None, kernel: Kernel) -> Device:
    from autotune.devices.choose import choose_device
    from autotune.devices.device import for_arch

    if text and text.startswith("sm_"):
        return for_arch(text)
    return choose_device(text, kernel.backends)


def _space_facts(kernel: Kernel, device: Device, space: Space) -> dict[str, Any]:
    return {
        "kernel": kernel.name,
        "device": device.name,
        "cartesian": space.cartesian,
        "valid": len(space),
        "parameters": {name: list(values) for name, values in space.parameters.items()},
        "sources": {
            source: {name: list(values) for name, values in own.items()}
            for source, own in space.sources.items()
        },
        "constraints": [
            {"name": rule.name, "removes": share, "about": rule.doc}
            for rule, share in zip(kernel.constraint_rules, space.removed, strict=True)
        ],
        "fingerprint": space.fingerprint,
    }


def _texts(parameters: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, str]]:
    for name, values in parameters.items():
        yield name, ", ".join(map(str, values))


def _print_space(facts: dict[str, Any], default: Configuration) -> None:
    from autotune.cli.console import print_table

    valid, cartesian = facts["valid"], facts["cartesian"]
    click.echo(
        f"{facts['kernel']} on {facts['device']}: {valid:,} valid of {cartesian:,} combinations\n"
    )
    shown = facts["sources"] or {"": facts["parameters"]}
    print_table(
        {**({"source": source} if source else {}), "parameter": name, "values": text}
        for source, parameters in shown.items()
        for name, text in _texts(parameters)
    )
    if facts["constraints"]:
        click.echo()
        print_table(
            {
                "constraint": rule["name"],
                "removes": f"{rule['removes']:.1%}",
                "because": rule["about"],
            }
            for rule in facts["constraints"]
        )
    click.echo(f"\ndefault: {default}")


def _show_configuration(
    kernel: Kernel, configuration: Configuration, problem: Problem, device: Device, view: str | None
) -> None:
    from autotune.compiling.binaries import compiled_for
    from autotune.kernel.launches import complete_launches, launch_sequence
    from autotune.kernel.source import source_of

    if view == "source":
        click.echo(source_of(kernel, configuration, problem, device))
        return
    if view == "ptx":
        click.echo(ptx_of(kernel, configuration, problem, device))
        return
    binary = compiled_for(kernel, configuration, problem, device)
    click.echo(f"{kernel.name} ({problem}) for {device.name}: {configuration}")
    plan = complete_launches(launch_sequence(kernel, configuration, problem, device), binary)
    for launch in plan.launches:
        click.echo(launch_text(launch))
    for function in binary.entries:
        known = {
            "registers": function.registers,
            "spill bytes": function.spill_bytes,
            "bytes of static shared memory": function.shared_bytes,
        }
        facts = ", ".join(f"{n} {name}" for name, n in known.items() if n is not None)
        click.echo(f"  {function.name}: {facts}")
    if binary.log.strip():
        click.echo(binary.log)


def ptx_of(kernel: Kernel, configuration: Configuration, problem: Problem, device: Device) -> str:
    """Return the PTX of a configuration for a CUDA architecture."""
    from autotune.compiling.binaries import first_error
    from autotune.compiling.job import compile_job
    from autotune.devices import nvrtc
    from autotune.devices.base import CompileError, with_defines

    if not device.is_cuda:
        raise UsageError(f"{device.name} has no PTX; choose an architecture: --device sm_90")
    if kernel.language:
        raise UsageError(
            f"{kernel.name}: --ptx is for CUDA C++; {kernel.language_name} keeps no PTX; use --log"
        )
    job = compile_job(kernel, configuration, problem, device)
    # A compiler option such as sm_90a overrides the architecture, as for a cubin.
    chosen = [option for option in job.options if option.startswith("sm_")]
    flags = [option for option in job.options if not option.startswith("sm_")]
    if not any("std=" in flag for flag in flags):
        flags.append("-std=c++17")
    arch = (chosen[-1] if chosen else device.arch).replace("sm_", "compute_")
    try:
        names = nvrtc.expressions(job.source, job.entries)
        source = with_defines(job.source, dict(job.defines))
        return nvrtc.compile_ptx(source, [f"-arch={arch}", *flags], names)
    except CompileError as error:
        raise kernel.error(f"{configuration}: {first_error(str(error))}") from error


@click.command("new")
@click.argument("name", required=False)
@click.option(
    "--from",
    "source",
    metavar="FILE",
    help="FILE.cu: its kernels. FILE.py:FUNCTION: this @triton.jit function. SCRIPT.py: run this "
    "Kernel Tuner script, and translate its calls of tune_kernel.",
)
@click.option(
    "--into",
    type=FOLDER,
    default=".",
    help="Folder for kernels/ and spaces/; default: the current folder.",
)
def new(name: str | None, source: str | None, into: Path) -> None:
    """Write kernels/NAME.cu and spaces/NAME.py: a working kernel for you to edit.

    With --from, writes a space file for each kernel of a source or Kernel Tuner script. Complete the lines
    marked TODO.

    \b
    autotune new smooth
    autotune check smooth
    autotune run smooth
    autotune new --from src/stencil.cu
    autotune new --from tune_vector_add.py
    """
    if source is not None:
        _write_from(source, name or "", into)
        return
    if not name:
        raise UsageError("give the new kernel a NAME, or --from FILE")
    from autotune.interop.ported import write_example

    for file in write_example(name, into):
        click.echo(f"wrote {file}")
    click.echo(f"next: edit both, then: autotune check {name}", err=True)


def _write_from(source: str, name: str, into: Path) -> None:
    if source.endswith(".py"):
        from autotune.interop.script import write_spaces

        click.echo(f"running {source} with a stand-in for tune_kernel", err=True)
        files, todos = write_spaces(Path(source), name, into)
    else:
        from autotune.interop.skeleton import write_space_of

        files, todos = write_space_of(source, name, into)
    for file in files:
        click.echo(f"wrote {file}")
    for todo in todos:
        click.echo(f"todo: {todo}", err=True)
    spaces = [file for file in files if file.suffix == ".py"]
    checks = "; ".join(f"autotune check {file.stem}" for file in spaces)
    click.echo(f"next: complete {' and '.join(map(str, spaces))}, then: {checks}", err=True)


@click.command("check")
@KERNEL
@click.option(
    "--arch",
    "archs",
    multiple=True,
    default=("sm_80", "sm_90", "sm_120"),
    show_default=True,
    help="Architecture to compile for (repeatable).",
)
@click.option(
    "--samples",
    type=click.IntRange(1),
    default=6,
    show_default=True,
    help="Configurations to compile for each architecture.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Seed of the sample.")
@SPACES
@JSON
def check(
    kernel: str, archs: tuple[str, ...], samples: int, seed: int, spaces: Path | None, as_json: bool
) -> None:
    """Check the space file of KERNEL, and compile a sample of its configurations.

    Needs no GPU. If the machine has an OpenCL device, such as the CPU, it also verifies the sample on the
    edge problems and the first problem. Exit code 3: a configuration failed, or none could be verified.

    \b
    autotune check sgemm
    autotune check transpose --arch sm_90 --samples 2
    """
    from autotune.checking.kernel_check import check_kernel
    from autotune.cli.console import print_table, words
    from autotune.errors import NothingValidError
    from autotune.kernel.catalog import find_kernel

    declared = find_kernel(kernel, spaces)
    report = check_kernel(declared, archs, samples, seed)
    if as_json:
        emit_json(vars(report))
    else:
        for line in report.notes:
            click.echo(line)
        weak = ", weak check" if report.unseen else ""
        print_table(
            {
                "target": sample["target"],
                "configuration": words(sample["config"]),
                "registers": sample["registers"],
                "spill bytes": sample["spill_bytes"],
                "result": sample["problem"] or sample["result"] + weak,
            }
            for sample in report.samples
        )
    if report.failures:
        raise NothingValidError(f"{declared.name}: " + "; ".join(report.failures))


COMMANDS = {"list": list_, "show": show, "explain": explain, "new": new, "check": check}

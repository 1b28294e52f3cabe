"""The extras of the project: which one brings a package, and the pip command that installs it."""

from __future__ import annotations

DISTRIBUTION = "kernel-autotune"
#: Extras of pyproject.toml by the packages they install, as code imports them.
EXTRAS = {
    "asyncssh": "fleet",
    "bokeh": "fleet",
    "cloudpickle": "tune",
    "cmaes": "tune",
    "cuda": "nvrtc",
    "cupy": "cuda13",
    "dask": "fleet",
    "dask_jobqueue": "fleet",
    "distributed": "fleet",
    "kernel_tuner": "tune",
    "numpy": "tune",
    "optuna": "tune",
    "pandas": "tune",
    "plotly": "tune",
    "psycopg": "postgres",
    "pynvml": "tune",
    "pyopencl": "cpu",
    "scipy": "tune",
    "sqlalchemy": "tune",
    "threadpoolctl": "tune",
    "torch": "torch",
}


def extra_of(module: str | None) -> str | None:
    """Return the extra that installs a module; None where no extra does."""
    return EXTRAS.get((module or "").partition(".")[0])


def install(*extras: str) -> str:
    """Return the command that installs extras into the environment in use."""
    return (
        f"pip install '{DISTRIBUTION}[{','.join(extras)}]'"
        if extras
        else f"pip install {DISTRIBUTION}"
    )

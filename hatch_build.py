"""Put kernels, spaces, measured reports and what C++ programs find into the wheel, as ``autotune/_bundled/``.

An editable install gets none of it: there the folders beside ``autotune/`` are used. Both get a ``.pth`` file,
with which Python begins if ``AUTOTUNE_TRITON`` is set; see `autotune.triton.installing`.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: Folders of which every file is bundled: a list of suffixes would miss the file of the next language.
FOLDERS = ("kernels", "spaces", "cpp/cmake", "cpp/pkgconfig", "cpp/include/autotune")
CACHED = "__pycache__"
REPORTS = ("reports/**/*.json",)
STARTUP = "autotune/triton/kernel_autotune.pth"
MEASURED_ON_CPU = "opencl_"  # git-ignored folders: one machine's CPU is nobody else's


class BundleHook(BuildHookInterface):
    """Maps the files to their place in the wheel, one by one."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files to hatchling's ``force_include``."""
        root = Path(self.root)
        if version == "editable":
            build_data["force_include_editable"][str(root / STARTUP)] = Path(STARTUP).name
            return
        build_data["force_include"][str(root / STARTUP)] = Path(STARTUP).name
        paths = [
            path
            for folder in FOLDERS
            for path in (root / folder).rglob("*")
            if path.is_file() and CACHED not in path.parts
        ]
        paths += [
            path
            for pattern in REPORTS
            for path in root.glob(pattern)
            if not path.relative_to(root).parts[1].startswith(MEASURED_ON_CPU)
        ]
        for path in sorted(paths):
            target = Path("autotune", "_bundled", path.relative_to(root))
            build_data["force_include"][str(path)] = target.as_posix()

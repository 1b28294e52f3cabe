"""Options of a declaration: one option an element, blanks and quotes, options of one backend."""

import re

import pytest
from sample_spaces import SOURCE, write_space

from autotune.compiling.binaries import compiled_for
from autotune.devices.choose import choose_device
from autotune.devices.compiler_options import (
    foreign_option,
    opencl_options,
    separate_options,
)
from autotune.devices.device import for_arch
from autotune.errors import SpecError
from autotune.kernel.catalog import load_file

OPTIONS = "@scale.options\ndef options(c):\n    return {}\n\n\n@scale.launch"


def kernel_with(folder, options, source=SOURCE):
    kernel = load_file(write_space(folder, ("@scale.launch", OPTIONS.format(options))))
    (folder / "kernels" / "scale.cu").write_text(source)
    return kernel


@pytest.fixture(scope="module", params=["opencl", "cuda"])
def device(request):
    if request.param == "opencl":
        return choose_device(request.getfixturevalue("opencl_device"))
    pytest.importorskip("cuda.bindings.nvrtc")
    return for_arch("sm_90")


def test_folders_and_macros_may_have_blanks_and_quotes(tmp_path, device):
    folder = tmp_path / "it's a folder"
    folder.mkdir()
    (folder / "far.h").write_text("#define FAR TWO\n")
    source = "#include <far.h>\n" + SOURCE.replace("factor * x", "FAR * TEXT[0] * x")
    options = [f"-I{folder}", "-DTWO=(1 + 1)", "-D", 'TEXT="a b"']
    kernel = kernel_with(tmp_path, options, source)
    assert compiled_for(kernel, kernel.default(), kernel.all_problems()[0], device).entry("scale")


def test_a_quoted_folder_is_the_folder():
    assert separate_options(('-I"/a b"', "-I", "/c d", "-I '/e'", "-DA=(b - c)")) == (
        *("-I/a b", "-I", "/c d", "-I /e", "-DA=(b - c)"),
    )
    flags, macros = opencl_options(("-I/a b", "-I", "/c", "-w", "-DA=(b - c)", "-D", "B", '-I/a"b'))
    assert flags == ['-I"/a b"', "-I/c", "-w", '-I"/a\\"b"']
    assert macros == {"A": "(b - c)", "B": "1"}


def test_an_element_with_several_options_is_refused(tmp_path):
    kernel = kernel_with(tmp_path, ["-DA=2 -DB=3"])
    message = r"options: '-DA=2 -DB=3' holds several.*: \['-DA=2', '-DB=3'\]"
    with pytest.raises(SpecError, match=message):
        kernel.compiler_options(kernel.default(), for_arch("sm_90"))


@pytest.mark.parametrize(
    ("option", "is_cuda", "remedy"),
    [
        ("-use_fast_math", False, "return ['-use_fast_math'] if device.is_cuda else []"),
        ("-maxrregcount=32", False, "return it for CUDA alone: def options(c, device)"),
        ("--fmad=false", False, "is an option of CUDA, which OpenCL does not have"),
        ("-std=c++20", False, "if device.is_cuda"),
        ("-cl-fast-relaxed-math", True, "return it for OpenCL alone"),
    ],
)
def test_an_option_of_the_other_backend_is_named(option, is_cuda, remedy):
    message = foreign_option(["-DA=1", "-w", option], is_cuda)
    assert message.startswith(f"{option} is an option of ")
    assert remedy in message
    assert not foreign_option(["-DA=1", "-Ia", option], not is_cuda)


def test_a_backend_names_the_option_that_it_lacks(tmp_path, device):
    option = "-cl-mad-enable" if device.is_cuda else "-use_fast_math"
    kernel = kernel_with(tmp_path, [option])
    with pytest.raises(SpecError, match=rf"{option} is an option of .*device\.is_cuda"):
        compiled_for(kernel, kernel.default(), kernel.all_problems()[0], device)


def test_an_option_that_no_backend_has_is_named(tmp_path, device):
    kernel = kernel_with(tmp_path, ["-notanoption"])
    with pytest.raises(SpecError, match=re.escape("-notanoption")):
        compiled_for(kernel, kernel.default(), kernel.all_problems()[0], device)

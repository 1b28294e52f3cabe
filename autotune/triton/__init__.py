"""`autotune`: a drop-in for `triton.autotune` that remembers what it found, and verifies it.

=========== ===============================================================
`decorator` the decorator, and the calls of a decorated function
`declared`  a decorated function as a kernel that a run tunes
`calls`     its calls: what they pass, and their files
=========== ===============================================================
"""

from autotune.triton.decorator import Decorated, autotune

__all__ = ["Decorated", "autotune"]

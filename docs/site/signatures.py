"""What griffe calls the default of `*args` and `**named`, which have none."""

from typing import Any

from griffe import Extension, Function, ParameterKind

GATHERING = (ParameterKind.var_positional, ParameterKind.var_keyword)


class WithoutEmptyDefaults(Extension):
    """Takes the empty tuple or dict away."""

    def on_function(self, *, func: Function, **_: Any) -> None:
        """Of every function."""
        for parameter in func.parameters:
            if parameter.kind in GATHERING:
                parameter.default = None

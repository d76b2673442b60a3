"""Did the parameters change since the last backward? The one sign of an update that no optimizer hook sees.

Every in-place operation on a tensor counts up its `_version`, on any device, without synchronisation.
"""

import weakref
from typing import Any


class ParameterWatch:
    """One parameter of the trained model stands for all."""

    def __init__(self) -> None:
        self._parameter: Any = lambda: None
        self._version = 0

    def watch(self, module: Any) -> None:
        """Watch a parameter of this module, if it trains one and none is watched yet."""
        if self._parameter() is None:
            found = next((p for p in module.parameters() if p.requires_grad), None)
            if found is not None:
                self._parameter = weakref.ref(found)
                self._version = found._version

    def remember(self) -> None:
        """Remember the state after a backward."""
        parameter = self._parameter()
        if parameter is not None:
            self._version = parameter._version

    def changed(self) -> bool:
        """Return whether the parameter was changed in place since `remember`."""
        parameter = self._parameter()
        return parameter is not None and parameter._version != self._version

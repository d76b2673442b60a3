"""What a line, a module, or all of a run costs per step: the records."""

from stepscope.dataclass import dataclass


@dataclass(frozen=True)
class Cost:
    """What something took per step: the mean over steps, and over ranks where it is of several."""

    host_ns: float = 0.0
    """the host's own time: operators and Python, without waiting"""
    blocked_ns: float = 0.0
    """the host waited in it: for the device, or for a collective on a rank without one"""
    device_ns: float = 0.0
    """kernels, copies and sets, without communication; they may overlap"""
    comm_ns: float = 0.0
    """communication, with waiting for late ranks"""
    exposed_ns: float = 0.0
    """communication while the device computed and copied nothing"""
    flops: float | None = None
    """None where no operator of it has a known cost"""
    memory_bytes: float | None = None
    """allocated, never mind when it was freed; None where memory was not recorded"""

    @property
    def largest_ns(self) -> float:
        """Return the largest of its times on the host and on the device: what it can be ranked by."""
        return max(self.host_ns + self.blocked_ns, self.device_ns + self.comm_ns)


@dataclass(frozen=True)
class LineCost:
    """One line of code."""

    file: str
    line: int
    line_to: int
    """see `Frame.line_to`"""
    function: str
    is_user: bool
    own: Cost
    inclusive: Cost
    backward: Cost
    """of `inclusive`: in backward passes"""
    by_rank: dict[int, Cost]
    """`inclusive` of each rank"""
    module: str | None
    """the module in which most of its time lies, None where it lies in none"""

    @property
    def owner(self) -> str:
        """Return what `--without` takes: `train.py:42`."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class ModuleCost:
    """One module of the model, with the modules inside it."""

    path: str
    own: Cost
    inclusive: Cost
    backward: Cost
    by_rank: dict[int, Cost]

    @property
    def owner(self) -> str:
        """Return what `--without` takes: `module:blocks.1.up`."""
        return f"module:{self.path}"


@dataclass(frozen=True)
class CodeCosts:
    """What lines and modules cost, the largest first."""

    lines: tuple[LineCost, ...]
    modules: tuple[ModuleCost, ...]
    total: Cost
    unowned: Cost
    """what has no line"""
    exact_lines: bool
    """whether lines are those being executed; else those where functions are defined"""
    ranks: tuple[int, ...]
    """that have owners"""

    @property
    def unowned_host_share(self) -> float | None:
        """Return the share of the host's time without a line, None where the host did nothing."""
        whole = self.total.host_ns + self.total.blocked_ns
        return (self.unowned.host_ns + self.unowned.blocked_ns) / whole if whole else None

    @property
    def unowned_device_share(self) -> float | None:
        """Return the share of device and communication time without a line, None where there was none."""
        whole = self.total.device_ns + self.total.comm_ns
        return (self.unowned.device_ns + self.unowned.comm_ns) / whole if whole else None

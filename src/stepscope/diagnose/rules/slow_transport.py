"""`slow-link`, by NCCL's own log: ranks talk over a slower path than the machine has, or than such jobs usually have."""

from collections.abc import Iterable, Sequence

from stepscope.analyze.account import Account
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.trace.nccl.said import NcclLog

_OFF = ("0", "", "false", "no")
_MAX_EVIDENCE = 12


def slow_transport(account: Account) -> list[Candidate]:
    """Return one candidate where a log shows sockets between machines, or a way inside a machine that was switched off."""
    logs = account.run.beside.nccl
    found = [(title, [log for log in logs if applies(log)]) for title, applies in _FAULTS]
    found = [(title, those) for title, those in found if those]
    if not found:
        return []
    titles = "; ".join(title for title, _ in found)
    ranks = sorted({log.rank for _, those in found for log in those})
    return [
        Candidate(
            id="slow-link",
            title=titles[:1].upper() + titles[1:],
            cause="NCCL uses a slower transport: " + "; ".join(_reasons(those) for _, those in found),
            remedy="Unset NCCL_IB_DISABLE, NCCL_P2P_DISABLE and NCCL_SHM_DISABLE, and let NCCL see the devices (in a container: "
            "--ipc=host or --shm-size, --cap-add=IPC_LOCK, /dev/infiniband). What the faster transport would save "
            "is not known before it is measured: stepscope calibrate on both.",
            fixed_saving_ns=0.0,
            ranks=tuple(ranks),
            evidence=tuple(_evidence(found))[:_MAX_EVIDENCE],
            always=True,
            sureness=0.7,
        )
    ]


def _sockets_between_machines(log: NcclLog) -> bool:
    return _uses(log, "NET/Socket") and (log.num_nodes or 0) > 1


def _network_inside_machine(log: NcclLog) -> bool:
    return log.num_nodes == 1 and any(name.startswith("NET/") for name in log.transports)


def _no_peer_access(log: NcclLog) -> bool:
    switched_off = log.settings.get("NCCL_P2P_DISABLE", "0").lower() not in _OFF
    beside_nvlink = "NVL" in log.links and any(name.startswith("SHM") for name in log.transports)
    return (log.local_ranks or 0) != 1 and (switched_off or beside_nvlink)


def _no_shared_memory(log: NcclLog) -> bool:
    return log.settings.get("NCCL_SHM_DISABLE", "0").lower() not in _OFF and (log.local_ranks or 0) != 1


_FAULTS = (
    ("ranks on different machines talk over sockets instead of InfiniBand", _sockets_between_machines),
    ("ranks of one machine talk over the network", _network_inside_machine),
    ("GPUs of one machine do not reach each other directly over NVLink or PCIe", _no_peer_access),
    ("shared memory between ranks of one machine is switched off", _no_shared_memory),
)


def _uses(log: NcclLog, transport: str) -> bool:
    return any(name.startswith(transport) for name in log.transports)


def _reasons(logs: Sequence[NcclLog]) -> str:
    """Return why, as far as the logs say it."""
    settings = {f"{k}={v}" for log in logs for k, v in log.settings.items() if k.endswith("_DISABLE")}
    if settings:
        return f"switched off by {', '.join(sorted(settings))}"
    if any(log.infiniband_missing for log in logs):
        return "NCCL found no InfiniBand device that it could use"
    return "the log does not say why"


def _evidence(found: Iterable[tuple[str, Sequence[NcclLog]]]) -> Iterable[Evidence]:
    seen = {log.rank: log for _, logs in found for log in logs}
    for rank, log in sorted(seen.items()):
        where = f"rank {rank}"
        if log.transports:
            said = ", ".join(f"{name} {count}" for name, count in log.transports.items())
            yield Evidence("connections by transport", said, "", where)
        if log.max_bw_gb_per_s is not None:
            yield Evidence("bandwidth of the path by NCCL's topology", log.max_bw_gb_per_s, "GB/s", where)
        for interface in log.interfaces[:2]:
            yield Evidence("interface", interface, "", where)

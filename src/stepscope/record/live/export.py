"""The metrics of one rank on their way to others: an endpoint to scrape, a collector to push to, as the settings ask.

What the two need is imported only where one of them is asked for: the helper stays small.
"""

from collections.abc import Callable, Mapping
from typing import Any

from stepscope.errors import UsageError
from stepscope.record.live.metrics import Labels, Metrics, Sample

_SERVICE = "stepscope"


class Export:
    """Takes lines in and tells them on; `run` is the name of the run's folder, once it has one."""

    def __init__(
        self, settings: Mapping[str, Any], *, rank: int, world_size: int, stall_s: Callable[[], float]
    ) -> None:
        self.run = ""
        self._rank = rank
        self._world_size = world_size
        self._stall_s = stall_s
        self._host = settings.get("host", "")
        self._attempt = str(settings.get("attempt", "0"))
        self._metrics = Metrics()
        self._endpoint: Any = None
        self._push: Any = None
        self._trouble: str | None = None
        try:
            self._start(settings)
        except UsageError as e:  # said before the job started; here it can only be from another launcher
            self._trouble = str(e)

    def line(self, line: Mapping[str, Any]) -> None:
        """Take in one line of the step log."""
        self._metrics.line(line)

    def facts(self, facts: Mapping[str, Any]) -> None:
        """Take in what a rank knows of its job."""
        self._metrics.facts(facts)

    def state(self) -> dict[str, Any]:
        """Return where the metrics are to be had, and what failed; for the rank's facts."""
        return {
            "metrics_url": self._endpoint.url if self._endpoint is not None else None,
            "trouble": self._trouble or _trouble(self._endpoint) or _trouble(self._push),
        }

    def end(self) -> None:
        """Push once more and let go of the port."""
        if self._push is not None:
            self._push.end()
        if self._endpoint is not None:
            self._endpoint.end()

    def _start(self, settings: Mapping[str, Any]) -> None:
        if settings.get("metrics"):
            from stepscope.record.live.endpoint import Endpoint

            self._endpoint = Endpoint(settings["metrics"], self._text, local_rank=settings.get("local_rank", 0))
        if settings.get("otlp"):
            from stepscope.record.live.otlp import OtlpPush

            self._push = OtlpPush(
                settings["otlp"],
                self._samples,
                resource=self._resource,
                period_s=settings.get("otlp_period_s", 10.0),
            )

    def _samples(self) -> list[Sample]:
        return self._metrics.samples(stall_s=self._stall_s)

    def _text(self) -> str:
        from stepscope.record.live.prometheus import prometheus_text

        return prometheus_text(self._samples(), labels=(("run", self.run), ("rank", str(self._rank))))

    def _resource(self) -> Labels:
        return (
            ("service.name", _SERVICE),
            ("host.name", self._host),
            ("stepscope.run.name", self.run),
            ("stepscope.rank", str(self._rank)),
            ("stepscope.world_size", str(self._world_size)),
            ("stepscope.attempt", self._attempt),
        )


def _trouble(part: Any) -> str | None:
    found: str | None = part.trouble if part is not None else None
    return found

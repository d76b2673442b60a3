"""Everything that depends on how the job is parallel: one view per dimension that it has."""

from collections.abc import Sequence

from stepscope.analyze.parallel.buckets import BucketView, bucket_view
from stepscope.analyze.parallel.context_parallel import ContextParallelView, context_parallel_view
from stepscope.analyze.parallel.experts import ExpertsView, experts_view
from stepscope.analyze.parallel.pipeline.bubble import PipelineView, pipeline_view
from stepscope.analyze.parallel.sharding import ShardingView, sharding_view
from stepscope.analyze.parallel.strategy import Strategy
from stepscope.analyze.parallel.tensor_parallel import TensorParallelView, tensor_parallel_view
from stepscope.analyze.ranks.window import RankAccount
from stepscope.dataclass import dataclass
from stepscope.run.aligned import AlignedRun


@dataclass(frozen=True)
class ByStrategy:
    """The views of a run; None for dimensions it does not have."""

    buckets: BucketView | None
    sharding: ShardingView | None
    tensor_parallel: TensorParallelView | None
    pipeline: PipelineView | None
    experts: ExpertsView | None
    context_parallel: ContextParallelView | None


def by_strategy(shared: AlignedRun, strategy: Strategy, accounts: Sequence[RankAccount | None]) -> ByStrategy:
    """Return the views of every dimension; `accounts` are those of the run's ranks, in their order."""
    return ByStrategy(
        buckets=bucket_view(shared, strategy, accounts),
        sharding=sharding_view(shared, strategy, accounts),
        tensor_parallel=tensor_parallel_view(shared, strategy, accounts),
        pipeline=pipeline_view(shared, strategy, accounts),
        experts=experts_view(shared, strategy, accounts),
        context_parallel=context_parallel_view(shared, strategy, accounts),
    )

"""What each parallel strategy of the run did: one view per strategy, None where the run does not use it."""

from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.analyze.buckets import BucketView, bucket_view
from stepscope.analyze.context_parallel import ContextParallelView, context_parallel_view
from stepscope.analyze.experts import ExpertsView, experts_view
from stepscope.analyze.pipeline import PipelineView, pipeline_view
from stepscope.analyze.rank_account import RankAccount
from stepscope.analyze.sharding import ShardingView, sharding_view
from stepscope.analyze.strategy import Strategy
from stepscope.analyze.tensor_parallel import TensorParallelView, tensor_parallel_view
from stepscope.run.aligned import Aligned


@dataclass(frozen=True)
class Views:
    """The views of a run."""

    buckets: BucketView | None
    sharding: ShardingView | None
    tensor_parallel: TensorParallelView | None
    pipeline: PipelineView | None
    experts: ExpertsView | None
    context_parallel: ContextParallelView | None


def views_of(shared: Aligned, strategy: Strategy, accounts: Sequence[RankAccount | None]) -> Views:
    """Return all views of a run."""
    return Views(
        buckets=bucket_view(shared, strategy, accounts),
        sharding=sharding_view(shared, strategy, accounts),
        tensor_parallel=tensor_parallel_view(shared, strategy, accounts),
        pipeline=pipeline_view(shared, strategy, accounts),
        experts=experts_view(shared, strategy, accounts),
        context_parallel=context_parallel_view(shared, strategy, accounts),
    )

import pytest

from stepscope.contract.step_line import Region, named_region


@pytest.mark.parametrize(
    ("name", "region"),
    [
        ("forward", Region.FORWARD),
        ("## forward ##", Region.FORWARD),
        ("DistributedDataParallel.forward", Region.FORWARD),
        ("FullyShardedDataParallel._pre_forward", Region.FORWARD),
        ("FSDP::post_forward (layers.0)", Region.FORWARD),
        ("PP:0F12", Region.FORWARD),
        ("backward", Region.BACKWARD),
        ("[pl][profile][Strategy]DDPStrategy.backward", Region.BACKWARD),
        ("FSDP::post_backward_reduce (blocks.5)", Region.BACKWARD),
        ("FullyShardedDataParallel._post_backward_hook", Region.BACKWARD),
        ("PP:1W3", Region.BACKWARD),
        ("Optimizer.step#AdamW.step", Region.OPTIMIZER),
        ("Optimizer.zero_grad#SGD.zero_grad", Region.OPTIMIZER),
        ("optimizer", Region.OPTIMIZER),
        ("DeepSpeedEngine.step", Region.OPTIMIZER),
        ("data_loading", Region.DATA),
        ("## wait_for_batch ##", Region.DATA),
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", Region.DATA),
        ("[pl][profile]train_dataloader_next", Region.DATA),
        ("gradient_sync", Region.OTHER),
        ("gradient_clipping_warmup", Region.OTHER),
        ("step_12", None),
        ("ProfilerStep#3", None),
        ("nccl:all_reduce", None),
        ("aten::mm", None),
        ("FSDP::all_gather (blocks.5)", None),
    ],
)
def test_usual_names_mean_their_part(name: str, region: Region | None) -> None:
    assert named_region(name) is region

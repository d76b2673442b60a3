import torch
import torch.distributed as dist

from stepscope.record.memory import at_peak, bucket_sizes, storages_of, totals


def trained(model):
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    return optimizer


def test_each_category_has_its_bytes():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.BatchNorm1d(8, affine=False))
    optimizer = trained(model)
    found = totals(storages_of(model.modules(), optimizers=[optimizer]), device="cpu")
    weight = 8 * 8 * 4
    assert found["parameters"] == weight
    assert found["gradients"] == weight
    assert found["optimizer"] == 2 * weight + 4  # two moments and the step count
    assert found["buffers"] == 2 * 8 * 4 + 8  # mean, variance, batch count


def test_tied_weights_are_counted_once():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 8, bias=False))
    model[1].weight = model[0].weight
    assert totals(storages_of(model.modules()), device="cpu")["parameters"] == 8 * 8 * 4


def test_peak_is_the_sum_of_its_parts():
    known = {"parameters": 100, "gradients": 50, "optimizer": 200, "buffers": 10, "communication": 0}
    peak = at_peak(1000, edge=(760, known), between=("begin backward_pass", "end backward_pass"))
    assert peak["activations_bytes"] == 400
    assert peak["temporary_bytes"] == 240
    parts = [peak[f"{part}_bytes"] for part in (*known, "activations", "temporary")]
    assert sum(parts) == peak["peak_bytes"]


def test_buckets_of_ddp_are_counted_unless_gradients_are_views_of_them(tmp_path):
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        for is_view in (False, True):
            model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(2)])
            parallel = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=is_view)
            for _ in range(2):  # the second step has the buckets in the order of the first
                parallel(torch.ones(1, 256)).sum().backward()
            weights = sum(p.numel() * 4 for p in model.parameters())
            assert sum(bucket_sizes(parallel.modules(), device="cpu")) == (0 if is_view else weights)
            assert bucket_sizes(parallel.modules(), device="cuda:0") == []
    finally:
        dist.destroy_process_group()

import torch
import torch.distributed as dist

from stepscope.record.memory import at_peak, bucket_sizes, live_objects, storages_of, totals


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


def test_views_of_one_flat_storage_are_counted_once():
    flat = torch.zeros(128)
    model = torch.nn.Module()
    model.a = torch.nn.Parameter(flat[:64])
    model.b = torch.nn.Parameter(flat[64:])
    assert totals(storages_of([model]), device="cpu")["parameters"] == 128 * 4


def test_parameters_only_the_optimizer_knows_are_counted():
    loose = torch.nn.Parameter(torch.zeros(16))
    optimizer = torch.optim.SGD([loose])
    assert totals(storages_of([], optimizers=[optimizer]), device="cpu")["parameters"] == 16 * 4


def test_tensors_on_the_meta_device_take_no_memory():
    model = torch.nn.Linear(8, 8, device="meta")
    assert storages_of([model]) == []


def test_models_and_optimizers_are_found_without_being_told():
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters())
    modules, optimizers = live_objects()
    assert any(m is model for m in modules)
    assert any(o is optimizer for o in optimizers)


def test_peak_is_the_sum_of_its_parts():
    known = {"parameters": 100, "gradients": 50, "optimizer": 200, "buffers": 10, "communication": 0}
    peak = at_peak(1000, edge=(760, known), between=("begin backward_pass", "end backward_pass"))
    assert peak.activations_bytes == 400
    assert peak.temporary_bytes == 240
    parts = (peak.parameters_bytes, peak.gradients_bytes, peak.optimizer_bytes, peak.buffers_bytes)
    assert sum(parts) + peak.activations_bytes + peak.temporary_bytes == peak.peak_bytes


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

"""The number of processes and the rank come from torchrun's environment."""

from argparse import Namespace

import pytest

from luna_fairseq.engine.processes import _start_processes
from luna_fairseq.errors import InputError


def make_options(method=None):
    return Namespace(
        distributed_init_method=method,
        distributed_world_size=1,
        distributed_rank=0,
        device_id=0,
        distributed_no_spawn=False,
        distributed_backend="nccl",
        ddp_backend="c10d",
    )


@pytest.mark.parametrize(
    "method, size, is_used", [(None, "4", True), (None, "1", False), ("tcp://h:1", "4", False)]
)
def test_ranks_of_torchrun_are_used(method, size, is_used, monkeypatch):
    """The job has two nodes with two GPUs, or with one GPU each. fairseq alone would start two runs."""
    for name, value in {"MASTER_ADDR": "h", "MASTER_PORT": "1", "WORLD_SIZE": size, "RANK": "3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCAL_RANK", "1")
    distributed = make_options(method)
    cfg = Namespace(distributed_training=distributed, common=Namespace(bf16=False, cpu=True, tpu=False))
    assert _start_processes(lambda cfg, main: (cfg, main), cfg, "main") == (cfg, "main")
    if not is_used:
        assert distributed == make_options(method)
        return
    assert (distributed.distributed_world_size, distributed.distributed_rank, distributed.device_id) == (
        4,
        3,
        1,
    )
    assert distributed.distributed_init_method == "env://" and distributed.distributed_no_spawn
    assert distributed.distributed_backend == "gloo"


@pytest.mark.parametrize("cpu, reason", [(True, "--cpu is set"), (False, "torch sees no GPU")])
def test_cpus_of_several_slurm_nodes_are_refused(cpu, reason, monkeypatch):
    """fairseq's processes on CPUs connect to localhost, so that each node would train a model of its own."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setenv("SLURM_STEP_NUM_NODES", "2")
    distributed = make_options()
    distributed.distributed_world_size = 16
    cfg = Namespace(distributed_training=distributed, common=Namespace(bf16=False, cpu=cpu, tpu=False))
    with pytest.raises(InputError, match=f"{reason}, so each of the 2 nodes"):
        _start_processes(lambda *_: None, cfg, "main")

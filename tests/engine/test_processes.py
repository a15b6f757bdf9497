"""What torchrun says in the environment."""

from argparse import Namespace

import pytest

from luna_fairseq.engine.processes import _with_its_processes


def options(method=None):
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
    "method, size, taken", [(None, "4", True), (None, "1", False), ("tcp://h:1", "4", False)]
)
def test_ranks_of_the_launcher(method, size, taken, monkeypatch):
    """Two nodes of two GPUs, or of one GPU each, which fairseq takes for two runs."""
    for name, value in {"MASTER_ADDR": "h", "MASTER_PORT": "1", "WORLD_SIZE": size, "RANK": "3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCAL_RANK", "1")
    found = options(method)
    cfg = Namespace(distributed_training=found, common=Namespace(bf16=False, cpu=True, tpu=False))
    assert _with_its_processes(lambda cfg, main: (cfg, main), cfg, "main") == (cfg, "main")
    if not taken:
        assert found == options(method)
        return
    assert (found.distributed_world_size, found.distributed_rank, found.device_id) == (4, 3, 1)
    assert found.distributed_init_method == "env://" and found.distributed_no_spawn
    assert found.distributed_backend == "gloo"

"""Several processes: without a GPU, under torchrun, and what becomes of the others when one of them ends."""

import functools
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from typing import Any, Callable, List

import torch

from luna_fairseq.engine.termination import TERMINATED
from luna_fairseq.errors import InputError

_LAUNCHED = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")
# Seconds that processes are given to end by themselves after one of them failed.
PATIENCE = 60


def mend_processes() -> None:
    """Have fairseq train with several processes on CPUs too, and end all of them when one fails or is terminated."""
    from fairseq.distributed import utils
    from fairseq.models import distributed_fairseq_model

    if not hasattr(utils.call_main, "mends_processes"):
        utils.call_main = _mended_call(utils.call_main, utils)
        data_parallel = distributed_fairseq_model.DistributedDataParallel
        distributed_fairseq_model.DistributedDataParallel = _on_any_device(data_parallel)


def _mended_call(call_main: Callable[..., Any], utils: Any) -> Callable[..., Any]:
    @functools.wraps(call_main)
    def wrapped(cfg: Any, main: Callable[..., Any], **kwargs: Any) -> Any:
        distributed = cfg.distributed_training
        _refuse_sharding(cfg)
        _take_ranks_of_the_launcher(distributed)
        on_cpu = cfg.common.cpu or not torch.cuda.is_available()
        if on_cpu and not cfg.common.tpu and distributed.distributed_world_size > 1:
            distributed.distributed_backend = "gloo"
            if not distributed.distributed_no_spawn:
                return _in_charge_of_children(_spawn_on_cpu, cfg, main, utils, kwargs)
        if distributed.distributed_no_spawn or distributed.distributed_world_size == 1:
            return call_main(cfg, main, **kwargs)
        return _in_charge_of_children(call_main, cfg, main, **kwargs)

    wrapped.mends_processes = True  # type: ignore[attr-defined]
    return wrapped


def _refuse_sharding(cfg: Any) -> None:
    sharded = cfg.distributed_training.ddp_backend == "fully_sharded"
    if sharded and getattr(cfg.optimizer, "_name", None) == "apollo":
        raise InputError(
            "--ddp-backend fully_sharded does not work with --optimizer apollo, whose norms are of whole parameters, "
            "not of flattened shards: use --ddp-backend c10d or legacy_ddp, or --optimizer adam"
        )


def _take_ranks_of_the_launcher(distributed: Any) -> None:
    """What torchrun says in the environment.

    fairseq looks at it only when this process sees several GPUs, so that nodes of one GPU trained one model each, and
    divides by the number of GPUs.
    """
    launched = all(name in os.environ for name in _LAUNCHED) and int(os.environ["WORLD_SIZE"]) > 1
    if launched and distributed.distributed_init_method is None:
        distributed.distributed_init_method = "env://"
        distributed.distributed_world_size = int(os.environ["WORLD_SIZE"])
        distributed.distributed_rank = int(os.environ["RANK"])
        distributed.device_id = int(os.environ.get("LOCAL_RANK", 0))
        distributed.distributed_no_spawn = True


def _spawn_on_cpu(cfg: Any, main: Callable[..., Any], utils: Any, kwargs: Any) -> None:
    """What fairseq does with a process per GPU, with --distributed-world-size processes on this machine."""
    distributed = cfg.distributed_training
    if distributed.distributed_init_method is None:
        port = distributed.distributed_port if distributed.distributed_port > 0 else random.randint(10000, 60000)
        distributed.distributed_init_method = f"tcp://localhost:{port}"
    distributed.distributed_rank = None  # assigned to each process by fairseq
    torch.multiprocessing.spawn(
        utils.distributed_main, args=(main, cfg, kwargs), nprocs=distributed.distributed_world_size
    )


def _in_charge_of_children(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call what starts a process per device; hand SIGTERM on to these, end all when one fails, say why in one line."""
    from torch.multiprocessing import ProcessExitedException, ProcessRaisedException

    previous = signal.signal(signal.SIGTERM, _terminate_children)
    ended = threading.Event()
    threading.Thread(target=_kill_survivors, args=(ended,), daemon=True).start()
    try:
        return call(*args, **kwargs)
    except ProcessExitedException as error:
        if error.exit_code in (TERMINATED, -signal.SIGTERM):
            sys.exit(TERMINATED)
        sys.exit(f"luna_fairseq: error: {error}; the others were ended too: start again to go on")
    except ProcessRaisedException as error:
        prefix = "luna_fairseq.errors.InputError: "
        for line in str(error).splitlines():
            if line.startswith(prefix):
                raise InputError(line[len(prefix) :]) from None
        raise
    finally:
        ended.set()
        signal.signal(signal.SIGTERM, previous)


def _terminate_children(*_: Any) -> None:
    for process in multiprocessing.active_children():
        process.terminate()


def _kill_survivors(ended: threading.Event) -> None:
    """Kill processes that are still there ``PATIENCE`` seconds after another one failed.

    Before torch 2.4 its spawn only asks them to end; one that waits for the failed process never does.
    """
    seen: List[Any] = []
    failed_at = None
    while not ended.wait(1.0):
        alive = multiprocessing.active_children()
        seen += [process for process in alive if process not in seen]
        if failed_at is None and any(process.exitcode not in (None, 0) for process in seen):
            failed_at = time.monotonic()
        if failed_at is not None and time.monotonic() > failed_at + PATIENCE:
            for process in alive:
                process.kill()


def _on_any_device(data_parallel: Callable[..., Any]) -> Callable[..., Any]:
    """torch's DistributedDataParallel, which takes the number of a device only for one that has a number."""

    @functools.wraps(data_parallel, updated=())
    def wrapped(module: Any, device_ids: Any = None, output_device: Any = None, **kwargs: Any) -> Any:
        if all(p.device.type == "cpu" for p in module.parameters()):
            device_ids = output_device = None
        return data_parallel(module, device_ids=device_ids, output_device=output_device, **kwargs)

    return wrapped

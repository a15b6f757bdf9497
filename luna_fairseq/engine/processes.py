"""Several processes: without a GPU, under torchrun, and what becomes of the others when one of them ends."""

import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from typing import Any, Callable, List

import torch

from luna_fairseq.engine.mend import Mend
from luna_fairseq.engine.termination import TERMINATED
from luna_fairseq.errors import InputError, in_command, one_line_of_another_process

_LAUNCHED = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")
# Seconds that processes are given to end by themselves after one of them failed.
PATIENCE = 60


CPU_PROCESSES = Mend(
    "cpu-processes",
    what="trains with --distributed-world-size processes on this machine's CPUs too",
    why="it starts a process per GPU only",
)

LAUNCHER_RANKS = Mend(
    "launcher-ranks",
    what="believes torchrun how many processes there are, and which one this is",
    why="it looks at what torchrun says only when this process sees several GPUs, and divides by their "
    "number: nodes of one GPU would train one model each. (fairseq-hydra-train reads a plugin too late "
    "for that: name the world size there)",
)

ENDING_TOGETHER = Mend(
    "ending-together",
    what="ends all processes of a run when one fails or the run is terminated, and says why in one line",
    why="the others would wait for the one that failed",
)

SHARDED_APOLLO = Mend(
    "sharded-apollo",
    what="refuses --ddp-backend fully_sharded with --optimizer apollo",
    why="Apollo's norms are of whole parameters, not of flattened shards: it would train otherwise than it "
    "should",
)

_CALL_MAIN = "fairseq.distributed.utils:call_main"


def _launched() -> bool:
    """Whether torchrun started this process as one of several."""
    return all(name in os.environ for name in _LAUNCHED) and int(os.environ["WORLD_SIZE"]) > 1


@CPU_PROCESSES.around(_CALL_MAIN)
def _on_cpus(call_main: Callable[..., Any], cfg: Any, main: Callable[..., Any], **kwargs: Any) -> Any:
    """What fairseq does with a process per GPU."""
    distributed = cfg.distributed_training
    on_cpu = (cfg.common.cpu or not torch.cuda.is_available()) and not cfg.common.tpu
    if not on_cpu or distributed.distributed_world_size == 1:
        return call_main(cfg, main, **kwargs)
    distributed.distributed_backend = "gloo"
    if distributed.distributed_no_spawn:
        return call_main(cfg, main, **kwargs)
    if distributed.distributed_init_method is None:
        port = distributed.distributed_port
        port = port if port > 0 else random.randint(10000, 60000)
        distributed.distributed_init_method = f"tcp://localhost:{port}"
    distributed.distributed_rank = None  # assigned to each process by fairseq
    from fairseq.distributed.utils import distributed_main

    torch.multiprocessing.spawn(
        distributed_main, args=(main, cfg, kwargs), nprocs=distributed.distributed_world_size
    )


@CPU_PROCESSES.around("fairseq.models.distributed_fairseq_model:DistributedDataParallel")
def _on_any_device(
    data_parallel: Callable[..., Any],
    module: Any,
    device_ids: Any = None,
    output_device: Any = None,
    **kwargs: Any,
) -> Any:
    """torch's takes the number of a device only for one that has a number."""
    if all(p.device.type == "cpu" for p in module.parameters()):
        device_ids = output_device = None
    return data_parallel(module, device_ids=device_ids, output_device=output_device, **kwargs)


@LAUNCHER_RANKS.around(_CALL_MAIN)
def _with_ranks_of_the_launcher(
    call_main: Callable[..., Any], cfg: Any, main: Callable[..., Any], **kwargs: Any
) -> Any:
    distributed = cfg.distributed_training
    if _launched() and distributed.distributed_init_method is None:
        distributed.distributed_init_method = "env://"
        distributed.distributed_world_size = int(os.environ["WORLD_SIZE"])
        distributed.distributed_rank = int(os.environ["RANK"])
        distributed.device_id = int(os.environ.get("LOCAL_RANK", 0))
        distributed.distributed_no_spawn = True
    return call_main(cfg, main, **kwargs)


@LAUNCHER_RANKS.around("fairseq.trainer:Trainer.__init__")
def _refusing_to_train_apart(
    init: Callable[..., Any], self: Any, cfg: Any, *args: Any, **kwargs: Any
) -> None:
    """fairseq-hydra-train imports a plugin when call_main is over."""
    if in_command() and _launched() and cfg.distributed_training.distributed_world_size == 1:
        raise InputError(
            "each of the processes that torchrun started would train a model of its own: "
            f"give distributed_training.distributed_world_size={os.environ['WORLD_SIZE']}"
        )
    init(self, cfg, *args, **kwargs)


@SHARDED_APOLLO.around(_CALL_MAIN)
def _refusing_shards(call_main: Callable[..., Any], cfg: Any, main: Callable[..., Any], **kwargs: Any) -> Any:
    sharded = cfg.distributed_training.ddp_backend == "fully_sharded"
    if sharded and getattr(cfg.optimizer, "_name", None) == "apollo":
        raise InputError(
            "--ddp-backend fully_sharded does not work with --optimizer apollo, whose norms are of whole "
            "parameters, not of flattened shards: use --ddp-backend c10d or legacy_ddp, or --optimizer adam"
        )
    return call_main(cfg, main, **kwargs)


@ENDING_TOGETHER.around(_CALL_MAIN)
def _in_charge_of_children(
    call_main: Callable[..., Any], cfg: Any, main: Callable[..., Any], **kwargs: Any
) -> Any:
    """Hand SIGTERM on to the processes that are started here, end all when one fails."""
    from torch.multiprocessing import ProcessExitedException, ProcessRaisedException

    distributed = cfg.distributed_training
    if distributed.distributed_no_spawn or distributed.distributed_world_size == 1:
        return call_main(cfg, main, **kwargs)
    previous = signal.signal(signal.SIGTERM, _terminate_children)
    ended = threading.Event()
    threading.Thread(target=_kill_survivors, args=(ended,), daemon=True).start()
    try:
        return call_main(cfg, main, **kwargs)
    except ProcessExitedException as error:
        if error.exit_code in (TERMINATED, -signal.SIGTERM):
            sys.exit(TERMINATED)
        sys.exit(f"luna_fairseq: error: {error}; the others were ended too: start again to go on")
    except ProcessRaisedException as error:
        said = one_line_of_another_process(str(error))
        if said is None:
            raise
        raise InputError(said) from None
    finally:
        ended.set()
        signal.signal(signal.SIGTERM, previous)


@ENDING_TOGETHER.around("fairseq.distributed.distributed_timeout_wrapper:DistributedTimeoutWrapper.__init__")
def _ended_for_certain(init: Callable[..., None], self: Any, module: Any, timeout: int, **_: Any) -> None:
    """--heartbeat-timeout: a process that waits for another one in a sum over all heeds no SIGINT."""
    init(self, module, timeout, signal=signal.SIGKILL)


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

"""Several processes: on CPUs, under torchrun, and how all of them end when one fails."""

import functools
import importlib.util
import math
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from contextlib import contextmanager
from typing import Any, Iterator, Set

import torch

from luna_fairseq.checks.options import launched
from luna_fairseq.engine.mend import RUNS, Function, Mend
from luna_fairseq.engine.stopping import TERMINATED
from luna_fairseq.errors import InputError, in_command, one_line_for

# Seconds after which processes are killed that have not ended by themselves when another one failed.
PATIENCE = 60

PROCESSES = Mend(
    "processes",
    RUNS,
    "Several processes do not train on CPUs, --bf16 asks for a TPU, the machines of a torchrun job train one "
    "model each, a job hangs after one of its processes failed, and Apollo computes norms of shards.",
)


@PROCESSES.around("fairseq.distributed.utils:call_main")
def _with_its_processes(call_main: Function, cfg: Any, main: Function, **kwargs: Any) -> Any:
    distributed = cfg.distributed_training
    if distributed.ddp_backend == "fully_sharded" and getattr(cfg.optimizer, "_name", None) == "apollo":
        raise InputError(
            "--ddp-backend fully_sharded does not work with --optimizer apollo, whose norms are of whole "
            "parameters, not of flattened shards: use --ddp-backend c10d or legacy_ddp, or --optimizer adam"
        )
    if cfg.common.bf16 and "--tpu" not in sys.argv and importlib.util.find_spec("torch_xla") is None:
        cfg.common.tpu = False
    if launched() > 1 and distributed.distributed_init_method is None:
        distributed.distributed_init_method = "env://"
        distributed.distributed_world_size = launched()
        distributed.distributed_rank = int(os.environ["RANK"])
        distributed.device_id = int(os.environ.get("LOCAL_RANK", 0))
        distributed.distributed_no_spawn = True
    if distributed.distributed_world_size == 1:
        return call_main(cfg, main, **kwargs)
    on_cpu = (cfg.common.cpu or not torch.cuda.is_available()) and not cfg.common.tpu
    if on_cpu:
        distributed.distributed_backend = "gloo"
    if distributed.distributed_no_spawn:
        return call_main(cfg, main, **kwargs)
    reported = torch.multiprocessing.get_context("spawn").Value("b", 0)
    if in_command():
        main = functools.partial(_report_in_child, main, reported)
    with _in_charge_of_children(reported):
        return _spawn(cfg, main, kwargs) if on_cpu else call_main(cfg, main, **kwargs)


def _report_in_child(main: Function, reported: Any, cfg: Any, **kwargs: Any) -> None:
    """Run ``main`` in a spawned process, and print one line for an error of the user.

    reported: value that all processes share. The first process that prints a line sets it to 1, so that an
        error of all processes is printed once.
    """
    try:
        main(cfg, **kwargs)
    except Exception as error:
        line = one_line_for(error)
        if line is None:
            raise
        with reported.get_lock():
            if not reported.value:
                print(f"luna_fairseq: error: {line}", file=sys.stderr, flush=True)
            reported.value = 1
        sys.exit(1)


def refuse_to_train_apart(cfg: Any) -> None:
    """Raise InputError if each process of torchrun would train a model of its own.

    This happens under fairseq-hydra-train, which imports a plugin after call_main.
    """
    if in_command() and launched() > 1 and cfg.distributed_training.distributed_world_size == 1:
        raise InputError(
            "each of the processes that torchrun started would train a model of its own: "
            f"give distributed_training.distributed_world_size={launched()}"
        )


def _spawn(cfg: Any, main: Function, kwargs: Any) -> None:
    """Start one process per rank, as fairseq does for GPUs."""
    from fairseq.distributed.utils import distributed_main

    distributed = cfg.distributed_training
    if distributed.distributed_init_method is None:
        port = max(0, distributed.distributed_port) or random.randint(10000, 60000)
        distributed.distributed_init_method = f"tcp://localhost:{port}"
    distributed.distributed_rank = None  # assigned to each process by fairseq
    count = distributed.distributed_world_size
    torch.multiprocessing.spawn(distributed_main, args=(main, cfg, kwargs), nprocs=count)


@PROCESSES.around("fairseq.models.distributed_fairseq_model:DistributedDataParallel")
def _on_any_device(
    ddp: Function, module: Any, device_ids: Any = None, output_device: Any = None, *args: Any, **kw: Any
) -> Any:
    """Pass no device numbers for a model on CPUs: torch refuses them."""
    if all(p.device.type == "cpu" for p in module.parameters()):
        device_ids = output_device = None
    return ddp(module, device_ids, output_device, *args, **kw)


@contextmanager
def _in_charge_of_children(reported: Any) -> Iterator[None]:
    """Context manager that passes SIGTERM on to the processes started in it, and ends all when one fails.

    reported: shared value that is 1 when a process has printed its error.
    """
    from torch.multiprocessing import ProcessExitedException

    def terminate(*_: Any) -> None:
        for process in multiprocessing.active_children():
            process.terminate()

    previous = signal.signal(signal.SIGTERM, terminate)
    ended = threading.Event()
    threading.Thread(target=_kill_survivors, args=(ended,), daemon=True).start()
    try:
        yield
    except ProcessExitedException as error:
        if error.exit_code in (TERMINATED, -signal.SIGTERM):
            sys.exit(TERMINATED)
        if reported.value:
            sys.exit(1)
        sys.exit(f"luna_fairseq: error: {error}; the others were ended too: start again to go on")
    finally:
        ended.set()
        signal.signal(signal.SIGTERM, previous)


def _kill_survivors(ended: threading.Event) -> None:
    """Kill processes that are still alive ``PATIENCE`` seconds after another one failed.

    Before torch 2.4 ``spawn`` only asks them to end, and a process that waits for the failed one never does.
    """
    seen: Set[Any] = set()
    last = math.inf
    while not ended.wait(1.0):
        seen.update(multiprocessing.active_children())
        if any(process.exitcode not in (None, 0) for process in seen):
            last = min(last, time.monotonic() + PATIENCE)
        if time.monotonic() > last:
            for process in multiprocessing.active_children():
                process.kill()

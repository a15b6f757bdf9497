"""fairseq patch ``processes``: distributed training on CPUs and under torchrun.

If one process fails, all are terminated.
"""

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

from luna_fairseq.checks.options import count_processes
from luna_fairseq.child_processes import STOP_SIGNALS, STOPPED, TERMINATED, handle_stop_signals
from luna_fairseq.command_errors import describe_user_error, is_command
from luna_fairseq.engine.patch import RUNS, Function, Patch
from luna_fairseq.errors import InputError

# Processes still running this many seconds after another process has failed are killed.
PATIENCE = 60

PROCESSES = Patch(
    "processes",
    RUNS,
    "Training with several processes on CPUs fails, --bf16 needs a TPU, each machine of a torchrun job "
    "trains a separate model, a job hangs after one of its processes has failed, and Apollo computes norms "
    "of shards.",
)


@PROCESSES.replaces("fairseq.distributed.utils:call_main")
def _start_processes(call_main: Function, cfg: Any, main: Function, **kwargs: Any) -> Any:
    """Replacement for ``call_main`` that runs ``main`` in every process of a job, on GPUs or CPUs.

    The number of processes comes from the configuration or from torchrun's environment variables.
    """
    distributed = cfg.distributed_training
    if distributed.ddp_backend == "fully_sharded" and getattr(cfg.optimizer, "_name", None) == "apollo":
        raise InputError(
            "--ddp-backend fully_sharded does not work with --optimizer apollo, which needs whole "
            "parameters. Use --ddp-backend c10d or legacy_ddp, or --optimizer adam"
        )
    if cfg.common.bf16 and "--tpu" not in sys.argv and importlib.util.find_spec("torch_xla") is None:
        cfg.common.tpu = False
    if count_processes() > 1 and distributed.distributed_init_method is None:
        distributed.distributed_init_method = "env://"
        distributed.distributed_world_size = count_processes()
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
    nodes = int(os.environ.get("SLURM_STEP_NUM_NODES", 1))
    if on_cpu and nodes > 1:
        reason = "--cpu is set" if cfg.common.cpu else "torch sees no GPU"
        raise InputError(
            f"{reason}, so each of the {nodes} nodes of this SLURM job would train a separate model. Use one "
            "node, or a build of torch that supports the GPUs and their driver"
        )
    reported = torch.multiprocessing.get_context("spawn").Value("b", 0)
    if is_command():
        main = functools.partial(_report_in_child, main, reported)
    with _manage_children(reported):
        return _spawn(cfg, main, kwargs) if on_cpu else call_main(cfg, main, **kwargs)


def _report_in_child(main: Function, reported: Any, cfg: Any, **kwargs: Any) -> None:
    """Run ``main`` in a spawned process, and print user errors as a single line in place of a traceback.

    ``reported`` is an integer shared by all processes. Only the first failing process prints its error and
    sets ``reported`` to 1.
    """
    try:
        main(cfg, **kwargs)
    except Exception as error:
        line = describe_user_error(error)
        if line is None:
            raise
        with reported.get_lock():
            if not reported.value:
                print(f"luna_fairseq: error: {line}", file=sys.stderr, flush=True)
            reported.value = 1
        sys.exit(1)


def check_world_size(cfg: Any) -> None:
    """Raise InputError if each process started by torchrun would train a separate model.

    This happens under fairseq-hydra-train, which imports the plugin after it has determined the world size.
    """
    if is_command() and count_processes() > 1 and cfg.distributed_training.distributed_world_size == 1:
        raise InputError(
            "each process that torchrun started would train a separate model. "
            f"Use distributed_training.distributed_world_size={count_processes()}"
        )


def ignore_stop_signals_in_launcher() -> None:
    """Make torch's launcher ignore SIGTERM and SIGHUP while its processes train.

    The processes do not inherit this handler, unlike an ignored signal.
    """
    from torch.distributed.elastic.multiprocessing import api

    stop: Any = api._terminate_process_handler

    def stop_unless_ignored(number: int, frame: Any) -> None:
        if number not in STOP_SIGNALS:
            stop(number, frame)

    api._terminate_process_handler = stop_unless_ignored


def _spawn(cfg: Any, main: Function, kwargs: Any) -> None:
    """Run ``main(cfg, **kwargs)`` in one process per rank on the CPU, as fairseq does on GPUs, and wait."""
    from fairseq.distributed.utils import distributed_main

    distributed = cfg.distributed_training
    if distributed.distributed_init_method is None:
        port = max(0, distributed.distributed_port) or random.randint(10000, 60000)
        distributed.distributed_init_method = f"tcp://localhost:{port}"
    distributed.distributed_rank = None  # assigned to each process by fairseq
    count = distributed.distributed_world_size
    torch.multiprocessing.spawn(distributed_main, args=(main, cfg, kwargs), nprocs=count)


@PROCESSES.replaces("fairseq.models.distributed_fairseq_model:DistributedDataParallel")
def _wrap_on_any_device(
    ddp: Function, module: Any, device_ids: Any = None, output_device: Any = None, *args: Any, **kw: Any
) -> Any:
    """Replacement for fairseq's DistributedDataParallel that also accepts models on the CPU.

    torch rejects device IDs for a model on the CPU, so the IDs are omitted there.
    """
    if all(p.device.type == "cpu" for p in module.parameters()):
        device_ids = output_device = None
    return ddp(module, device_ids, output_device, *args, **kw)


@contextmanager
def _manage_children(reported: Any) -> Iterator[None]:
    """Context manager for the code in which a parent process waits for its training processes.

    SIGTERM is forwarded to the children. If a child fails, the others are terminated, and this process exits.
    ``reported`` is a shared integer, set to 1 once a child has printed its error.
    """
    from torch.multiprocessing import ProcessExitedException

    def terminate(*_: Any) -> None:
        for process in multiprocessing.active_children():
            process.terminate()

    previous = handle_stop_signals(terminate)
    stop_event = threading.Event()
    threading.Thread(target=_kill_remaining_processes, args=(stop_event,), daemon=True).start()
    try:
        yield
    except ProcessExitedException as error:
        if error.exit_code in STOPPED:
            sys.exit(TERMINATED)
        if reported.value:
            sys.exit(1)
        sys.exit(
            f"luna_fairseq: error: {error}. The other processes were ended. Repeat the command to resume "
            "training"
        )
    finally:
        stop_event.set()
        for number, handler in previous.items():
            signal.signal(number, handler)


def _kill_remaining_processes(stop_event: threading.Event) -> None:
    """Kill the remaining processes of a job ``PATIENCE`` seconds after one of them has failed.

    Before torch 2.4, ``spawn`` only sends SIGTERM to the remaining processes. A process that waits for the
    failed process would never terminate.
    """
    seen: Set[Any] = set()
    deadline = math.inf
    while not stop_event.wait(1.0):
        seen.update(multiprocessing.active_children())
        if any(process.exitcode not in (None, 0) for process in seen):
            deadline = min(deadline, time.monotonic() + PATIENCE)
        if time.monotonic() > deadline:
            for process in multiprocessing.active_children():
                process.kill()

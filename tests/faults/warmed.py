"""Commands in processes forked from this one, which has imported everything: they start at once.

Such a process is a group of its own, as a shell makes it, with the commands that it starts itself. What it
says goes to a file. It can be given something to do first (a limit, a watch).
"""

import contextlib
import gc
import importlib
import mmap
import os
import random
import re
import runpy
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Callable, Dict, List, NamedTuple, Optional

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(1, str(ROOT / "tests"))
from forking import become  # noqa: E402

USER_DIR = str(ROOT / "luna_fairseq")
PROGRAMS = dict(
    re.findall(r'"(luna-[\w-]+) = ([\w.]+):main"', (ROOT / "setup.py").read_text(encoding="utf-8"))
)
IMPORTED = (
    *("fairseq_cli.train", "fairseq_cli.generate", "fairseq_cli.preprocess", "fairseq_cli.validate"),
    *("luna_fairseq", "torch._dynamo", "luna_fairseq.translation.prepare_bitext"),
    *("luna_fairseq.masked_lm.finetune", "luna_fairseq.huggingface.export"),
    *("luna_fairseq.huggingface.tokenizer", "luna_fairseq.huggingface.modeling_luna"),
)
LIMIT = 120  # seconds that a command of the campaign may take
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CHANGING = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree")

writings = mmap.mmap(-1, 8)  # file operations of the running command and of all that it started


class Ended(NamedTuple):
    """How a command ended: -N where signal N did it."""

    status: int
    output: str
    seconds: float
    program: str


def import_everything() -> None:
    os.environ.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", TOKENIZERS_PARALLELISM="false")
    sys.path.insert(0, str(ROOT))
    for name in (*IMPORTED, *PROGRAMS.values()):
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    # Otherwise every process copies all of this memory as soon as it collects its garbage.
    gc.collect()
    gc.freeze()


def run(
    words: List[str],
    log: Path,
    first: Optional[Callable[[], None]] = None,
    during: Optional[Callable[[int], None]] = None,
    limit: float = LIMIT,
) -> Ended:
    """Run a command to its end.

    Args:
        words: the command line; its first is fairseq-train, luna-prepare-bitext, ...
        log: file for what it says.
        first: called in the new process before the command.
        during: called here with the process's id while it runs, once.
        limit: seconds after which the whole group is killed and the campaign stops.
    """
    began = time.monotonic()
    process = start(words, log, first)
    if during is not None:
        during(process)
    status = wait(process, limit)
    output = Path(log).read_text(encoding="utf-8", errors="replace")
    return Ended(status, output, time.monotonic() - began, words[0])


def start(words: List[str], log: Path, first: Optional[Callable[[], None]] = None) -> int:
    writings[:] = bytes(8)
    sys.stdout.flush()
    process = os.fork()
    with contextlib.suppress(OSError):  # both set it, whoever comes first
        os.setpgid(process, 0)
    if process:
        return process
    target = os.open(str(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    _become(words, target, target, first)
    raise AssertionError("a process that became a command has ended")


def wait(process: int, limit: float = LIMIT) -> int:
    """The status of a process that start() began; its group ends with it."""
    until = time.monotonic() + limit
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > until:
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return -signal.SIGALRM
        time.sleep(0.001)
    with contextlib.suppress(OSError):
        os.killpg(process, signal.SIGKILL)
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _become(words: List[str], stdout: int, stderr: int, first: Optional[Callable[[], None]] = None) -> None:
    """Be the command from now on."""
    status = 1
    try:
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        import luna_fairseq.commands.logged as logged

        pipes = {"PIPE": subprocess.PIPE, "STDOUT": subprocess.STDOUT}
        logged.subprocess = SimpleNamespace(Popen=Forked, **pipes)
        if first is not None:
            first()
        status = _status_of(words)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _status_of(words: List[str]) -> int:
    from luna_fairseq.errors import in_one_line

    program, *rest = words
    sys.argv = [program, *rest]
    if program == "python":
        sys.argv = rest
        return become(lambda: runpy.run_path(rest[0], run_name="__main__"))
    if program not in PROGRAMS:  # what the import of the plugin would do
        sys.excepthook = in_one_line(sys.excepthook)
    module = PROGRAMS.get(program, program.replace("fairseq-", "fairseq_cli.").replace("-", "_"))
    if module in sys.modules and module.startswith(
        "fairseq_cli."
    ):  # as its script does; mended at the import
        vars(sys.modules["__main__"])["cli_main"] = sys.modules[module].cli_main
        return become(sys.modules[module].cli_main)
    return become(lambda: runpy.run_module(module, run_name="__main__", alter_sys=True))


class Forked:
    """subprocess.Popen of a command of fairseq's, forked from this process instead of started anew."""

    def __init__(self, command: List[str], stdout: int, stderr: object, env: Dict[str, str]) -> None:
        read, write = os.pipe()
        name = command[command.index("-m") + 1].replace("fairseq_cli.", "fairseq-")
        self.returncode: Optional[int] = None
        self.process = os.fork()
        if not self.process:
            os.close(read)
            os.environ.update(env)
            both = stderr == subprocess.STDOUT
            _become([name, *command[3:]], write, write if both else stderr.fileno())  # type: ignore
        os.close(write)
        self.stdout = os.fdopen(read, "rb")

    def __enter__(self) -> "Forked":
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()
        status = os.waitpid(self.process, 0)[1]
        self.returncode = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def writing_operations() -> int:
    """Of the last command."""
    return int.from_bytes(writings[:], "little")


def kill() -> None:
    """End the group by SIGKILL."""
    os.killpg(0, signal.SIGKILL)


def watching_writes(
    at: int = 0, then: Callable[[], None] = kill, while_saving: int = 0, delay: float = 0.0
) -> Callable[[], None]:
    """For run()'s ``first``: count what the command changes in files, and disturb it.

    Args:
        at: just before this file operation (0: never);
        then: what is done;
        while_saving: or it is killed ``delay`` seconds after it opened a checkpoint to write for the n-th
            time (0: never).
    """

    def kill_soon() -> None:
        time.sleep(delay)
        kill()

    saved = [0]

    def hook(event: str, args: tuple) -> None:
        opened = event == "open" and isinstance(args[2], int) and args[2] & WRITING
        if not opened and event not in CHANGING:
            return
        place = str(args[0])
        if place.startswith(("/dev", "/proc")) or args[0] is None or "__pycache__" in place:
            return
        number = writing_operations() + 1
        writings[:] = number.to_bytes(8, "little")
        if number == at:
            then()
        if while_saving and opened and place.endswith((".pt", ".pt.tmp")):
            saved[0] += 1
            if saved[0] == while_saving:
                threading.Thread(target=kill_soon, daemon=True).start()

    return lambda: sys.addaudithook(hook)


def after(seconds: float, signal_number: int) -> Callable[[int], None]:
    """For run()'s ``during``: the signal to the whole group, as a batch system sends it."""

    def send(process: int) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return
            time.sleep(0.001)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal_number)

    return send


def seeded(*parts: object) -> random.Random:
    return random.Random("/".join(map(str, parts)))

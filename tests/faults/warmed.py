"""Run commands in processes that are forked from this process, which has imported all modules.

A forked process starts at once. It leads a process group, like a command of a shell, which includes the
processes that it starts. Its output goes to a file. A function can run in the new process before the command,
for example to set a limit.
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
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(1, str(ROOT / "tests"))
from forking import run_program  # noqa: E402

USER_DIR = str(ROOT / "luna_fairseq")
PROGRAMS = dict(
    re.findall(r'"(luna-[\w-]+) = ([\w.]+):main"', (ROOT / "setup.py").read_text(encoding="utf-8"))
)
IMPORTED = (
    *("fairseq_cli.train", "fairseq_cli.generate", "fairseq_cli.preprocess", "fairseq_cli.validate"),
    *("luna_fairseq", "torch._dynamo", "luna_fairseq.translation.preparation"),
    *("luna_fairseq.masked_lm.finetuning.runs", "luna_fairseq.huggingface.export"),
    *("luna_fairseq.huggingface.tokenizer", "luna_fairseq.huggingface.modeling_luna"),
)
LIMIT = 120  # seconds that a command of the campaign may take
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CHANGING = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree")

# Number of file operations of the running command and of all processes that it started.
writings = mmap.mmap(-1, 8)


class Ended(NamedTuple):
    """End of a command.

    Attributes:
        status: exit status, or -N if signal N ended the command.
        output: everything that the command printed.
        seconds: time from start to end.
        program: name of the command.
    """

    status: int
    output: str
    seconds: float
    program: str


def import_everything() -> None:
    """Import the modules of all commands into this process."""
    os.environ.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", TOKENIZERS_PARALLELISM="false")
    sys.path.insert(0, str(ROOT))
    for name in (*IMPORTED, *PROGRAMS.values()):
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    # Without this, garbage collection in a forked process would copy all of this memory.
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
        words: command line, such as fairseq-train or luna-prepare-bitext with options.
        log: file for the output.
        first: function that the new process calls before the command (default: none).
        during: function that is called once in this process, with the id of the new process (default: none).
        limit: seconds after which the whole process group is killed.

    Returns:
        Status, output and duration of the command.
    """
    began = time.monotonic()
    process = start(words, log, first)
    if during is not None:
        during(process)
    status = wait(process, limit)
    output = Path(log).read_text(encoding="utf-8", errors="replace")
    return Ended(status, output, time.monotonic() - began, words[0])


def start(words: List[str], log: Path, first: Optional[Callable[[], None]] = None) -> int:
    """Start a command, and return its process id.

    Args:
        words: command line.
        log: file for the output.
        first: function that the new process calls before the command (default: none).
    """
    writings[:] = bytes(8)
    sys.stdout.flush()
    process = os.fork()
    with contextlib.suppress(OSError):  # parent and child both set it, and the second one may fail
        os.setpgid(process, 0)
    if process:
        return process
    target = os.open(str(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    _become_command(words, target, target, first)
    raise AssertionError("a process that became a command has ended")


def wait(process: int, limit: float = LIMIT) -> int:
    """Wait for a process, kill what is left of its process group, and return its status.

    Args:
        process: process id, from :func:`start`.
        limit: seconds after which the whole process group is killed.

    Returns:
        Exit status, or -N if signal N ended the process.
    """
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


def _become_command(
    words: List[str], stdout: int, stderr: int, first: Optional[Callable[[], None]] = None
) -> None:
    """Run a command in this forked process, and exit with its status.

    Args:
        words: command line.
        stdout: file descriptor for the output.
        stderr: file descriptor for errors.
        first: function to call before the command (default: none).
    """
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
        status = _run_command(words)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _run_command(words: List[str]) -> int:
    """Run a command in this process, and return its exit status."""
    from luna_fairseq.command_errors import make_excepthook

    program, *rest = words
    sys.argv = [program, *rest]
    if program == "python":
        sys.argv = rest
        return run_program(lambda: runpy.run_path(rest[0], run_name="__main__"))
    if program not in PROGRAMS:  # the import of the plugin would do this
        sys.excepthook = make_excepthook(sys.excepthook)
    module = PROGRAMS.get(program, program.replace("fairseq-", "fairseq_cli.").replace("-", "_"))
    if module in sys.modules and module.startswith("fairseq_cli."):
        # The script of the command calls cli_main, too. The changes to fairseq were made at the import.
        vars(sys.modules["__main__"])["cli_main"] = sys.modules[module].cli_main
        return run_program(sys.modules[module].cli_main)
    return run_program(lambda: runpy.run_module(module, run_name="__main__", alter_sys=True))


class Forked:
    """Replacement of subprocess.Popen that forks this process to run a fairseq command."""

    def __init__(
        self,
        command: List[str],
        stdout: int,
        stderr: object,
        env: Dict[str, str],
        pass_fds: Sequence[int] = (),  # a forked process has all of them
    ) -> None:
        read, write = os.pipe()
        name = command[command.index("-m") + 1].replace("fairseq_cli.", "fairseq-")
        self.returncode: Optional[int] = None
        self.process = os.fork()
        if not self.process:
            os.close(read)
            for number in (signal.SIGTERM, signal.SIGHUP):  # as in a program that has just been started
                signal.signal(number, signal.SIG_DFL)
            os.environ.update(env)
            both = stderr == subprocess.STDOUT
            _become_command([name, *command[3:]], write, write if both else stderr.fileno())  # type: ignore
        os.close(write)
        self.stdout = os.fdopen(read, "rb")

    def send_signal(self, number: int) -> None:
        os.kill(self.process, number)

    def __enter__(self) -> "Forked":
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()
        status = os.waitpid(self.process, 0)[1]
        self.returncode = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def writing_operations() -> int:
    """Return the number of file operations of the last command that was counted."""
    return int.from_bytes(writings[:], "little")


def kill() -> None:
    """Send SIGKILL to the process group of this process."""
    os.killpg(0, signal.SIGKILL)


def watching_writes(
    at: int = 0, then: Callable[[], None] = kill, while_saving: int = 0, delay: float = 0.0
) -> Callable[[], None]:
    """Return a function that counts a command's file operations and disturbs the command at one of them.

    Pass the function as ``first`` of :func:`run`.

    Args:
        at: number of the file operation before which ``then`` is called (default: 0, never).
        then: function that disturbs the command (default: :func:`kill`).
        while_saving: number of the checkpoint during whose writing the process group is killed (default: 0,
            never).
        delay: seconds between the opening of this checkpoint and the kill (default: 0).
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
    """Return a function that sends a signal to a command's process group after some seconds.

    Pass the function as ``during`` of :func:`run`. Batch systems signal the whole group, too.

    Args:
        seconds: delay of the signal.
        signal_number: number of the signal.
    """

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
    """Return a random number generator whose seed consists of ``parts``."""
    return random.Random("/".join(map(str, parts)))

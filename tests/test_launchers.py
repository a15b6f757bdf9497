"""Scripts that start commands: which commands they start, and SIGTERM."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
TORCHRUN, SBATCH = SCRIPTS / "train_torchrun.sh", SCRIPTS / "train_slurm.sbatch"
RECIPE = "luna_16_elu_tied"
TRAIN = "-m luna_fairseq.commands.train"
JOB = {
    "SLURM_JOB_ID": "1050007",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_GPUS_ON_NODE": "8",
    "SLURM_CPUS_PER_TASK": "6",
}


def write(path, text):
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)


def run(script, *words, path=None, **environment):
    folders = [str(path)] if path else []
    folders += [str(Path(sys.executable).parent), os.environ["PATH"]]  # python of the tests
    environment = {**os.environ, "PATH": os.pathsep.join(folders), **environment}
    return subprocess.run(
        ["bash", str(script), *words], capture_output=True, text=True, env=environment, timeout=60
    )


@pytest.mark.parametrize("script", [TORCHRUN, SBATCH])
def test_syntax(script):
    assert subprocess.run(["bash", "-n", str(script)]).returncode == 0
    assert os.access(str(script), os.X_OK)


@pytest.mark.parametrize("words", [["out", "--seed", "3"], ["--help"]])
def test_the_demo_has_no_options(words, tmp_path):
    write(tmp_path / "python", "exit 7")
    done = run(SCRIPTS / "demo.sh", *words, path=tmp_path)
    assert done.returncode == 1 and done.stderr.startswith("demo: error: expected at most a folder, got ")


def test_one_node(tmp_path):
    (tmp_path / "train.bin").touch()
    words = run(TORCHRUN, *f"--gpus 8 --dry-run {RECIPE} {tmp_path} --seed 2".split()).stdout.split()
    assert words[:6] == "python -m luna_fairseq.commands.torchrun --nproc_per_node 8 --standalone".split()
    assert words[6:] == f"{TRAIN} {RECIPE} {tmp_path} --seed 2 --distributed-world-size 8".split()


def test_several_nodes(tmp_path):
    write(tmp_path / "python", 'echo "$@" >&2')
    options = "--gpus 2 --nodes 4 --node-rank 2 --master first:1234 --dry-run".split()
    done = run(TORCHRUN, *options, RECIPE, "data", path=tmp_path)
    assert "--nnodes 4 --node_rank 2 --master_addr first --master_port 1234 " in done.stdout
    assert done.stdout.strip().endswith(f"{RECIPE} data --distributed-world-size 8")
    assert done.stderr == f"{TRAIN} --dry-run {RECIPE} data --distributed-world-size 8\n"


def test_recipe_and_data_are_looked_at_once_before_anything_starts():
    """The launcher first makes a dry run, which reports errors once (see tests/commands/test_launch.py)."""
    done = run(TORCHRUN, *f"--gpus 2 {RECIPE} nowhere".split())
    assert done.returncode == 1 and "nowhere is not a folder" in done.stderr.splitlines()[-1]
    assert done.stdout == "" and done.stderr.count("error") == 1


@pytest.mark.parametrize(
    "words, message",
    [
        ("--gpus 2 recipe", "RECIPE and DATA are missing"),
        ("--gpus none r d", "--gpus must be a positive number, got none"),
        ("--gpus 2 --nodes 2 r d", "--nodes 2 needs --node-rank 0 to 1"),
        ("--gpus 2 --nodes 2 --node-rank 0 r d", "--nodes 2 needs --master HOST"),
        ("--cpus 2 r d", "unknown option --cpus before RECIPE"),
    ],
)
def test_mistakes(words, message):
    done = run(TORCHRUN, *words.split())
    assert done.returncode == 1 and message in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("status", [143, 1])
def test_stopped_launcher(name, status, tmp_path):
    """The launcher passes the signal on, waits, and says by its status whether the processes have saved."""
    write(
        tmp_path / "python",
        '[[ "$*" == *--dry-run* ]] && exit 0\n'
        "trap '' HUP\n"
        "bash -c 'trap \"echo stopped; exit 0\" TERM; echo ready; while :; do sleep 0.05; done'; "
        f"exit {status}",
    )
    write(tmp_path / "pkill", "exit 127")  # many containers do not have it
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    environment["BASH_FUNC_kill%%"] = '() { builtin kill "$@"; sleep 0.3; }'  # processes end before the wait
    process = subprocess.Popen(
        ["bash", str(TORCHRUN), "--gpus", "1", "r", "d"], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.1)
    process.send_signal(getattr(signal, name))
    assert process.communicate(timeout=30)[0] == "stopped\n" and process.returncode == status


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_before_the_launcher_has_processes(name, tmp_path):
    """The launcher imports torch for seconds. A signal ends it then."""
    write(tmp_path / "python", '[[ "$*" == *--dry-run* ]] && exit 0\necho ready\nexec sleep 15')
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    process = subprocess.Popen(
        ["bash", str(TORCHRUN), "--gpus", "1", "r", "d"], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    process.send_signal(getattr(signal, name))
    process.communicate(timeout=30)
    assert process.returncode == 143


@pytest.mark.parametrize("statuses, expected", [("143 143", 143), ("-15 143", 143), ("1 143", 1), ("0 0", 0)])
def test_status_of_torchs_launcher(statuses, expected):
    """The first process that ends decides: a rank that cannot save ends before the others.

    SIGTERM (-15) ends a process that does not train yet.
    """
    code = "import os, sys, time; rank = int(os.environ['RANK']); time.sleep(rank); "
    code += f"status = [int(status) for status in '{statuses}'.split()][rank]; "
    code += "sys.exit(status) if status >= 0 else os.kill(os.getpid(), -status)"
    words = "-m luna_fairseq.commands.torchrun --nproc_per_node 2 --standalone --no_python".split()
    done = subprocess.run(
        [sys.executable, *words, sys.executable, "-c", code], capture_output=True, timeout=120
    )
    assert done.returncode == expected, done.stderr[-3000:]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_launcher_as_well(number):
    """A terminal that is closed sends the signal to all processes. The launcher waits for the training."""
    code = "import os, signal, sys, time; number = int(sys.argv[1]); "
    code += "print(os.getpid(), signal.getsignal(number), flush=True); "
    code += "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), sys.exit(143))); time.sleep(60)"
    words = "-m luna_fairseq.commands.torchrun --nproc_per_node 1 --standalone --no_python".split()
    command = [sys.executable, *words, sys.executable, "-c", code, str(int(number))]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        pid, handler = process.stdout.readline().split()
        time.sleep(0.5)
        process.send_signal(number)
        os.kill(int(pid), signal.SIGTERM)  # as scripts/train_torchrun.sh does
        errors = process.communicate(timeout=60)[1]
    assert process.returncode == 143, errors[-3000:]
    assert handler == str(signal.SIG_DFL)


@pytest.mark.parametrize("status", [0, 1, 143])
def test_slurm_job(status, tmp_path):
    write(tmp_path / "python", '[[ "$*" == *device_count* ]] && echo 8; exit 0')
    write(tmp_path / "srun", f'echo "$SRUN_CPUS_PER_TASK" srun "$@"; exit {status}')
    write(tmp_path / "scontrol", 'echo scontrol "$@"')
    done = run(SBATCH, "luna_16", "data", "--seed", "2", path=tmp_path, **JOB)
    lines = done.stdout.splitlines()
    assert lines[0] == (
        f"6 srun --ntasks-per-node=1 --kill-on-bad-exit=1 python {TRAIN} luna_16 data --seed 2"
        " --distributed-world-size 16 --distributed-port 10007"
    )
    assert lines[1:] == (["scontrol requeue 1050007"] if status == 143 else [])
    assert done.returncode == status


def test_slurm_mistakes(tmp_path):
    assert "usage: sbatch" in run(SBATCH, "luna_16").stderr
    done = run(SBATCH, "r", "d", **{**JOB, "SLURM_GPUS_ON_NODE": ""})
    assert done.returncode == 1 and "the job has no GPUs" in done.stderr
    write(tmp_path / "python", '[[ "$*" == *device_count* ]] && echo 0; exit 0')
    done = run(SBATCH, "r", "d", path=tmp_path, **JOB)
    assert done.returncode == 1 and "torch sees 0 GPUs, and the job has 8 on this node" in done.stderr
    write(tmp_path / "python", "exit 1")
    done = run(SBATCH, "r", "d", path=tmp_path, **JOB)
    assert done.returncode == 1 and "does not have luna_fairseq" in done.stderr

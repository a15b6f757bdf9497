"""Where and with what a run takes place."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any, Dict, Optional

import torch

from fairseq import __version__ as fairseq_version
from luna_fairseq import __version__
from luna_fairseq.benchmark.measure import Settings
from luna_fairseq.errors import InputError


def environment(settings: Settings) -> Dict[str, Any]:
    """Where and with what the run took place."""
    return {
        "hardware": hardware(settings.device),
        "logical_cpus": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "threads": settings.threads,
        "device": settings.device,
        "repetitions": settings.repetitions,
        "seed": settings.seed,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fairseq": fairseq_version,
        "luna_fairseq": __version__,
        "commit": commit(),
    }


def hardware(device: str) -> str:
    """Name of the GPU or of the processor."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def commit() -> Optional[str]:
    """Commit of the checkout that this file lies in, marked when files differ from it; None outside a
    checkout.
    """
    package = Path(__file__).resolve().parents[1]
    git = ["git", "-C", str(package)]
    try:
        # An installed copy may lie in somebody else's repository.
        subprocess.run([*git, "ls-files", "--error-unmatch", "__init__.py"], check=True, capture_output=True)
        described = subprocess.run(
            [*git, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            check=True,
            capture_output=True,
            text=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return described.stdout.strip()


def check_device(name: str) -> None:
    """Raise InputError unless the device is the CPU or a GPU that is there."""
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise InputError(f"unknown device {name!r}: give --device cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"there is no device {name}: torch sees {torch.cuda.device_count()} GPUs; use --device cpu"
        )

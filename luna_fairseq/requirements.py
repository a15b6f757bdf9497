"""Optional packages, and the extras of this package that install them."""

import importlib.util
import re
import sys
from importlib import import_module
from typing import Any, Optional, Tuple

from luna_fairseq.errors import InputError, MissingRequirementError

# Extra in setup.py that installs the package of each module.
EXTRAS = {
    "PIL": "lra",
    "fairseq": "fairseq",
    "matplotlib": "report",
    "numpy": "fairseq",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "onnxscript": "onnx",
    "sacrebleu": "fairseq",
    "sacremoses": "moses",
    "safetensors": "huggingface",
    "scipy": "fairseq",
    "sentencepiece": "fairseq",
    "sklearn": "fairseq",
    "subword_nmt": "moses",
    "tokenizers": "huggingface",
    "tqdm": "fairseq",
    "transformers": "huggingface",
    "yaml": "fairseq",
}
# PyPI names of packages whose name differs from the module name.
_PACKAGES = {"PIL": "pillow", "sklearn": "scikit-learn", "subword_nmt": "subword-nmt", "yaml": "PyYAML"}


def import_package(name: str, needed_by: str = "this") -> Any:
    """Import and return a package. If it is missing, the error names ``needed_by`` and the pip command.

    Example:
        >>> import_package("torch.nn").__name__
        'torch.nn'
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        advice = install_advice(error.name)
        if advice is None:
            raise
        raise MissingRequirementError(f"{needed_by} needs {advice}") from error


def require_fairseq() -> None:
    """Raise InputError with installation advice if fairseq is missing or older than 0.12."""
    engine = "fairseq-fixed==0.12.3.1" if sys.version_info >= (3, 11) else "fairseq==0.12.2"
    if importlib.util.find_spec("fairseq") is None:
        raise MissingRequirementError(
            f"luna_fairseq needs fairseq, which this Python does not have: pip install {engine}"
        )
    found = str(getattr(import_module("fairseq"), "__version__", "unknown"))
    # A fork may state any version, even one without numbers.
    if () < version_numbers(found) < (0, 12):
        raise InputError(
            f"luna_fairseq works with fairseq 0.12 or later, this is {found}: pip install {engine}"
        )


def version_numbers(text: str) -> Tuple[int, ...]:
    """Return the leading numbers of a version, such as (2, 13, 0) for "2.13.0+cpu"."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def install_advice(module: Optional[str]) -> Optional[str]:
    """Return "PACKAGE, which is not installed: pip install ...", or None if no extra installs the module."""
    top = (module or "").split(".")[0]
    if top not in EXTRAS:
        return None
    package = _PACKAGES.get(top, top)
    return f'{package}, which is not installed: pip install "luna_fairseq[{EXTRAS[top]}]"'

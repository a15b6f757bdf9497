"""Optional packages and the extras of this package that install them."""

from importlib import import_module
from typing import Any, Optional

from luna_fairseq.errors import MissingRequirementError

# Module that is imported -> extra in setup.py that installs its package.
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
# Packages on PyPI whose name is not that of their module.
_PACKAGES = {"PIL": "pillow", "sklearn": "scikit-learn", "subword_nmt": "subword-nmt", "yaml": "PyYAML"}


def import_package(name: str, needed_by: str = "this") -> Any:
    """Import an optional package, or a module of one.

    Args:
        name: dotted name of the module, such as ``subword_nmt.apply_bpe``
        needed_by: subject of the error message, such as ``--plot`` (default: "this")

    Returns:
        the module

    Raises:
        MissingRequirementError: the package is not installed; the message names the extra that installs it

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


def install_advice(module: Optional[str]) -> Optional[str]:
    """Return the name of a missing package and the command that installs it.

    Args:
        module: name of the module that was not found, as ``ModuleNotFoundError.name`` has it

    Returns:
        words that can follow "needs"; None if no extra installs the module

    Example:
        >>> install_advice("sacremoses")
        'sacremoses, which is not installed: pip install "luna_fairseq[moses]"'
    """
    top = (module or "").split(".")[0]
    if top not in EXTRAS:
        return None
    package = _PACKAGES.get(top, top)
    return f'{package}, which is not installed: pip install "luna_fairseq[{EXTRAS[top]}]"'

"""Options of training runs, and the options that differ between runs.

The options are read from a line of the log, from hydra's files or from a checkpoint.
"""

from __future__ import annotations

import ast
from argparse import Namespace
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

# "group.key" -> value, or "key" -> value in early versions of fairseq, which have no groups.
Options = Dict[str, Any]

# Names and output paths of a run. They always differ but do not affect the result.
PLACES = {
    "aim_run_hash",
    "azureml_logging",
    "distributed_init_method",
    "distributed_port",
    "log_file",
    "plasma_path",
    "restore_file",
    "results_path",
    "save_dir",
    "tensorboard_logdir",
    "user_dir",
    "wandb_project",
}
# Group -> command-line option that sets its ``_name``.
NAMED = {name: name for name in ("task", "criterion", "optimizer", "lr_scheduler")}
NAMED["model"] = "arch"
NOT_FAIRSEQ = ("job_logging_cfg", "hydra")  # groups that belong to hydra


def printed_options(line: str) -> Optional[Options]:
    """Parse the log line in which fairseq-train prints its options. Return None for any other line.

    The line contains a dictionary or a Namespace as printed by Python, in which enum values are unquoted.

    Example:
        >>> printed_options("Namespace(arch='luna', ddp_backend=no_c10d)")
        {'arch': 'luna', 'ddp_backend': 'no_c10d'}
    """
    starts = [start for start in (line.find("{'_name': "), line.find("Namespace(")) if start >= 0]
    text = line[min(starts) :] if starts else ""
    try:
        return flatten_options(_evaluate(ast.parse(text.strip(), mode="eval").body, text.strip()))
    except (SyntaxError, ValueError, RecursionError, AttributeError):
        return None


def _evaluate(node: Any, text: str) -> Any:
    """Convert a node of the syntax tree of ``text``, a Python expression, to a value, without executing code.

    ``f(a=b, c=1)`` yields ``{"a": "b", "c": 1}``. Other expressions are returned as source text.
    """
    if isinstance(node, ast.Dict):
        return {_evaluate(key, text): _evaluate(value, text) for key, value in zip(node.keys, node.values)}
    if isinstance(node, ast.Call):
        return {str(keyword.arg): _evaluate(keyword.value, text) for keyword in node.keywords}
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_evaluate(element, text) for element in node.elts]
    if isinstance(node, ast.Name):
        return node.id
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.get_source_segment(text, node)


def flatten_options(config: Any) -> Options:
    """Flatten a fairseq configuration into ``{"GROUP.NAME": value}``, omitting hydra's own groups.

    Example:
        >>> flatten_options({"common": {"seed": 1}})
        {'common.seed': 1}
    """
    groups = vars(config) if isinstance(config, Namespace) else config
    options: Options = {}
    for group, content in groups.items():
        if group in NOT_FAIRSEQ:
            continue
        content = vars(content) if isinstance(content, Namespace) else content
        if isinstance(content, Mapping):
            options.update({f"{group}.{key}": value for key, value in content.items()})
        elif group != "_name":
            options[group] = content
    return options


def get_option(options: Optional[Options], name: str) -> Any:
    """Return the value of an option in any group, or None if the option is unknown.

    Example:
        >>> get_option({"common.seed": 1}, "seed")
        1
    """
    return next((value for key, value in (options or {}).items() if key.rpartition(".")[2] == name), None)


def architecture(options: Optional[Options]) -> str:
    """Return the name of a run's architecture (``--arch``, or ``model=`` in hydra), or "" if unknown."""
    options = options or {}
    return str(options.get("model._name") or options.get("model.arch") or options.get("arch") or "")


def hydra_options(folder: Path) -> Optional[Options]:
    """Read the options in a run's ``.hydra/config.yaml``. Return None if the file is missing or damaged."""
    from omegaconf import OmegaConf

    path = folder / ".hydra" / "config.yaml"
    if not path.is_file():
        return None
    try:
        return flatten_options(OmegaConf.to_container(OmegaConf.load(str(path))))
    except Exception:  # Errors have many types, and there may be other sources of the options.
        return None


def differing_options(runs: List[Optional[Options]]) -> List[Tuple[str, List[str]]]:
    """Return the options whose values differ between runs, with the value in each run.

    The value is "-" if the run does not have the option, and "not known" if the run's options are unknown.

    Example:
        >>> first, second = {"common.seed": 1, "common.fp16": True}, {"common.seed": 2, "common.fp16": True}
        >>> differing_options([first, second])
        [('--seed', ['1', '2'])]
    """
    options_by_run = [_command_line_options(options) for options in runs]
    names = {name: None for options in options_by_run for name in options}
    table = []
    for name in names:
        values = [options.get(name, "-" if options else "not known") for options in options_by_run]
        known_values = {value for value, options in zip(values, options_by_run) if options}
        if len(known_values) > 1:
            table.append((name, values))
    return table


def _command_line_options(options: Optional[Options]) -> Dict[str, str]:
    """Convert options to text: ``{"optimization.lr": [0.1]}`` yields ``{"--lr": "0.1"}``.

    Options that only name the run or its files are omitted. If two groups have different values of an option,
    the second option's name contains its group, for example "--seed (task)".
    """
    shown: Dict[str, str] = {}
    for key, value in (options or {}).items():
        group, _, name = key.rpartition(".")
        if name in PLACES or (name == "_name" and group not in NAMED):
            continue
        name = NAMED[group] if name == "_name" else name
        flag = f"--{name.replace('_', '-')}"
        text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
        if shown.get(flag, text) != text:
            flag += f" ({group})"
        shown[flag] = text
    return shown

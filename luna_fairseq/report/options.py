"""What a run was started with, by its log, hydra's files or a checkpoint; and what differs between runs."""

from __future__ import annotations

import ast
from argparse import Namespace
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

# "group.key", or "key" where fairseq had no groups yet -> value.
Options = Dict[str, Any]

# Names that a run is given, and where it writes: these always differ, and change nothing.
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
NAMED = {name: name for name in ("task", "criterion", "optimizer", "lr_scheduler")}
NAMED["model"] = "arch"
NOT_FAIRSEQ = ("job_logging_cfg", "hydra")  # groups of hydra's own


def printed_options(line: str) -> Optional[Options]:
    """The options in a line in which fairseq-train prints its configuration, or None if it cannot be read.

    The line holds a dict or a Namespace as Python prints it, except that chosen words have no quotes.
    """
    starts = [start for start in (line.find("{'_name': "), line.find("Namespace(")) if start >= 0]
    text = line[min(starts) :] if starts else ""
    try:
        return flat(_value(ast.parse(text.strip(), mode="eval").body, text.strip()))
    except (SyntaxError, ValueError, RecursionError, AttributeError):
        return None


def _value(node: Any, text: str) -> Any:
    if isinstance(node, ast.Dict):
        return {_value(key, text): _value(value, text) for key, value in zip(node.keys, node.values)}
    if isinstance(node, ast.Call):
        return {str(keyword.arg): _value(keyword.value, text) for keyword in node.keywords}
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(element, text) for element in node.elts]
    if isinstance(node, ast.Name):  # a chosen word
        return node.id
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.get_source_segment(text, node)


def flat(config: Any) -> Options:
    """fairseq's configuration, a mapping of groups or a Namespace, as one level."""
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


def option(options: Optional[Options], name: str) -> Any:
    """The value of an option by its bare name, or None."""
    return next((value for key, value in (options or {}).items() if key.rpartition(".")[2] == name), None)


def architecture(options: Optional[Options]) -> str:
    """What --arch was, or ""."""
    options = options or {}
    return str(options.get("model._name") or options.get("model.arch") or options.get("arch") or "")


def hydra_options(folder: Path) -> Optional[Options]:
    """What hydra wrote into ``folder``/.hydra, or None if there is nothing that can be read."""
    from omegaconf import OmegaConf

    path = folder / ".hydra" / "config.yaml"
    if not path.is_file():
        return None
    try:
        return flat(OmegaConf.to_container(OmegaConf.load(str(path))))
    except Exception:  # whatever a damaged file makes of it: a log or a checkpoint may have the options, too
        return None


def differences(runs: List[Optional[Options]]) -> List[Tuple[str, List[str]]]:
    """Options that differ between the runs, as on the command line, with the value that each run has."""
    known = [_by_name(options) for options in runs]
    names = {name: None for options in known for name in options}
    rows = []
    for name in names:
        values = [options.get(name, "-" if options else "not known") for options in known]
        told = {value for value, options in zip(values, known) if options}
        if len(told) > 1:
            rows.append((name, values))
    return rows


def _by_name(options: Optional[Options]) -> Dict[str, str]:
    """--name -> value; an option that is in several groups stands once, unless its values differ."""
    found: Dict[str, str] = {}
    for key, value in (options or {}).items():
        group, _, name = key.rpartition(".")
        if name in PLACES or (name == "_name" and group not in NAMED):
            continue
        name = NAMED[group] if name == "_name" else name
        shown = f"--{name.replace('_', '-')}"
        text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
        if found.get(shown, text) != text:
            shown += f" ({group})"
        found[shown] = text
    return found

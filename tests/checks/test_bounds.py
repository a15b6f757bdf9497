"""Bounds of all numeric options of our models, tasks, optimizer, schedule and commands.

The value at a bound is accepted, and the value beyond it is refused in one line.
"""

import argparse
import importlib
import math
import pkgutil
from argparse import Namespace
from dataclasses import fields
from typing import List, Optional, get_type_hints

import pytest
from omegaconf import OmegaConf

import luna_fairseq
from fairseq import options
from fairseq.models import MODEL_DATACLASS_REGISTRY
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from luna_fairseq.checks.bounds import ABOVE, BELOW, LEAST, MOST, describe, read_bounds
from luna_fairseq.checks.model_options import USED_WITH
from luna_fairseq.checks.options import ParsedOptions, check_config, check_options
from luna_fairseq.commands.arguments import CommandParser, Number
from luna_fairseq.commands.reporting import offer_quiet
from luna_fairseq.errors import InputError
from luna_fairseq.models.luna import LunaModel, flat_options

luna_fairseq.register()
GROUPS = {"model": MODEL_DATACLASS_REGISTRY, "task": TASK_DATACLASS_REGISTRY}
GROUPS.update((name, one["dataclass_registry"]) for name, one in REGISTRIES.items())
CHOOSES = {"model": "--arch"}
KINDS = (int, float, Optional[int], Optional[float], List[int], List[float], Optional[List[float]])


def ours():
    """Yield group, name and dataclass of every registered component of this package."""
    for group, registry in GROUPS.items():
        for name, dataclass in registry.items():
            if getattr(dataclass, "__module__", "").startswith("luna_fairseq."):
                yield group, name, dataclass


def numeric_fields(dataclass):
    kinds = get_type_hints(dataclass)
    return [field for field in fields(dataclass) if kinds[field.name] in KINDS]


def edges(bounds, whole):
    """Yield the last accepted and the first refused value at each bound."""
    step = 1 if whole else 1e-3
    inward = {LEAST: step, ABOVE: step, MOST: -step, BELOW: -step}
    for name, bound in bounds.items():
        on = bound if name in (LEAST, MOST) else bound + inward[name]
        off = bound - inward[name] if name in (LEAST, MOST) else bound
        yield (int(on), int(off)) if whole else (float(on), float(off))


def needed_options(dataclass, field):
    """Return the options of a dataclass, with values, of which a field needs one to have an effect."""
    needs = field.metadata.get(USED_WITH) or {}
    return [item for item in needs.items() if item[0] in dataclass.__dataclass_fields__]


def needed_words(dataclass, field):
    """Return the words without which an option has no effect."""
    words = []
    for name, value in needed_options(dataclass, field)[:1]:
        if value is False:  # the option must not be given
            continue
        is_flag = get_type_hints(dataclass)[name] is bool
        given = "0.5" if value is True else value
        words += [f"--{name.replace('_', '-')}", *([] if is_flag else [given])]
        words += needed_words(dataclass, dataclass.__dataclass_fields__[name])
    return words


CASES, PARSED = {}, {}
for group, name, dataclass in ours():
    for field in numeric_fields(dataclass):
        CASES.setdefault((dataclass, field.name), (group, name, dataclass, field))
        # fairseq's parser takes half a second, so it tries an option once, with a model that uses it.
        if USED_WITH not in field.metadata or needed_options(dataclass, field):
            PARSED.setdefault((group, field.name, str(read_bounds(field.metadata))), dataclass)
CASES = list(CASES.values())


@pytest.mark.parametrize("group, name, dataclass, field", CASES, ids=lambda x: getattr(x, "name", None))
def test_options_of_what_is_registered(group, name, dataclass, field, monkeypatch):
    """Test fairseq-train's parser, a configuration of fairseq-hydra-train, and a model built from Python."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)  # --quant-noise-scalar needs a GPU
    bounds, kind = read_bounds(field.metadata), get_type_hints(dataclass)[field.name]
    assert bounds, f"{dataclass.__name__}.{field.name} has no bounds"
    whole = kind in (int, Optional[int], List[int])
    word, several = f"--{field.name.replace('_', '-')}", "List" in str(kind)
    task = "language_modeling" if str(field.default).startswith("${task.") else "translation"
    begin = ["data", "--batch-size", "2", "--task", task, "--arch", "luna"]
    for accepted, refused in edges(bounds, whole):
        for value, message in (
            (accepted, None),
            (refused, f"{word} {shown(refused)}: must be {describe(bounds)}"),
        ):
            given = [value] if several else value
            cfg = OmegaConf.create({group: {"_name": name, field.name: given}})
            words = [*begin, CHOOSES.get(group, f"--{group.replace('_', '-')}"), name, f"{word}={value}"]
            words += needed_words(dataclass, field)
            assert outcome(check_config, cfg) == message
            is_first = PARSED[group, field.name, str(bounds)] is dataclass
            if is_first and not is_taken_from(group, field):
                parser = options.get_training_parser()
                assert outcome(options.parse_args_and_arch, parser, words) == message
            if group == "model":
                assert outcome(flat_options, Namespace(**{field.name: given}), dataclass()) == message


def shown(value):
    return value if isinstance(value, int) else f"{value:g}"


def is_taken_from(group, field):
    """Return True if the command line has no such option, or fairseq replaces its value by another's."""
    return field.name == "batch_size_valid" or str(field.default).startswith("${" + group)


def outcome(function, *args):
    try:
        function(*args)
    except InputError as error:
        assert "\n" not in str(error)
        return str(error)
    return None


@pytest.mark.parametrize("name", ["encoder_layers", "decoder_layers"])
def test_a_model_has_layers(name):
    with pytest.raises(InputError, match=f"^--{name.replace('_', '-')} 0: .* 1$"):
        LunaModel.build_model(Namespace(**{name: 0}), None)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nan_and_infinity_are_refused(value):
    with pytest.raises(InputError, match=f"--apollo-eps {value}: .* 0"):
        check_options(Namespace(optimizer="apollo", apollo_eps=value))


def parsers():
    """Yield the name and the parser of every command and sub-command of the package."""
    for module in pkgutil.walk_packages(luna_fairseq.__path__, "luna_fairseq."):
        if module.name.endswith("__main__") and "benchmark" not in module.name:
            continue
        try:
            found = importlib.import_module(module.name)
        except ImportError:  # a package that is not installed, such as onnx or triton
            continue
        build = vars(found).get("build_parser")
        if build is not None and build.__module__ == found.__name__:
            parser = build()
            if "--quiet" not in parser._option_string_actions:
                offer_quiet(parser)
            yield module.name, parser
            for action in parser._actions:
                if isinstance(action, argparse._SubParsersAction):
                    yield from ((f"{module.name} {name}", one) for name, one in action.choices.items())


PARSERS = dict(parsers())


@pytest.mark.parametrize("command", PARSERS)
def test_numbers_of_commands(command, capsys):
    """Numbers with choices need no bounds."""
    for action in PARSERS[command]._actions:
        if action.choices is None:
            assert action.type not in (int, float), f"{command} {action.option_strings} has no bounds"
        if isinstance(action.type, Number):
            for accepted, refused in edges(action.type.bounds, action.type.kind is int):
                assert action.type(str(accepted)) == accepted
                with pytest.raises(argparse.ArgumentTypeError, match="^must be "):
                    action.type(str(refused))


def test_every_command_is_among_them():
    assert {"luna_fairseq.translation.evaluate", "luna_fairseq.benchmark.__main__ train"} <= PARSERS.keys()
    assert len(PARSERS) > 20


def test_a_number_out_of_its_bounds_ends_a_command(capsys):
    parser = CommandParser("luna-x", "A command.")
    parser.count("--workers-of-x", 1, "processes")
    for text, message in (("0", "must be at least 1, not 0"), ("x", "invalid number value: 'x'")):
        with pytest.raises(SystemExit):
            parser.parse_args(["--workers-of-x", text])
        assert capsys.readouterr().err.endswith(f"luna-x: error: argument --workers-of-x: {message}\n")


def test_an_unknown_name_in_a_check_is_an_error():
    given = ParsedOptions(Namespace(task="translation"))
    assert given.task == "translation" and given.sample_break_mode is None
    with pytest.raises(AttributeError, match="sampel_break_mode"):
        assert given.sampel_break_mode

"""Every replacement of a function of fairseq accepts all of its arguments and passes them on."""

import ast
import inspect
import textwrap

import pytest

import luna_fairseq  # noqa: F401  changes fairseq
from luna_fairseq.engine.patch import APPLIED, find_target
from luna_fairseq.engine.table import TABLE

P = inspect.Parameter


def find_originals(patches):
    """Yield each patched function of fairseq with its replacement."""
    for patch in patches:
        for target, function in patch.replacements if patch.state == APPLIED else ():
            owner, name = find_target(target)
            current = None if owner is None else getattr(owner, name)
            if callable(current):
                yield pytest.param(inspect.unwrap(current), function, id=f"{patch.name} {target}")


def find_calls(signature):
    """Yield argument lists that pass every parameter of a signature: by position, and by name."""
    named = [p for p in signature.parameters.values() if p.kind not in (P.VAR_POSITIONAL, P.VAR_KEYWORD)]
    has_varargs = any(p.kind is P.VAR_POSITIONAL for p in signature.parameters.values())
    positional = [p.name for p in named if p.kind is not P.KEYWORD_ONLY]
    only = {p.name: p.name for p in named if p.kind is P.KEYWORD_ONLY}
    yield [*positional, *(["more"] if has_varargs else [])], only
    if not has_varargs:
        self = positional[:1] if positional[:1] == ["self"] else []
        yield self, {**{name: name for name in positional[len(self) :]}, **only}


def find_dropped(function):
    """Return the parameters of a function that it does not pass to any call."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    names = [a.arg for a in (*tree.args.args, *tree.args.kwonlyargs)][1:]
    names += [a.arg for a in (tree.args.vararg, tree.args.kwarg) if a]
    passed = {
        name.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for argument in (*node.args, *(keyword.value for keyword in node.keywords))
        for name in ast.walk(argument)
        if isinstance(name, ast.Name)
    }
    # A value that is assigned may be passed under another name.
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            passed |= {name.id for name in ast.walk(node.value) if isinstance(name, ast.Name)}
    return [name for name in names if name not in passed]


def find_refused(original, function):
    """Return the first call that the original accepts and the replacement does not; None if there is none."""
    signature = inspect.signature(original)
    for arguments, named in find_calls(signature):
        signature.bind(*arguments, **named)
        try:
            inspect.signature(function).bind(original, *arguments, **named)
        except TypeError as error:
            return f"{arguments} {named}: {error}"
    return None


@pytest.mark.parametrize("original, function", list(find_originals(TABLE)))
def test_all_arguments_are_accepted_and_passed_on(original, function):
    assert find_refused(original, function) is None
    assert find_dropped(function) == []

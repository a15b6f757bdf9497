"""What takes the place of a function of fairseq takes all that it takes, and passes all of it on."""

import ast
import inspect
import textwrap

import pytest

import luna_fairseq  # noqa: F401  mends fairseq
from luna_fairseq.engine.mend import MENDED, find
from luna_fairseq.engine.table import TABLE

P = inspect.Parameter


def originals(mends):
    """(name, the function as fairseq has it, the one that takes its place)."""
    for mend in mends:
        for target, function in mend.changes if mend.state == MENDED else ():
            owner, name = find(target)
            now = None if owner is None else getattr(owner, name)
            if callable(now):
                yield pytest.param(inspect.unwrap(now), function, id=f"{mend.name} {target}")


def calls(signature):
    """Ways to hand over everything that the signature names, by position and by name."""
    named = [p for p in signature.parameters.values() if p.kind not in (P.VAR_POSITIONAL, P.VAR_KEYWORD)]
    more = any(p.kind is P.VAR_POSITIONAL for p in signature.parameters.values())
    positional = [p.name for p in named if p.kind is not P.KEYWORD_ONLY]
    only = {p.name: p.name for p in named if p.kind is P.KEYWORD_ONLY}
    yield [*positional, *(["more"] if more else [])], only
    if not more:
        self = positional[:1] if positional[:1] == ["self"] else []
        yield self, {**{name: name for name in positional[len(self) :]}, **only}


def dropped(function):
    """Parameters of which nothing is passed to any call."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    names = [a.arg for a in (*tree.args.args, *tree.args.kwonlyargs)][1:]
    names += [a.arg for a in (tree.args.vararg, tree.args.kwarg) if a]
    passed = {
        name.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for given in (*node.args, *(keyword.value for keyword in node.keywords))
        for name in ast.walk(given)
        if isinstance(name, ast.Name)
    }
    # What is assigned may be passed under another name.
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            passed |= {name.id for name in ast.walk(node.value) if isinstance(name, ast.Name)}
    return [name for name in names if name not in passed]


def refuses(original, function):
    """The first call of the original that the function cannot take."""
    signature = inspect.signature(original)
    for arguments, named in calls(signature):
        signature.bind(*arguments, **named)
        try:
            inspect.signature(function).bind(original, *arguments, **named)
        except TypeError as error:
            return f"{arguments} {named}: {error}"
    return None


@pytest.mark.parametrize("original, function", list(originals(TABLE)))
def test_everything_is_taken_and_passed_on(original, function):
    assert refuses(original, function) is None
    assert dropped(function) == []

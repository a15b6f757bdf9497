"""No two files of the package share a long run of lines of the same shape."""

import io
import keyword
import tokenize
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "luna_fairseq"
LONGEST = 11
# Too thin to repeat anything: brackets, docstring ends, lone arguments.
SKIPPED = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def shapes(source):
    """(line, shape) of each line of code: keywords and signs as they are, names, strings and numbers as their
    kind.

    Imports and docstrings are left out, and lines of fewer than three tokens.
    """
    lines = {}
    importing = False
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        first = token.start[0] not in lines
        if token.type == tokenize.NEWLINE:
            importing = False
        if token.type in SKIPPED:
            continue
        if token.string in ("import", "from") and first:
            importing = True
        if importing or (token.type == tokenize.STRING and first):
            continue
        if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
            shape = "name"
        elif token.type in (tokenize.STRING, tokenize.NUMBER):
            shape = tokenize.tok_name[token.type]
        else:
            shape = token.string
        lines.setdefault(token.start[0], []).append(shape)
    return [(line, " ".join(shape)) for line, shape in sorted(lines.items()) if len(shape) > 2]


def repetitions(sources, longest=LONGEST):
    """Pairs of places in different files that begin more than ``longest`` lines of the same shape."""
    seen, found = {}, []
    for name, source in sources.items():
        lines = shapes(source)
        for start in range(len(lines) - longest):
            window = lines[start : start + longest + 1]
            run = tuple(shape for _, shape in window)
            first = seen.setdefault(run, (name, window[0][0]))
            if first[0] != name and len(set(run)) > longest // 2:
                found.append(f"{first[0]}:{first[1]} ~ {name}:{window[0][0]}")
    return found


def test_no_two_files_share_a_long_run_of_lines():
    sources = {
        str(p.relative_to(PACKAGE.parent)): p.read_text(encoding="utf-8")
        for p in sorted(PACKAGE.rglob("*.py"))
    }
    assert not repetitions(sources)

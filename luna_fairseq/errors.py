"""What a user did wrong, said in one line."""

import contextlib
import multiprocessing
import os
import re
import sys
import traceback
from pathlib import Path
from typing import Any, Callable, Iterator, Optional

_EXPLAINING = {
    *("AssertionError", "ValueError", "RuntimeError", "ImportError", "NotImplementedError", "Exception"),
    "FloatingPointError",
}
_OF_OPTIONS = {"MissingMandatoryValue", "ConfigCompositionException", "ValidationError"}
_MISSING_VALUE = re.compile(r"Missing mandatory value: (?:\w+\.)*(\w+)|(\w+)=null")
_WRONG_OPTION = re.compile(r"(.*) full_key: (\S+) .*object_type=(\w+)Config$")
_BEYOND_MEMORY = re.compile(r"allocate memory|out of memory|not enough memory|overflow|bad_alloc")
# What packages explain by an exception of theirs.
_EXPLAINED = re.compile(r"pip install|[Pp]lease install|could not parse ModelProto from")
_INPUT_ERROR = "luna_fairseq.errors.InputError: "
_OS_ERROR = re.compile(r"\w+Error: \[Errno \d+\] (.+): '(.+)'$")
_FRAME = re.compile(r'^  File "(.+)", line \d+, in (.+)\n +(.*)', re.MULTILINE)
_RAISED = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception|Value))(?:: (.*))?$", re.MULTILINE)
# What fairseq says, and what is said in its place.
_BETTER_WORDS = (
    (r"np\.\w+\(([^()]*)\)", r"\1"),
    (
        r"^Sentences lengths should not exceed max_tokens=(\d+)$",
        r"a sentence has more than the \1 tokens of a batch: give a larger --max-tokens (for validation "
        "--max-tokens-valid)",
    ),
    (
        r"gradients are Nan/Inf$",
        "the loss or a gradient is NaN or infinite. Checkpoints of earlier updates are as they were: lower "
        "--lr, or warm up longer",
    ),
    (
        r"^(\d+) < (\d+)$",
        r"no output may be longer than \2 tokens, of which the prompt has too many: give a shorter one",
    ),
    (r"non-default value\) can not be specified together: .*", "non-default value) exclude each other"),
    (
        r"^Provided Search parameters are mutually exclusive\.$",
        "give one of --sampling, --diverse-beam-groups, --diversity-rate and --match-source-len alone",
    ),
)


class InputError(ValueError):
    """Bad input: an option value, a file or a checkpoint. The message says what is wrong and what to do."""


class MissingRequirementError(InputError, ImportError):
    """A package that the user must install first."""


def find_input_error(error: Optional[BaseException]) -> Optional[InputError]:
    """The InputError behind ``error``, which fairseq may have caught and raised again as something vaguer."""
    return next((one for one in _chain(error) if isinstance(one, InputError)), None)


def _chain(error: Optional[BaseException]) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def one_line_for(error: BaseException) -> Optional[str]:
    """What a user did wrong, where ``error`` says it: an InputError, a path that cannot be read or written,
    or what fairseq explains by an exception of its own; else None."""
    found = find_input_error(error)
    if found is not None:
        return str(found)
    if isinstance(error, OSError):
        return _about_a_path(error)
    if isinstance(error, UnicodeEncodeError) and error.encoding != "utf-8":
        character = ascii(error.object[error.start])
        return f"{character} cannot be written in {error.encoding}: set PYTHONIOENCODING=utf-8"
    # What fairseq looks at after a loss that is not finite may fail in its turn.
    error = next((one for one in _chain(error) if isinstance(one, FloatingPointError)), error)
    frames = traceback.extract_tb(error.__traceback__)
    last = (frames[-1].filename, frames[-1].name, frames[-1].line or "") if frames else ("", "", "")
    text = " ".join(str(error).split())
    if isinstance(error, FloatingPointError):
        text = f"{_update_of(error.__traceback__)}{text}"
    if "Duplicate word found" in text:
        return f"{_dictionary_read(error.__traceback__)} holds {text.split(': ')[1].split('. ')[0]} twice"
    return explained_by_fairseq(type(error).__name__, text, *last)


def one_line_of_another_process(traceback_text: str) -> Optional[str]:
    """As one_line_for, of the traceback that another process has printed."""
    for line in traceback_text.splitlines():
        about_a_path = _OS_ERROR.match(line)
        if about_a_path:
            return f"{about_a_path[2]}: {about_a_path[1]}"
        if line.startswith(_INPUT_ERROR):
            return line[len(_INPUT_ERROR) :]
    frames, raised = _FRAME.findall(traceback_text), _RAISED.findall(traceback_text)
    return explained_by_fairseq(*raised[-1], *frames[-1]) if frames and raised else None


def explained_by_fairseq(kind: str, text: str, place: str, function: str, line: str) -> Optional[str]:
    """What an exception of fairseq's own, or of a package that it asks for, explains to its user.

    Options are what constructors are given: of fairseq's the condition of an assertion is said, and torch's
    explain by a ValueError.

    Args:
        kind: name of the exception's class.
        text: its message.
        place: file that raised it.
        function: the function that raised it.
        line: the line of that file, by which a ``raise`` with words is told from a defect.

    Returns:
        one line; None where the exception explains nothing.
    """
    missing = _MISSING_VALUE.search(text) if kind in _OF_OPTIONS else None
    if missing:
        return f"--{(missing[1] or missing[2]).replace('_', '-')} is missing"
    wrong = _WRONG_OPTION.match(text) if kind in ("ConfigKeyError", "ValidationError") else None
    if wrong:
        return f"{wrong[3]}.{wrong[2]}: {wrong[1]}"
    if kind in ("RuntimeError", "OutOfMemoryError", "MemoryError") and _BEYOND_MEMORY.search(text):
        return (
            f"it does not fit into memory ({text[:200]}): give a smaller batch, --projection-length, width "
            "or dictionary"
        )
    if kind in ("RuntimeError", "ImportError", "ModuleNotFoundError") and _EXPLAINED.search(text):
        return text
    if kind == "ValueError" and "match the size of optimizer's group" in text:
        return (
            "the checkpoint's optimizer has other parameters than this model: go on with the options of the "
            "training (--reset-optimizer begins another one with its weights)"
        )
    parts = set(Path(place).parts)
    if kind == "ZeroDivisionError" and "lr_scheduler" in parts:
        return "the rate's schedule divides by 0: give a --warmup-updates or --lr-period-updates above 0"
    if kind == "ValueError" and "torch" in parts and function == "__init__":
        return text
    by_fairseq = {"fairseq", "fairseq_cli"} & parts
    if by_fairseq and (kind, text, function) == ("AssertionError", "", "__init__"):
        text = line.strip().replace("assert", "fairseq asks for", 1)
    if not (by_fairseq and text and kind in _EXPLAINING):
        return None
    if kind != "AssertionError" and not line.strip().startswith("raise"):
        return None
    for words, better in _BETTER_WORDS:
        text = re.sub(words, better, text)
    return text


def in_one_line(before: Callable[..., Any]) -> Callable[..., Any]:
    """A sys.excepthook that has bad input end a command with one line on stderr, and status 1, wherever it
    is noticed; ``before`` is given what is no such thing.

    In a program of one's own (see in_command) the traceback has to stay, because it leads to the call that
    was wrong.
    """

    def report(kind: Any, error: Any, trace: Any) -> None:
        said = one_line_for(error) if isinstance(error, Exception) else None
        if said is None:
            return before(kind, error, trace)
        print(f"luna_fairseq: error: {said}", file=sys.stderr)

    return report


def _about_a_path(error: OSError) -> Optional[str]:
    """What it says, if it is about a file or folder."""
    if isinstance(error, (ConnectionError, ChildProcessError, TimeoutError)):
        return None
    return f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error) or None


def _dictionary_read(trace: Any) -> str:
    """The file that fairseq's Dictionary.add_from_file was reading."""
    named = [frame.f_locals.get("f") for frame, _ in traceback.walk_tb(trace)]
    return next((name for name in named if isinstance(name, str)), "the dictionary")


def _update_of(trace: Any) -> str:
    """Which update fairseq's Trainer was at, in words that precede what went wrong."""
    trainers = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(trace))
    numbers = (getattr(trainer, "get_num_updates", None) for trainer in trainers)
    return next((f"update {number() + 1}: " for number in numbers if number is not None), "")


@contextlib.contextmanager
def until_nobody_reads() -> Iterator[None]:
    """End a command in silence, with status 1, when what reads its standard output has gone, as ``head``
    does."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still to be written would fail once more when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def in_command(spawned: bool = False) -> bool:
    """Whether this process runs one of fairseq's commands or of ours, as opposed to a program of one's own.

    A process that such a command spawned does not, unless ``spawned`` counts it: its parent reports what it
    ended by.
    """
    if multiprocessing.parent_process() is not None and not spawned:
        return False
    code = getattr(getattr(sys.modules.get("__main__"), "cli_main", None), "__code__", None)
    program = Path(sys.argv[0] if sys.argv else "").absolute()
    # "-m" is the name of a program while the package of the module that python -m names is being imported.
    ours = (
        program.name.startswith("luna-") or program.name == "-m" or Path(__file__).parent in program.parents
    )
    return ours or (code is not None and Path(code.co_filename).parent.name == "fairseq_cli")

"""One line for bad input in commands; a traceback for everything else."""

import subprocess
import sys
from pathlib import Path

import pytest

from luna_fairseq.errors import explained_by_fairseq, one_line_of_another_process

ROOT = Path(__file__).resolve().parents[1]
PRELUDE = f"""
import importlib.util, sys
sys.path[:] = [entry for entry in sys.path if "fairseq" not in entry]
spec = importlib.util.spec_from_file_location('errors', {str(ROOT / "luna_fairseq" / "errors.py")!r})
errors = importlib.util.module_from_spec(spec); spec.loader.exec_module(errors)
def cli_main(error=errors.InputError('width 3')):
    if errors.in_command():
        sys.excepthook = errors.in_one_line(sys.excepthook)
    raise error
"""


def run(path, code="cli_main()", first=""):
    """Status and stderr of a program in the file ``path`` that has only ``errors.py`` to import."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(first + PRELUDE + code + "\n", encoding="utf-8")
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)
    return done.returncode, done.stderr


@pytest.mark.parametrize("program", ["fairseq_cli/train.py", "luna-score", "luna-score.exe"])
def test_one_line_in_a_command(program, tmp_path):
    assert run(tmp_path / program) == (1, "luna_fairseq: error: width 3\n")


def test_the_error_behind_the_one_raised_last(tmp_path):
    code = """
sys.excepthook = errors.in_one_line(sys.excepthook)
try:
    raise errors.InputError('width 3')
except Exception:
    raise Exception('cannot load')
"""
    assert run(tmp_path / "luna-score", code) == (1, "luna_fairseq: error: width 3\n")


@pytest.mark.parametrize(
    "error, line",
    [
        ("FileNotFoundError(2, 'no such', '/nowhere/at all')", "/nowhere/at all: no such"),
        ("OSError('Model file not found: x.pt')", "Model file not found: x.pt"),
        (
            "UnicodeEncodeError('ascii', '\\xe9', 0, 1, 'no')",
            "'\\xe9' cannot be written in ascii: set PYTHONIOENCODING=utf-8",
        ),
        ("UnicodeEncodeError('utf-8', '\\ud800', 0, 1, 'no')", None),
        ("ConnectionResetError('by the other side')", None),
    ],
)
def test_a_path_that_cannot_be_read_or_a_character_written(error, line, tmp_path):
    status, text = run(tmp_path / "fairseq_cli" / "train.py", f"cli_main({error})")
    assert status == 1 and (text == f"luna_fairseq: error: {line}\n" if line else "Traceback" in text)


BATCH = "a sentence has more than the 3 tokens of a batch: give a larger --max-tokens"
FAIRSEQ, TORCH, OTHER = "/lib/fairseq_cli/train.py", "/lib/torch/x.py", "/lib/other.py"
SCHEDULE = "/lib/fairseq/optim/lr_scheduler/x.py"
GROUPS = "loaded state dict contains a parameter group that doesn't match the size of optimizer's group"
KEY = "Key 'beem' not in 'LunaConfig'"
MEMORY = "it does not fit into memory"


def raised(kind, text, said, place=FAIRSEQ, function="main", line=""):
    """A row of the table: an exception, what is said of it, and where it was raised."""
    return kind, text, said, place, function, line


EXPLAINED = [
    raised("AssertionError", "Must specify batch size", "Must specify batch size", line="args.max_tokens"),
    raised("AssertionError", "Sentences lengths should not exceed max_tokens=3", BATCH, "fairseq/x.pyx"),
    raised("Exception", "(np.int32(4), 5) too long", "(4, 5) too long", line="raise Exception("),
    raised("RuntimeError", "INTERNAL: could not parse ModelProto from x.model", "INT", OTHER, "Load", "r"),
    raised("ImportError", "Please install nltk", "Please install nltk", OTHER, line="raise"),
    raised("MissingMandatoryValue", "Missing mandatory value: bpe.bpe_codes key", "--bpe-codes is m", "x"),
    raised("ConfigCompositionException", "lr_scheduler.total_num_update=null", "--total-num-update is", "x"),
    raised("ConfigKeyError", f"{KEY} full_key: beem object_type=LunaConfig", f"Luna.beem: {KEY}",
           "/lib/omegaconf/x.py", "_raise", "raise ex"),
    raised("RuntimeError", "can't allocate memory: 10 bytes", MEMORY, TORCH),
    raised("MemoryError", "std::bad_alloc", MEMORY, TORCH),
    raised("AssertionError", "", "fairseq asks for x > 0", FAIRSEQ, "__init__", "assert x > 0"),
    raised("ValueError", "Factor < 1", "Factor < 1", TORCH, "__init__", "raise ValueError("),
    raised("ZeroDivisionError", "", "the rate's schedule divides", SCHEDULE, "step_update", "x = 1 / 0"),
    raised("ValueError", GROUPS, "the checkpoint's optimizer has other parameters", TORCH, "load_state_dict",
           "raise ValueError("),
    # Defects: without words, not raised on purpose, of another package.
    raised("AssertionError", "", None, line="assert x"),
    raised("ValueError", "not enough values to unpack", None, line="a, b = c"),
    raised("RuntimeError", "mat1 and mat2", None, line="x = self.fc1(x)"),
    raised("ValueError", "no shape", None, TORCH, "forward", "raise ValueError("),
    raised("KeyError", "bleu", None, line="raise KeyError"),
    raised("ValueError", "no", None, "/lib/luna_fairseq/x.py", line="raise ValueError"),
]  # fmt: skip


@pytest.mark.parametrize("kind, text, said, place, function, line", EXPLAINED)
def test_what_fairseq_explains(kind, text, said, place, function, line):
    printed = f'Traceback\n  File "{place}", line 3, in {function}\n    {line}\nsome.{kind}: {text}\n'
    printed = printed if text else printed.replace(": \n", "\n")
    for found in (
        explained_by_fairseq(kind, text, place, function, line),
        one_line_of_another_process(printed),
    ):
        assert found is None if said is None else found.startswith(said)


@pytest.mark.parametrize(
    "line, said",
    [
        ("luna_fairseq.errors.InputError: width 3", "width 3"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'x.pt'", "x.pt: No such file or directory"),
    ],
)
def test_what_another_process_printed(line, said):
    assert one_line_of_another_process(f"-- Process 1\nTraceback\n{line}\n") == said


@pytest.mark.parametrize(
    "program, code", [("mine.py", "cli_main()"), ("fairseq_cli/train.py", "cli_main(TypeError('width 3'))")]
)
def test_tracebacks_stay_in_other_programs_and_for_other_errors(program, code, tmp_path):
    status, text = run(tmp_path / program, code)
    assert status == 1 and text.startswith("Traceback") and text.rstrip().endswith("Error: width 3")


def test_a_spawned_process_leaves_the_line_to_its_parent(tmp_path):
    code = """
if __name__ == "__main__":
    import multiprocessing
    child = multiprocessing.get_context("spawn").Process(target=cli_main)
    child.start(); child.join(); sys.exit(child.exitcode)
"""
    status, text = run(tmp_path / "fairseq_cli" / "train.py", code)
    assert status == 1 and "Traceback" in text and text.rstrip().endswith("errors.InputError: width 3")


def test_importing_leaves_the_interpreter_alone(tmp_path):
    code = "print(sys.excepthook is sys.__excepthook__, file=sys.stderr)"
    assert run(tmp_path / "luna-score", code) == (0, "True\n")


@pytest.mark.parametrize("command", ["luna_fairseq.engine.listing", "luna_fairseq.commands.show_recipes"])
def test_a_reader_that_goes_early_is_no_error(command):
    words = [sys.executable, "-m", command]
    with subprocess.Popen(words, cwd=str(ROOT), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as listing:
        listing.stdout.close()
        said = listing.stderr.read().decode()
        assert listing.wait() == 1
        assert "Broken pipe" not in said and "Traceback" not in said and "Exception" not in said


def test_commands_log_warnings_alone(tmp_path):
    """fairseq's import leaves the root logger at DEBUG, and says which packages for speech are missing."""
    program = tmp_path / "luna-x"
    program.write_text(
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\nimport luna_fairseq, logging\nimport fairseq.tasks\n"
        "for level in ('debug', 'info', 'warning'):\n    getattr(logging.getLogger('PIL'), level)(level)\n",
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "WARNING: warning\n")

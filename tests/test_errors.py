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
        (
            "FileNotFoundError(2, 'No such file or directory', '/nowhere/at all')",
            "/nowhere/at all: No such file or directory",
        ),
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
    status, text = run(
        tmp_path / "fairseq_cli" / "train.py",
        f"cli_main({error})",
    )
    assert status == 1 and (text == f"luna_fairseq: error: {line}\n" if line else "Traceback" in text)


BATCH = "a sentence has more than the 3 tokens of a batch: give a larger --max-tokens"
SCHEDULE = "/lib/fairseq/optim/lr_scheduler/x.py"
FAIRSEQ = "/lib/fairseq_cli/train.py"


@pytest.mark.parametrize(
    "kind, text, place, function, line, said",
    [
        (
            "AssertionError",
            "Must specify batch size",
            FAIRSEQ,
            "main",
            "args.max_tokens",
            "Must specify batch size",
        ),
        (
            "AssertionError",
            "Sentences lengths should not exceed max_tokens=3",
            "fairseq/x.pyx",
            "main",
            "",
            BATCH,
        ),
        ("Exception", "(np.int32(4), 5) too long", FAIRSEQ, "main", "raise Exception(", "(4, 5) too long"),
        (
            "RuntimeError",
            "INTERNAL: could not parse ModelProto from x.model",
            "/lib/other.py",
            "Load",
            "return",
            "INT",
        ),
        ("ImportError", "Please install nltk", "/lib/other.py", "main", "raise", "Please install nltk"),
        (
            "MissingMandatoryValue",
            "Missing mandatory value: bpe.bpe_codes key",
            "x",
            "main",
            "",
            "--bpe-codes is missing",
        ),
        (
            "ConfigCompositionException",
            "lr_scheduler.total_num_update=null",
            "x",
            "main",
            "",
            "--total-num-update is",
        ),
        (
            "ConfigKeyError",
            "Key 'beem' not in 'LunaConfig' full_key: beem object_type=LunaConfig",
            "/lib/omegaconf/x.py",
            "_raise",
            "raise ex",
            "Luna.beem: Key 'beem' not in 'LunaConfig'",
        ),
        (
            "RuntimeError",
            "can't allocate memory: 10 bytes",
            "/lib/torch/x.py",
            "main",
            "",
            "it does not fit into memory",
        ),
        ("MemoryError", "std::bad_alloc", "/lib/torch/x.py", "main", "", "it does not fit into memory"),
        ("AssertionError", "", FAIRSEQ, "__init__", "assert x > 0", "fairseq asks for x > 0"),
        ("ValueError", "Factor < 1", "/lib/torch/x.py", "__init__", "raise ValueError(", "Factor < 1"),
        (
            "ZeroDivisionError",
            "",
            SCHEDULE,
            "step_update",
            "x = 1 / 0",
            "the rate's schedule divides",
        ),
        (
            "ValueError",
            "loaded state dict contains a parameter group that doesn't match the size of optimizer's group",
            "/lib/torch/x.py",
            "load_state_dict",
            "raise ValueError(",
            "the checkpoint's optimizer has other parameters",
        ),
        # Defects: without words, not raised on purpose, of another package.
        ("AssertionError", "", FAIRSEQ, "main", "assert x", None),
        ("ValueError", "not enough values to unpack", FAIRSEQ, "main", "a, b = c", None),
        ("RuntimeError", "mat1 and mat2", FAIRSEQ, "main", "x = self.fc1(x)", None),
        ("ValueError", "no shape", "/lib/torch/x.py", "forward", "raise ValueError(", None),
        ("KeyError", "bleu", FAIRSEQ, "main", "raise KeyError", None),
        ("ValueError", "no", "/lib/luna_fairseq/x.py", "main", "raise ValueError", None),
    ],
)
def test_what_fairseq_explains(kind, text, place, function, line, said):
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

"""The plugin under two paths, and exceptions in a program of the user."""

import shutil
from argparse import Namespace
from pathlib import Path

import pytest

import luna_fairseq
from fairseq import models, options, utils
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from luna_fairseq.errors import InputError

HERE = Path(luna_fairseq.__file__).resolve().parent


def test_one_folder_under_two_names(tmp_path):
    (tmp_path / "luna_fairseq").symlink_to(HERE, target_is_directory=True)
    for name in (str(tmp_path / "luna_fairseq"), str(HERE) + "/", str(HERE)):
        utils.import_user_module(Namespace(user_dir=name))


def test_a_second_copy_is_refused(tmp_path):
    copy = tmp_path / "luna_fairseq"
    copy.mkdir()
    shutil.copy(str(HERE / "__init__.py"), str(copy))
    with pytest.raises(InputError) as error:
        utils.import_user_module(Namespace(user_dir=str(copy)))
    text = str(error.value)
    assert text.startswith(f"--user-dir {copy} is another copy of {HERE}, ") and "\n" not in text


def test_other_plugins_are_imported_by_fairseq(tmp_path):
    (tmp_path / "other_plugin").mkdir()
    (tmp_path / "other_plugin" / "__init__.py").write_text("imported = True\n", encoding="utf-8")
    for _ in range(2):
        utils.import_user_module(Namespace(user_dir=str(tmp_path / "other_plugin")))
    import other_plugin  # type: ignore[import-not-found]

    assert other_plugin.imported
    utils.import_user_module(Namespace(user_dir=None))
    with pytest.raises(FileNotFoundError):
        utils.import_user_module(Namespace(user_dir=str(tmp_path / "missing")))


def test_a_program_of_the_user_gets_the_exception():
    words = ["--task", "dummy_lm", "--arch", "luna_lm", "--decoder-attention-heads", "5"]
    args = options.parse_args_and_arch(options.get_training_parser(), words)
    task = Namespace(source_dictionary=Dictionary(), target_dictionary=Dictionary())
    with pytest.raises(InputError, match="not divisible by 5"):
        models.build_model(convert_namespace_to_omegaconf(args).model, task)

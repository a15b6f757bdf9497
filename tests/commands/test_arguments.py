"""Folders that fairseq cannot read, and the text of --help."""

import argparse
import os

import pytest

from luna_fairseq.commands.arguments import CommandParser, describe_command, parse_data_folder


@pytest.mark.parametrize("name", ["a${x}", f"a{os.pathsep}b"])
def test_folders_that_fairseq_cannot_read(name):
    with pytest.raises(argparse.ArgumentTypeError, match="fairseq expands .*another name$"):
        parse_data_folder(name)


@pytest.mark.parametrize("name", ["a b", "a'b", "[a]", "{a}", "a%b", "é", "-a", "a$b"])
def test_folders_that_it_can(name):
    path = parse_data_folder(name)
    assert path.name == name and path.is_absolute() == name.startswith("-")


def test_help_opens_with_a_sentence_and_ends_with_an_example(capsys):
    doc = "Command ``luna-x``: print x.\n\nThe second paragraph.\n"
    with pytest.raises(SystemExit):
        CommandParser("luna-x", doc, "luna-x DIR \\\n    --all").parse_args(["--help"])
    text = capsys.readouterr().out
    assert "\n\nPrint x.\n\nThe second paragraph.\n\n" in text
    assert text.endswith("\n\nexample:\n  luna-x DIR \\\n    --all\n")


def test_help_leaves_out_a_first_paragraph_that_begins_with_the_name():
    for first in ("``luna-x``: x.", "Command ``luna-x``, which prints x."):
        assert describe_command(f"{first}\n\nPrint x.") == "Print x."

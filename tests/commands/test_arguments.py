"""Names of folders that fairseq would read as something else, or take for an option."""

import argparse
import os

import pytest

from luna_fairseq.commands.arguments import folder_of_data


@pytest.mark.parametrize("name", ["a${x}", f"a{os.pathsep}b"])
def test_folders_that_fairseq_cannot_read(name):
    with pytest.raises(argparse.ArgumentTypeError, match="fairseq replaces what begins with .*another name$"):
        folder_of_data(name)


@pytest.mark.parametrize("name", ["a b", "a'b", "[a]", "{a}", "a%b", "é", "-a", "a$b"])
def test_folders_that_it_can(name):
    path = folder_of_data(name)
    assert path.name == name and path.is_absolute() == name.startswith("-")

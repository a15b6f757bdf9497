"""Options that a command sets itself must not be given after --."""

import argparse

import pytest

from luna_fairseq.commands import reporting
from luna_fairseq.lra import seeds
from luna_fairseq.masked_lm import finetune
from luna_fairseq.translation import evaluate, train_bitext

BITEXT = "-s en -t de --trainpref x --validpref x --testpref x --vocab-size 9 --destdir DIR"


@pytest.mark.parametrize(
    "main, words, own, advice",
    [
        (train_bitext.main, BITEXT, "--save-dir elsewhere", "luna-train-bitext sets this option. Remove it"),
        (train_bitext.main, BITEXT, "--save-di elsewhere", "luna-train-bitext sets"),
        (train_bitext.main, BITEXT, "--no-save", "luna-train-bitext sets"),
        (train_bitext.main, BITEXT, "-t fr", "give -t before --"),
        (train_bitext.main, BITEXT, "-tfr", "give -t before --"),
        (evaluate.main, "DIR --path x.pt --results DIR", "--path=y.pt", "give --path before --"),
        (evaluate.main, "DIR --path x.pt --results DIR", "--gen-subset valid", "give --subset before --"),
        (evaluate.main, "DIR --path x.pt --results DIR", "--int8", "give --int8 before --"),
        (evaluate.main, "DIR --path x.pt --results DIR", "--nbest 2", "luna-evaluate sets"),
        (finetune.main, "RTE DIR --pretrained x.pt --out DIR", "--finetune-from-model y.pt", "luna-finetune"),
        (finetune.main, "RTE DIR --pretrained x.pt --out DIR", "--seed 2", "give --seed before --"),
        (finetune.main, "RTE DIR --pretrained x.pt --out DIR", "--max-epoch 2", "give --epochs before --"),
        (seeds.main, "listops DIR --out DIR", "--seed 3", "give --seeds before --"),
        (seeds.main, "listops DIR --out DIR", "--checkpoint-suffix x", "luna-lra-seeds sets"),
    ],
)
def test_options_of_the_command_itself_are_refused_after_the_dashes(
    main, words, own, advice, tmp_path, capsys
):
    """Otherwise the command would read the checkpoint or the score of another run."""
    folder = tmp_path / "new"
    argv = [str(folder) if word == "DIR" else word for word in words.split()]
    assert main([*argv, "--", "--cpu", *own.split()]) == 1
    name = own.replace("=", " ").split()[0]
    assert f"error: {name} after --: {advice}" in capsys.readouterr().err
    assert not folder.exists()


def test_ctrl_c_ends_a_command_in_one_line(capsys):
    def interrupt(*args):
        raise KeyboardInterrupt

    main = reporting.console_script("luna-x", argparse.ArgumentParser, interrupt)
    assert main([]) == 130
    assert capsys.readouterr().err == "luna-x: interrupted\n"

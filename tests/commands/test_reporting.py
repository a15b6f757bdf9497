"""Options that a command sets itself must not be given after --."""

import pytest

from luna_fairseq.lra import seeds
from luna_fairseq.masked_lm import finetune
from luna_fairseq.translation import evaluate, train_bitext

BITEXT = "-s en -t de --trainpref x --validpref x --testpref x --vocab-size 9 --destdir DIR"


@pytest.mark.parametrize(
    "main, words, own",
    [
        (train_bitext.main, BITEXT, "--save-dir elsewhere"),
        (train_bitext.main, BITEXT, "--save-di elsewhere"),
        (train_bitext.main, BITEXT, "--no-save"),
        (train_bitext.main, BITEXT, "-t fr"),
        (evaluate.main, "DIR --path x.pt --results DIR", "--path=y.pt"),
        (evaluate.main, "DIR --path x.pt --results DIR", "--gen-subset valid"),
        (finetune.main, "RTE DIR --pretrained x.pt --out DIR", "--finetune-from-model y.pt"),
        (seeds.main, "listops DIR --out DIR", "--seed 3"),
        (seeds.main, "listops DIR --out DIR", "--checkpoint-suffix x"),
    ],
)
def test_options_of_the_command_itself_are_refused_after_the_dashes(main, words, own, tmp_path, capsys):
    """Otherwise the command would read the checkpoint or the score of another run."""
    folder = tmp_path / "new"
    argv = [str(folder) if word == "DIR" else word for word in words.split()]
    assert main([*argv, "--", "--cpu", *own.split()]) == 1
    name = own.replace("=", " ").split()[0]
    assert f"error: {name} after --: luna-" in capsys.readouterr().err
    assert not folder.exists()

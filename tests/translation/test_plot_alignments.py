"""Alignment plots: read from fairseq-generate's output, and refused if the output is unsuitable."""

import pytest

from luna_fairseq.errors import InputError
from luna_fairseq.translation.plot_alignments import main, read_alignment, shorten_label

OUTPUT = """\
S-0\t▁A ▁man
T-0\t▁Ein ▁Mann
H-0\t-0.5\t▁Ein ▁Mann .
D-0\t-0.5\tEin Mann.
P-0\t-0.1 -0.2 -0.3 -0.4
A-0\t0.9,0.1,0.0 0.2,0.8,0.0 0.0,0.5,0.5 0.0,0.0,1.0
S-1\t▁No
H-1\t-0.5\t▁Nein
A-1\t0-0 1-1
Generate test with beam=5: BLEU4 = 0.00
"""


@pytest.fixture
def output(tmp_path):
    path = tmp_path / "luna.out"
    path.write_text(OUTPUT, encoding="utf-8")
    return path


def test_a_sentence_is_read_with_the_end_of_both_sides(output):
    one = read_alignment(output, 0)
    assert one.source == ["▁A", "▁man", "</s>"] and one.target == ["▁Ein", "▁Mann", ".", "</s>"]
    assert one.weights[1] == [0.2, 0.8, 0.0]


def test_the_best_of_several_hypotheses_counts(output):
    text = OUTPUT.replace("S-1", "H-0\t-0.9\t▁Der\nA-0\t1,0,0 0,0,1\nS-1")
    output.write_text(text, encoding="utf-8")
    assert read_alignment(output, 0).target[0] == "▁Ein"


def test_several_are_drawn_beside_each_other(output, tmp_path):
    picture = tmp_path / "alignments.png"
    assert main([str(output)] * 4 + ["--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_labels_are_short_and_no_formulas():
    assert shorten_label("▁Mann") == "Mann" and shorten_label("▁") == "_"
    assert shorten_label("x" * 50) == "x" * 12
    assert shorten_label("$5$") == r"\$5\$"


@pytest.mark.parametrize(
    ("sentence", "text", "message"),
    [
        (7, OUTPUT, "no translation of sentence 7"),
        (1, OUTPUT, "--print-alignment soft"),
        (0, OUTPUT.replace("▁Ein ▁Mann .", "Ein Mann."), "without --remove-bpe"),
        (0, OUTPUT.replace("0.9,0.1", "0.9,x"), "damaged"),
        (0, OUTPUT[:-1], "breaks off"),
        (0, OUTPUT * 2, "several runs"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(output, sentence, text, message):
    output.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_alignment(output, sentence)


def test_titles_are_one_for_each(output, tmp_path, capsys):
    assert main([str(output), "--titles", "a", "b", "--plot", str(tmp_path / "x.png")]) == 1
    assert "1 outputs and 2 --titles" in capsys.readouterr().err

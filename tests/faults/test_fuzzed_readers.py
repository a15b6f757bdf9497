"""For any bytes in a file, the readers of text return text or raise an error of one line."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from luna_fairseq.errors import InputError
from luna_fairseq.files.archive import extract, reporting_damage
from luna_fairseq.files.finished_steps import FinishedSteps
from luna_fairseq.lra.pixels import read_labels, read_pixels
from luna_fairseq.masked_lm.finetuning.prepared import PreparedTask
from luna_fairseq.text.bitext import check_bitext, read_lines
from luna_fairseq.translation.generated import GenerateOutput
from luna_fairseq.translation.sgml import read_sgml

PIECES = [
    *(b"w1", b" ", b"\n", b"\r", b"\t", b"\0", b"\xff", b"\xc3", b"\xa9", b"\xed\xa0\x80", b"\xe2\x80\xa8"),
    *(b"\xef\xbb\xbf", b"S-0\t", b"H-0\t-1.0\t", b"D-1\t", b"H--1\tx", b"@@ ", b"\xe2\x96\x81", b"0", b"1"),
    *(
        b'<doc docid="a">',
        b'<seg id="1">',
        b"</seg>",
        b"&amp;",
        b"&#x110000;",
        b"{",
        b'"task": ',
        b"[",
        b"\x1f\x8b",
    ),
]
CONTENTS = st.one_of(st.binary(max_size=200), st.lists(st.sampled_from(PIECES), max_size=30).map(b"".join))


def read_pairs(path):
    path.with_name("pair.a").write_bytes(path.read_bytes())
    path.with_name("pair.b").write_bytes(path.read_bytes()[::-1])
    found = check_bitext(str(path.with_name("pair")), "a", "b", drop_empty=True)
    return [text for pair in found.pairs() for text in pair]


def read_member(path):
    with reporting_damage(path):
        extract(path, {"member": path.with_name("member")})
    return []


READERS = {
    "lines": lambda path: list(read_lines(path)),
    "pairs": read_pairs,
    "hypotheses": lambda path: GenerateOutput(path).hypotheses(["a", "b"]),
    "sgml": lambda path: [text for segment in read_sgml(path) for text in segment],
    "labels": lambda path: list(map(str, read_labels(path, 3))),
    "pixels": lambda path: list(map(str, read_pixels(path.with_suffix("")))),
    "prepared task": lambda path: [str(PreparedTask.load(path.parent))],
    "record of steps": lambda path: [str(FinishedSteps(path.parent, path.name, []).find("step", "key"))],
    "archive": read_member,
}
NAMES = {"pixels": "file.src", "prepared task": "task.json"}


@pytest.mark.parametrize("reader", list(READERS))
@settings(max_examples=120, deadline=None)
@given(content=CONTENTS)
@example(content=b"[]")
@example(content=b"{}")
@example(content=b"3")
@example(content=b'{"step": 1}')
@example(content=b'<doc docid="a"><seg id="1">&#x110000;</seg>')
@example(content=b"\x1f\x8b")
def test_a_reader_takes_any_bytes(reader, content):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / NAMES.get(reader, "file")
        path.write_bytes(content)
        try:
            texts = READERS[reader](path)
        except InputError as error:
            assert str(error) and "\n" not in str(error).strip()
        else:
            assert all("\n" not in text and "\0" not in text for text in texts)

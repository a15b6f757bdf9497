"""Archives of WMT'14 are copied or downloaded, resumed, and refused if they are damaged."""

import fcntl
import re
import threading
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from wmt14_archives import contents, corpus, sgml, write_archive, write_archives

from luna_fairseq.errors import InputError
from luna_fairseq.files import download
from luna_fairseq.text.length_filter import LengthFilter
from luna_fairseq.translation import prepare_wmt14_en_de
from luna_fairseq.translation.sgml import read_sgml
from luna_fairseq.translation.wmt14 import PARTS

EUROPARL = "training-parallel-europarl-v7.tgz"


@pytest.fixture
def mirror(tmp_path):
    return write_archives(tmp_path / "mirror")


@pytest.fixture
def make_text(tmp_path, mirror):
    def make_text(source=mirror):
        prepare_wmt14_en_de.make_text(tmp_path / "out", str(source))

    return make_text


class Flaky(SimpleHTTPRequestHandler):
    """Server of byte ranges that breaks off every answer until ``whole`` is set."""

    whole = False
    asked = []

    def do_GET(self):
        with open(self.translate_path(self.path), "rb") as file:
            data = file.read()
        wanted = re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(wanted[1]) if wanted else 0
        self.asked.append(start)
        if start >= len(data):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(data)}")
            self.end_headers()
            return
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        self.wfile.write(data[start:] if self.whole else data[start : start + 100])

    def log_message(self, *args):
        pass


@pytest.fixture
def address(mirror, monkeypatch):
    monkeypatch.setattr(download.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(Flaky, "whole", False)
    monkeypatch.setattr(Flaky, "asked", [])
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Flaky, directory=str(mirror)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


def read(path):
    return path.read_bytes().decode("utf-8").split("\n")[:-1]


def test_text_of_the_archives(make_text, tmp_path, capsys):
    make_text()
    text = corpus()
    for side, language in enumerate(("en", "de")):
        train = [line for part in ("europarl", "commoncrawl", "news") for line in text[part][side]]
        assert read(tmp_path / "out" / "text" / f"train.{language}") == train
        assert read(tmp_path / "out" / "text" / f"valid.{language}") == text["newstest2013"][side]
        assert read(tmp_path / "out" / "text" / f"test.{language}") == text["newstest2014"][side]
    assert "Europarl v7: 160 pairs (published: 1,920,209)" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["prepare_wmt14.json", "text"]


def test_finished_text_is_left_alone_and_lost_text_made_again(
    make_text, mirror, tmp_path, capsys, monkeypatch
):
    make_text()
    before = read(tmp_path / "out" / "text" / "train.de")
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(prepare_wmt14_en_de, "write_text", None)
        make_text()
    assert "text: finished before" in capsys.readouterr().out
    (tmp_path / "out" / "text" / "train.de").write_text("halb", encoding="utf-8")
    make_text()
    assert read(tmp_path / "out" / "text" / "train.de") == before
    text = corpus()
    text["news"][1][0] = "Anders."
    write_archives(mirror, text)
    make_text()
    assert "Anders." in read(tmp_path / "out" / "text" / "train.de")


def test_a_download_goes_on_where_it_broke_off(make_text, address, mirror, tmp_path):
    with pytest.raises(InputError, match=EUROPARL):
        make_text(address)
    part = tmp_path / "out" / "archives" / f"{EUROPARL}.part"
    assert Flaky.asked == [0, 100, 200, 300, 400] and part.stat().st_size == 500
    assert not (tmp_path / "out" / "archives" / EUROPARL).exists()
    Flaky.whole = True
    make_text(address)
    assert Flaky.asked[5:7] == [500, 0]
    assert (tmp_path / "out" / "archives" / EUROPARL).read_bytes() == (mirror / EUROPARL).read_bytes()
    assert not part.exists()


def test_a_partial_download_of_another_file_is_thrown_away(make_text, address, tmp_path, mirror):
    Flaky.whole = True
    part = tmp_path / "out" / "archives" / f"{EUROPARL}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * ((mirror / EUROPARL).stat().st_size + 1))
    make_text(address)
    assert (tmp_path / "out" / "archives" / EUROPARL).read_bytes() == (mirror / EUROPARL).read_bytes()


def test_what_the_public_address_serves_must_be_the_published_file(address, tmp_path, mirror):
    Flaky.whole = True
    size = (mirror / "dev.tgz").stat().st_size
    for file, problem in (
        (download.RemoteFile(f"{address}dev.tgz", size + 1), f"{size:,} bytes"),
        (download.RemoteFile(f"{address}dev.tgz", size, "md5:0"), "md5"),
        (download.RemoteFile(f"{address}nix.tgz", size), "nix.tgz"),
    ):
        with pytest.raises(InputError, match=problem):
            download.fetch(file, tmp_path / "files", None)
        assert not list((tmp_path / "files").iterdir())
    good = download.RemoteFile(f"{address}dev.tgz", size)
    assert download.fetch(good, tmp_path / "files", None).read_bytes() == (mirror / "dev.tgz").read_bytes()


def test_a_failed_download_that_another_process_has_renamed(tmp_path, monkeypatch):
    def fail(url, part):
        part.unlink(missing_ok=True)
        raise OSError("no network")

    monkeypatch.setattr(download.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(download, "_transfer", fail)
    with pytest.raises(InputError, match=r"cannot download .*dev.tgz: no network\.$"):
        download.fetch(download.RemoteFile("http://127.0.0.1/dev.tgz", None), tmp_path, None)


def test_two_processes_do_not_write_one_download(address, tmp_path, mirror):
    Flaky.whole = True
    part, file = tmp_path / "dev.tgz.part", download.RemoteFile(f"{address}dev.tgz", None)
    with part.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another process is downloading .*dev.tgz.part"):
            download.fetch(file, tmp_path, None)
    assert download.fetch(file, tmp_path, None).read_bytes() == (mirror / "dev.tgz").read_bytes()
    assert not part.exists()


def refused(message, make_text, tmp_path):
    with pytest.raises(InputError, match=message) as caught:
        make_text()
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out" / "text").exists()


def flipped(data):
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :]


@pytest.mark.parametrize(
    "name, damage, message",
    [
        ("dev.tgz", None, "dev.tgz does not exist. Use --mirror with a folder"),
        (EUROPARL, lambda data: data[: len(data) // 2], f"{EUROPARL} is damaged or incomplete"),
        (EUROPARL, lambda data: data[: int(len(data) * 0.999)], f"{EUROPARL} is damaged or incomplete"),
        ("dev.tgz", lambda data: b"<html>", "dev.tgz is damaged or incomplete"),
        ("test-full.tgz", flipped, "test-full.tgz is damaged or incomplete"),
    ],
)
def test_archives_that_are_not_whole(make_text, mirror, tmp_path, name, damage, message):
    data = (mirror / name).read_bytes()
    (mirror / name).unlink()
    if damage is not None:
        (mirror / name).write_bytes(damage(data))
    refused(message, make_text, tmp_path)


@pytest.mark.parametrize(
    "part, side, lost, message",
    [
        ("news", 0, 0, "News Commentary v9 is not aligned: training/.*.de-en.en has 49 lines and .* has 50"),
        (
            "newstest2014",
            1,
            -1,
            "2014-deen-src.en.sgm has 13 segments and newstest2014-.*-ref.de.sgm has 12",
        ),
        ("newstest2013", 1, 3, "newstest2013-src.en.sgm has 11 segments"),
    ],
)
def test_sides_that_do_not_match(make_text, mirror, tmp_path, part, side, lost, message):
    text = corpus()
    del text[part][side][lost]
    write_archives(mirror, text)
    refused(message, make_text, tmp_path)


def test_an_archive_without_one_of_its_files(make_text, mirror, tmp_path):
    members = contents(corpus())["dev.tgz"]
    del members["dev/newstest2013-ref.de.sgm"]
    write_archive(mirror / "dev.tgz", members)
    refused("dev.tgz.*dev/newstest2013-ref.de.sgm", make_text, tmp_path)


def test_published_numbers_of_lines_are_held(mirror, tmp_path):
    archives = {part.name: mirror / part.archive.name for part in PARTS}
    with pytest.raises(InputError, match="Europarl v7 .*160 .*1,920,209"):
        prepare_wmt14_en_de.write_text(archives, tmp_path / "text", True)


def test_documents_are_no_option_of_text_without_their_borders(capsys):
    with pytest.raises(SystemExit):
        prepare_wmt14_en_de.main(["--destdir", "nowhere", "--documents", "256"])
    assert "--documents 256" in capsys.readouterr().err


def test_sgml(tmp_path):
    path = tmp_path / "x.sgm"
    path.write_text(sgml(["a & b", "c\u2028d", "e", "f", "g", "h"], "srcset"), encoding="utf-8")
    assert [text for _, _, text in read_sgml(path)] == ["a & b", "c d", "e", "f", "g", "h"]
    assert read_sgml(path)[5][:2] == ("paper.1", "1")
    path.write_text(path.read_text(encoding="utf-8").replace("e </seg>", "e"), encoding="utf-8")
    with pytest.raises(InputError, match="6 segments"):
        read_sgml(path)


def test_length_filter():
    sides = np.array([0, 3, 5, 2, 2]), np.array([1, 3, 2, 5, 3])
    dropped = Counter({"an empty side": 1})
    assert LengthFilter(4, 1.5).passes(*sides, dropped).tolist() == [False, True, False, False, True]
    assert dropped == {"an empty side": 2, "more than 4 pieces": 2}
    assert LengthFilter(None, 1.4).passes(*sides, dropped).nonzero()[0].tolist() == [1]
    assert dropped["lengths in a ratio above 1.4"] == 3
    assert LengthFilter().passes(*sides, dropped).tolist() == [False, True, True, True, True]

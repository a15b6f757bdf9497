"""Archives with the names and the layout of WMT'14, filled with a few lines of the demonstration grammar."""

import io
import tarfile

from demo_corpus import draw_corpus

SIZES = {"europarl": 160, "commoncrawl": 90, "news": 50, "newstest2013": 11, "newstest2014": 13}


def sgml(lines, kind):
    """Return an SGML file of two documents, with the headline markup and escapes of the published files."""
    text = [f'<{kind} setid="newstest" srclang="any">']
    for number, part in enumerate((lines[:5], lines[5:])):
        text.append(f'<doc sysid="ref" docid="paper.{number}" genre="news" origlang="de">')
        text += ["<hl>", f'<seg id="1">{escape(part[0])}</seg>', "</hl>", "<p>"]
        text += [f'<seg id="{index}"> {escape(line)} </seg>' for index, line in enumerate(part[1:], 2)]
        text += ["</p>", "</doc>"]
    return "\n".join([*text, f"</{kind}>", ""])


def escape(line):
    return line.replace("&", "&amp;").replace("<", "&lt;")


def plain(lines):
    return "".join(f"{line}\n" for line in lines)


def corpus():
    """Return {corpus: (English lines, German lines)}, with some unusual lines."""
    drawn = draw_corpus(SIZES, seed=3)
    text = {part: tuple(map(list, zip(*pairs))) for part, pairs in drawn.items()}
    text["newstest2014"][0][2] = "A well-known man & his five-year-old dog < cat."
    text["newstest2014"][1][2] = "Ein Mann & sein Hund aus Nordrhein-Westfalen < Katze."
    text["europarl"][0][3] = ""
    text["commoncrawl"][1][4] = "Ein\u2028Satz\u0085mit seltenen Trennern."
    return text


def contents(text):
    """Return {archive: {member: text}}, including members of other languages."""
    return {
        "training-parallel-europarl-v7.tgz": {
            "training/europarl-v7.cs-en.cs": "cizí\n",
            "training/europarl-v7.de-en.de": plain(text["europarl"][1]),
            "training/europarl-v7.de-en.en": plain(text["europarl"][0])[:-1],  # no newline at the end
        },
        "training-parallel-commoncrawl.tgz": {
            "commoncrawl.cs-en.cs": "cizí\n",
            "commoncrawl.de-en.de": plain(text["commoncrawl"][1]),
            "commoncrawl.de-en.en": plain(text["commoncrawl"][0]),
            "commoncrawl.de-en.annotation": "web\n",
        },
        "training-parallel-nc-v9.tgz": {
            "training/news-commentary-v9.de-en.de": plain(text["news"][1]),
            "training/news-commentary-v9.de-en.en": plain(text["news"][0]),
        },
        "dev.tgz": {
            "dev/newstest2012-src.en.sgm": "",
            "dev/newstest2013-ref.de.sgm": sgml(text["newstest2013"][1], "refset"),
            "dev/newstest2013-src.en.sgm": sgml(text["newstest2013"][0], "srcset"),
        },
        "test-full.tgz": {
            "test-full/newstest2014-deen-src.de.sgm": "",
            "test-full/newstest2014-deen-ref.de.sgm": sgml(text["newstest2014"][1], "refset"),
            "test-full/newstest2014-deen-src.en.sgm": sgml(text["newstest2014"][0], "srcset"),
        },
    }


def write_archive(path, members):
    with tarfile.open(str(path), "w:gz") as tar:
        for name, text in members.items():
            data = text.encode("utf-8")
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


def write_archives(folder, text=None):
    folder.mkdir(parents=True, exist_ok=True)
    for name, members in contents(text or corpus()).items():
        write_archive(folder / name, members)
    return folder

"""Small files with the names and the layout of IWSLT'15 English-Vietnamese."""

import random

ENGLISH = "the house stands by a river &apos;s bank , and we see it .".split()
VIETNAMESE = "ngôi nhà đứng cạnh bờ sông , và chúng ta thấy nó .".split()


def write_files(folder):
    """Write a few sentence pairs per file.

    The training text has an empty side, a long side and a rare word.
    """
    folder.mkdir()
    generator = random.Random(4)
    for name, number in (("train", 60), ("tst2012", 7), ("tst2013", 5)):
        lines = [
            [" ".join(generator.choices(words, k=generator.randint(3, 9))) for words in (ENGLISH, VIETNAMESE)]
            for _ in range(number)
        ]
        if name == "train":
            lines[3][1] = ""
            lines[5][0] = " ".join(ENGLISH * 3)
            lines[7][0] += " rare"
        for side, language in enumerate(("en", "vi")):
            text = "".join(f"{pair[side]}\n" for pair in lines)
            (folder / f"{name}.{language}").write_bytes(text.encode("utf-8"))
    return folder

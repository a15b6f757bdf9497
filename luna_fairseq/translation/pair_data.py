"""Writer of encoded sentence pairs in the format of fairseq's translation task, optionally in shards."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Sequence, Tuple

import numpy as np

from luna_fairseq.errors import InputError
from luna_fairseq.text.encoders import Encoder, count_pieces, write_texts
from luna_fairseq.text.indexed import Encoded, EncodedText, encoded_texts, select_sentences
from luna_fairseq.text.length_filter import LengthFilter

TextKey = Tuple[str, str, str]  # split, language, folder
Texts = Mapping[TextKey, EncodedText]
Batches = Callable[[str, Encoder], Iterator[List[Encoded]]]


class PairData:
    """Folder of binarized parallel text with its dictionaries, in the format of fairseq's translation task.

    Args:
        folder: folder to write to.
        languages: source and target language.
        splits: names of the splits, such as "train", "valid", "valid1" and "test". Only "train" is filtered
            by length and divided into shards.
        lengths: length filter of the training pairs.
        shards: number of shard folders ``shard0``, ``shard1`` and so on. If 1, files go to ``folder`` itself.
            The dictionaries are in ``folder`` and in every shard.

    Attributes:
        path: data argument of fairseq-train, in which the shard folders are joined with colons.
    """

    def __init__(
        self,
        folder: Path,
        languages: Sequence[str],
        splits: Iterable[str],
        lengths: LengthFilter,
        shards: int,
    ) -> None:
        self.folder, self.languages, self.lengths = folder, languages, lengths
        self.shards = [f"shard{number}" for number in range(shards)] if shards > 1 else ["."]
        self.path = os.pathsep.join(str(folder / shard) for shard in self.shards)
        # Validation and test text go to the first shard, where fairseq looks for them.
        self.keys: List[TextKey] = [
            (split, language, shard)
            for split in splits
            for shard in (self.shards if split == "train" else self.shards[:1])
            for language in languages
        ]

    def names(self) -> List[str]:
        """Return the paths of all files that :meth:`write` writes, relative to the folder."""
        names = list(self._dictionary_languages())
        for split, side, shard in self.keys:
            path = Path(shard) / self._name(split, side)
            names += [f"{path}.bin", f"{path}.idx"]
        return names

    def _dictionary_languages(self) -> Dict[str, str]:
        """Map the path of each dictionary, relative to the folder, to the language of the dictionary."""
        folders = dict.fromkeys((".", *self.shards))
        return {str(Path(folder) / f"dict.{side}.txt"): side for folder in folders for side in self.languages}

    def _name(self, split: str, side: str) -> str:
        return f"{split}.{'-'.join(self.languages)}.{side}"

    def write(
        self, method: Any, model: Path, batches: Batches, separators: Sequence[str], max_unknown: float
    ) -> Dict[str, Any]:
        """Encode all splits, build the dictionaries and write all files.

        Args:
            method: subword method, from :mod:`luna_fairseq.text.subword`.
            model: path of the learned subword model, such as ``sentencepiece.bpe.model``.
            batches: function ``(split, encoder) -> iterator`` over batches. A batch is a list of two items,
                the encoded source and the encoded target.
            separators: additional dictionary symbols, such as ``<sep>``.
            max_unknown: maximum percentage of unknown tokens in a text.

        Returns:
            Dictionary of counts.

            - ``tokens``, ``unknown``, ``longest``: numbers of tokens, of unknown tokens, and of tokens in the
              longest line, each keyed by the name of a text, such as "train.en".
            - ``dropped``: number of dropped pairs, keyed by reason.
            - ``dictionary``: number of dictionary entries, keyed by language.
        """
        encoder = method.encoder(model)
        dropped: Counter = Counter()
        with encoded_texts(self.folder / "encode.tmp", self.keys) as texts:
            for split in dict.fromkeys(split for split, _, _ in self.keys):
                self._encode(split, batches(split, encoder), texts, dropped)
            dictionaries = {}
            for side in self.languages:
                sides = self.languages if method.is_joint else [side]
                read = [text for part, text in texts.items() if part[0] == "train" and part[1] in sides]
                dictionaries[side] = method.dictionary(model, count_pieces(encoder, read), separators)
            named = [
                (f"{split}.{side}", text, self.folder / shard / self._name(split, side), dictionaries[side])
                for (split, side, shard), text in texts.items()
            ]
            files = {
                self.folder / name: dictionaries[side] for name, side in self._dictionary_languages().items()
            }
            counts = write_texts(named, files, encoder, max_unknown)
        entries = {side: len(dictionary) for side, dictionary in dictionaries.items()}
        return {**counts, "dropped": dropped, "dictionary": entries}

    def _encode(self, split: str, batches: Iterator[List[Encoded]], texts: Texts, dropped: Counter) -> None:
        """Append the encoded pairs of a split to ``texts``, which is keyed by split, language and folder.

        Training pairs are filtered by length, and distributed over the shards in turn. ``dropped``, a counter
        of dropped pairs by reason, is updated in place.
        """
        shards = self.shards if split == "train" else self.shards[:1]
        pairs = 0
        for sides in batches:
            if split == "train":
                kept = self.lengths.passes(sides[0][1], sides[1][1], dropped)
                sides = [select_sentences(side, kept) for side in sides]
            shard = (pairs + np.arange(len(sides[0][1]))) % len(shards)
            pairs += len(shard)
            for number, folder in enumerate(shards):
                for language, side in zip(self.languages, sides):
                    texts[split, language, folder].add(*select_sentences(side, shard == number))
        if split == "train" and not pairs:
            raise InputError("--max-length and --max-ratio leave no training pair. Give larger values.")
        if split == "train" and pairs < len(shards):
            raise InputError(
                f"{pairs:,} training pairs are left for --shards {len(shards)}. Give fewer shards."
            )

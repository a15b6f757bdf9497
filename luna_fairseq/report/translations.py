"""Translations of several runs side by side: scores, samples, and BLEU by the length of the source."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from sacrebleu.metrics import BLEU, CHRF

from luna_fairseq.errors import InputError
from luna_fairseq.translation.generated import Generated

SCORES = "scores.json"
GENERATED = ("generate-test*.txt", "generate.txt", "generate-valid*.txt")
LENGTHS = (10, 20, 30, 40, 60, 100)  # upper ends of the groups of sources, in words; the last group is open
ALL = "all"
FEWEST = 20  # sentences of a group, below which BLEU means little


class Translation(NamedTuple):
    """One sentence of a test set."""

    source: str
    reference: str
    hypothesis: str


@dataclass
class Translations:
    """
    Attributes:
        sentences: by their number in the text.
        scores: what luna-evaluate or luna-score wrote: dicts of name, value, signature.
        note: what is missing of them, or "".
    """

    sentences: Dict[int, Translation] = field(default_factory=dict)
    scores: List[Dict[str, Any]] = field(default_factory=list)
    note: str = ""


def read_translations(folder: Path) -> Translations:
    """What luna-evaluate, luna-score or fairseq-generate left in ``folder``; empty if there is nothing.

    The newest output of fairseq-generate on the test text counts.
    """
    found = Translations(scores=_read_scores(folder / SCORES))
    for pattern in GENERATED:
        files = sorted(folder.glob(pattern), key=lambda file: file.stat().st_mtime)
        if files:
            found.sentences, found.note = read_generated(files[-1])
            break
    return found


def _read_scores(path: Path) -> List[Dict[str, Any]]:
    try:
        scores = json.loads(path.read_text(encoding="utf-8"))
        return [{key: score[key] for key in ("name", "value", "signature")} for score in scores]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def read_generated(path: Path) -> Tuple[Dict[int, Translation], str]:
    """Sentences of fairseq-generate's output that have a source, a reference and a hypothesis, the best of
    --nbest; and what is odd about the file, or ""."""
    try:
        output = Generated(path, whole=False)
    except InputError as error:
        return {}, f"{error}."
    numbers = sorted(output.sources.keys() & output.targets.keys() & output.best.keys())
    sentences = {n: Translation(output.sources[n], output.targets[n], output.best[n]) for n in numbers}
    notes = output.notes if sentences else [f"{path.name} holds no translation beside its reference"]
    return sentences, "".join(f"{note}." for note in notes)


def samples(runs: Sequence[Translations], number: int) -> List[Dict[str, Any]]:
    """Sentences from all over the text with each run's translation, the largest difference in chrF first.

    Args:
        runs: each run's translations; some may have none.
        number: how many to choose.

    Returns:
        dicts of ``source``, ``reference``, and ``runs``: of each run the hypothesis and its sentence chrF, or
        None. With one run, the worst comes first.
    """
    chrf = CHRF()
    by_text: Dict[Tuple[str, str], List[Optional[str]]] = {}
    for place, run in enumerate(runs):
        for sentence in run.sentences.values():
            row = by_text.setdefault((sentence.source, sentence.reference), [None] * len(runs))
            row[place] = sentence.hypothesis
    most = max((_count(row) for row in by_text.values()), default=0)
    texts = [text for text, row in by_text.items() if _count(row) == most]
    number, rows = min(number, len(texts)), []
    for source, reference in (texts[step * len(texts) // number] for step in range(number)):
        of_run = [
            None if text is None else [text, round(chrf.sentence_score(text, [reference]).score, 1)]
            for text in by_text[source, reference]
        ]
        rows.append({"source": source, "reference": reference, "runs": of_run})
    return sorted(rows, key=_difference, reverse=True)


def _count(row: Sequence[Any]) -> int:
    return sum(entry is not None for entry in row)


def _difference(row: Dict[str, Any]) -> float:
    scores = [entry[1] for entry in row["runs"] if entry is not None]
    return max(scores) - min(scores) if len(scores) > 1 else -min(scores, default=0.0)


def by_length(runs: Sequence[Translations]) -> List[Dict[str, Any]]:
    """BLEU and length ratio of each group of sentences whose sources have like many words, and of the whole
    text.

    Returns:
        dicts of ``words`` ("1–10", "all"), and ``runs``: of each run the number of sentences, BLEU and the
        length of the hypotheses over that of the references, or None where it has no sentence. Groups of few
        sentences are left out.
    """
    counts = [_counts(run) for run in runs]
    order = [*(_group(end) for end in LENGTHS), _group(LENGTHS[-1] + 1), ALL]
    rows = []
    for name in order:
        sentences = max((of_run[name][0] for of_run in counts if name in of_run), default=0)
        if sentences >= (1 if name == ALL else FEWEST):
            of_runs = [_bleu(of_run[name]) if name in of_run else None for of_run in counts]
            rows.append({"words": name, "runs": of_runs})
    return rows


def _group(words: int) -> str:
    begin = 1
    for end in LENGTHS:
        if words <= end:
            return f"{begin}–{end}"
        begin = end + 1
    return f"{begin} and more"


def _counts(run: Translations) -> Dict[str, np.ndarray]:
    """Of each group: sentences, length of hypotheses and of references, n-grams that match, all n-grams."""
    # force: generated text may be tokenised, of which sacreBLEU would warn
    bleu = BLEU(effective_order=True, force=True)
    found: Dict[str, np.ndarray] = {}
    for sentence in run.sentences.values():
        score = bleu.sentence_score(sentence.hypothesis, [sentence.reference])
        row = np.array([1, score.sys_len, score.ref_len, *score.counts, *score.totals])
        for name in (_group(len(sentence.source.split())), ALL):
            found[name] = found.get(name, 0) + row
    return found


def _bleu(counts: np.ndarray) -> List[float]:
    sentences, length, reference, *ngrams = counts.tolist()
    orders = len(ngrams) // 2
    score = BLEU.compute_bleu(ngrams[:orders], ngrams[orders:], length, reference, smooth_method="exp")
    return [sentences, round(score.score, 2), round(length / max(reference, 1), 3)]

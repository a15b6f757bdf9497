"""Translations of several training runs, and comparison of samples, scores and BLEU by source length."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from sacrebleu.metrics import BLEU, CHRF

from luna_fairseq.errors import InputError
from luna_fairseq.files.scores import SCORES, find_translation, read_scores
from luna_fairseq.translation.generated import GenerateOutput
from luna_fairseq.translation.scores import choose_tokenizer, make_bleu

GENERATED = ("generate-test[-.]*txt", "generate.txt", "generate-valid[-.]*txt")
# Largest number of source words in each length group. One more group contains all longer sources.
LENGTHS = (10, 20, 30, 40, 60, 100)
ALL = "all"
MIN_SENTENCES = 20  # BLEU of a smaller length group would not be meaningful


class Translation(NamedTuple):
    """Source, reference and hypothesis of one sentence in the test set."""

    source: str
    reference: str
    hypothesis: str


@dataclass
class Translations:
    """Translations of the test set by one training run, and their scores.

    Attributes:
        sentences: translations, keyed by sentence index in the test set.
        scores: scores from :func:`luna_fairseq.files.scores.read_scores`.
        note: warning about missing translations or scores, or "".
        tokenizer: sacreBLEU's tokenizer, or None if it is not installed.
    """

    sentences: Dict[int, Translation] = field(default_factory=dict)
    scores: List[Dict[str, Any]] = field(default_factory=list)
    note: str = ""
    tokenizer: Optional[str] = "13a"


def read_translations(folder: Path, language: Optional[str] = None) -> Translations:
    """Read a run's translations and scores from the files of luna-evaluate or fairseq-generate.

    The scored translation is read if there are scores, otherwise the newest translation of the test set or,
    if there is none, of the validation set. The target language ``language`` determines the BLEU tokenizer if
    no score names one.
    """
    translations = Translations()
    notes = []
    if (folder / SCORES).is_file():
        try:
            translations.scores = read_scores(folder / SCORES)
        except InputError as error:
            notes.append(str(error))
    path = find_translation(translations.scores, folder)
    if path is None:
        found = (sorted(folder.glob(pattern), key=lambda file: file.stat().st_mtime) for pattern in GENERATED)
        path = next((files[-1] for files in found if files), None)
        if path is not None and translations.scores:
            translations.scores = []
            notes.append(
                f"{folder / SCORES} does not belong to {path.name}. Run luna-evaluate or luna-score."
            )
    settings = [score.get("settings", {}) for score in translations.scores]
    recorded = next((one["tokenize"] for one in settings if "tokenize" in one), None)
    try:
        translations.tokenizer = choose_tokenizer(recorded, language)
        make_bleu(translations.tokenizer)
    except InputError as error:
        notes.append(str(error))
        translations.tokenizer = None
    if path is not None:
        translations.sentences, note = read_generated(path)
        notes.append(note)
    translations.note = " ".join(filter(None, notes))
    return translations


def read_generated(path: Path) -> Tuple[Dict[int, Translation], str]:
    """Read the best translation of each sentence from an output file of fairseq-generate.

    Return the translations, keyed by sentence index in the test set, and a warning about damage or missing
    lines. The warning is "" if there is nothing to report.
    """
    try:
        output = GenerateOutput(path, must_be_complete=False)
    except InputError as error:
        return {}, f"{str(error).rstrip('.')}."
    indices = sorted(output.sources.keys() & output.targets.keys() & output.best.keys())
    sentences = {i: Translation(output.sources[i], output.targets[i], output.best[i]) for i in indices}
    notes = output.notes if sentences else [f"{path.name} has no translation with a source and a reference"]
    return sentences, "".join(f"{note}." for note in notes)


def choose_samples(runs: Sequence[Translations], number: int) -> List[Dict[str, Any]]:
    """Choose up to ``number`` evenly spaced test set sentences, and score the translations of all runs.

    Each sample has the entries ``source``, ``reference`` and ``runs``. The list ``runs`` has one pair
    ``[hypothesis, chrF]`` per run. A run that did not translate the sentence has None. Samples are sorted by
    decreasing difference in chrF between the runs or, with a single run, by increasing chrF.
    """
    chrf = CHRF()
    hypotheses: Dict[Tuple[str, str], List[Optional[str]]] = {}
    for index, run in enumerate(runs):
        for sentence in run.sentences.values():
            key = (sentence.source, sentence.reference)
            hypotheses.setdefault(key, [None] * len(runs))[index] = sentence.hypothesis
    # Translations of different texts cannot be compared, so the text translated by most runs is chosen.
    most_runs = max((_count_present(texts) for texts in hypotheses.values()), default=0)
    candidates = [key for key, texts in hypotheses.items() if _count_present(texts) == most_runs]
    number = min(number, len(candidates))
    chosen = [candidates[i * len(candidates) // number] for i in range(number)]
    compared = []
    for source, reference in chosen:
        scored = [
            None if text is None else [text, round(chrf.sentence_score(text, [reference]).score, 1)]
            for text in hypotheses[source, reference]
        ]
        compared.append({"source": source, "reference": reference, "runs": scored})
    return sorted(compared, key=_chrf_difference, reverse=True)


def _count_present(values: Sequence[Any]) -> int:
    return sum(value is not None for value in values)


def _chrf_difference(sample: Dict[str, Any]) -> float:
    """Return the sort key of a sample: the range of chrF over runs, or a single run's negative chrF."""
    scores = [entry[1] for entry in sample["runs"] if entry is not None]
    return max(scores) - min(scores) if len(scores) > 1 else -min(scores, default=0.0)


def bleu_by_length(runs: Sequence[Translations]) -> List[Dict[str, Any]]:
    """Compute BLEU and the length ratio of each run for groups of sentences with similar source length.

    A group has at least 20 sentences. The last group is the whole test set. Each group has ``words``, such as
    "1–10" or "all", and ``runs``, a list of ``[number of sentences, BLEU, length ratio]`` or None per run.
    """
    statistics = [_sum_bleu_statistics(run) for run in runs]
    names = [*(_length_group(length) for length in LENGTHS), _length_group(LENGTHS[-1] + 1), ALL]
    groups = []
    for name in names:
        sentences = max((by_group[name][0] for by_group in statistics if name in by_group), default=0)
        if sentences >= (1 if name == ALL else MIN_SENTENCES):
            figures = [_compute_bleu(by_group[name]) if name in by_group else None for by_group in statistics]
            groups.append({"words": name, "runs": figures})
    return groups


def _length_group(words: int) -> str:
    """Return the length group, such as "11–20", of a source sentence with ``words`` words."""
    begin = 1
    for end in LENGTHS:
        if words <= end:
            return f"{begin}–{end}"
        begin = end + 1
    return f"{begin} and more"


def _sum_bleu_statistics(run: Translations) -> Dict[str, np.ndarray]:
    """Sum the BLEU statistics over the sentences of each length group and of the whole test set.

    Each sum is an array [11]: the number of sentences, the hypothesis and the reference length, and the
    matching and the total numbers of n-grams of order 1 to 4.
    """
    # Generated text may be tokenized. ``force`` silences sacreBLEU's warning about it.
    if run.tokenizer is None:
        return {}
    bleu = make_bleu(run.tokenizer, effective_order=True, force=True)
    statistics: Dict[str, np.ndarray] = {}
    for sentence in run.sentences.values():
        score = bleu.sentence_score(sentence.hypothesis, [sentence.reference])
        counts = np.array([1, score.sys_len, score.ref_len, *score.counts, *score.totals])
        for name in (_length_group(len(sentence.source.split())), ALL):
            statistics[name] = statistics.get(name, 0) + counts
    return statistics


def _compute_bleu(statistics: np.ndarray) -> List[float]:
    """Compute [number of sentences, BLEU, length ratio] from the summed statistics of a group."""
    sentences, length, reference_length, *ngrams = statistics.tolist()
    orders = len(ngrams) // 2
    score = BLEU.compute_bleu(ngrams[:orders], ngrams[orders:], length, reference_length, smooth_method="exp")
    return [sentences, round(score.score, 2), round(length / max(reference_length, 1), 3)]

"""Conversion of a fairseq model's tokenizer files to a transformers tokenizer.

The tokenizer produces the same ids as fairseq, but does not depend on fairseq.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from fairseq.data import Dictionary
from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import digest
from luna_fairseq.huggingface.tokenization_luna import LunaTokenizer
from luna_fairseq.huggingface.tokenization_luna_moses import LunaMosesTokenizer
from luna_fairseq.models.tokenizers import find_text_pipeline, first_token
from luna_fairseq.text.documents import SEPARATOR
from luna_fairseq.text.joint_bpe import ordinary_pieces
from luna_fairseq.text.pieces import WORD_MARK, detect_encoding

BOS, EOS, PAD, UNKNOWN, MASK = "<s>", "</s>", "<pad>", "<unk>", "<mask>"
_SPACES = "".join(chr(code) for code in range(0x3001) if chr(code).isspace())
# Files that each encoding requires, for error messages.
_FILES = {
    "sentencepiece": "sentencepiece.bpe.model",
    "gpt2": "GPT-2's encoder.json and vocab.bpe",
    "subword_nmt": "bpe.codes, which luna-prepare-bitext --subword moses wrote,",
}
# Characters that normalization would change: a ligature, a circled digit and a decomposable letter.
_PROBE = "\ufb01\u2460\u00c5"


class Template(NamedTuple):
    """Special tokens around a single sequence and around a pair, such as "<s> $A </s> </s> $B </s>".

    $A denotes the first sequence and $B the second, as in the ``tokenizers`` library.
    """

    single: str
    pair: str


MASKED_LM = Template(f"{BOS} $A {EOS}", f"{BOS} $A {EOS} {EOS} $B {EOS}")


def build_tokenizer(
    files: Mapping[str, str],
    dictionary: Dictionary,
    positions: Optional[int],
    template: Template = MASKED_LM,
    padding_side: str = "right",
    languages: Sequence[str] = (),
) -> LunaTokenizer:
    """Build a tokenizer that converts plain text to ids and back.

    In input text, "<mask>" is the mask token, and "<sep>" separates the sentences of a document. Other
    special tokens are tokenized as ordinary text, as in fairseq. For subword-nmt files, the result is a
    :class:`LunaMosesTokenizer`. Raises InputError if the files do not match the dictionary, or if their
    encoding cannot be converted.

    Args:
        files: fairseq options that name the tokenizer files, from ``find_text_pipeline``. Empty if the
            dictionary contains whole words only.
        dictionary: dictionary of the model.
        positions: maximum number of tokens that the model accepts, or None without a limit.
        template: special tokens around sequences.
        padding_side: side on which the shorter sequences of a batch are padded.
        languages: source and target language codes for Moses.

    Example:
        >>> dictionary = Dictionary()
        >>> _ = [dictionary.add_symbol(word) for word in ("two", "dogs")]
        >>> build_tokenizer({}, dictionary, positions=100)("two dogs").input_ids
        [0, 4, 5, 2]
    """
    ids = {dictionary[index]: index for index in range(len(dictionary))}
    encoding = detect_encoding(dictionary)
    if encoding is not None and not files:
        raise InputError(
            f"The dictionary contains pieces of {encoding}, but its tokenizer is missing. Put "
            f"{_FILES[encoding]} beside the checkpoint or into the folder --data."
        )
    if files and files["bpe"] == "subword_nmt" and encoding != "subword_nmt":
        raise InputError(
            f"{files['bpe_codes']} splits words into pieces with @@, but the dictionary contains no such "
            "pieces. Give the folder of the data that the model was trained on."
        )
    tokenizer_class, options = LunaTokenizer, {}  # type: Any, Dict[str, Any]
    if not files:
        tokenizer = word_tokenizer(ids)
    elif files["bpe"] == "subword_nmt":
        tokenizer_class = LunaMosesTokenizer
        options = {"codes_file": files["bpe_codes"], "languages": languages}
        tokenizer = word_tokenizer(ids, join_pieces=True)
    elif files["bpe"] == "gpt2":
        tokenizer = _gpt2_tokenizer(files, ids)
    else:
        tokenizer = _sentencepiece_tokenizer(
            sentencepiece.SentencePieceProcessor(model_file=files["sentencepiece_model"]), ids
        )
    if SEPARATOR in ids:
        # The token includes the preceding space, so that the next sentence is encoded like a separate text.
        tokenizer.add_tokens([AddedToken(SEPARATOR, lstrip=True, normalized=False)])
        # Decoding puts one space on each side of the token, and none at the ends of the text.
        spaced = [
            decoders.Fuse(),
            decoders.Replace(Regex(f" *{SEPARATOR}"), f" {SEPARATOR}"),
            decoders.Replace(Regex(f"{SEPARATOR}(?=[^ ])"), f"{SEPARATOR} "),
            decoders.Strip(" ", left=1, right=0),
        ]
        tokenizer.decoder = decoders.Sequence([tokenizer.decoder, *spaced])
    special = {symbol for part in template for symbol in part.split() if not symbol.startswith("$")}
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template.single,
        pair=template.pair,
        special_tokens=[(symbol, ids[symbol]) for symbol in sorted(special)],
    )
    if MASK in ids:
        options["mask_token"] = MASK
    return tokenizer_class(
        **options,
        tokenizer_object=tokenizer,
        bos_token=BOS if BOS in special else EOS,
        eos_token=EOS,
        cls_token=BOS,
        sep_token=EOS,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
        model_max_length=positions,
        model_input_names=["input_ids", "attention_mask"],
        padding_side=padding_side,
    )


def tokenizer_for_task(task: Any, folders: List[Path], config: Any) -> Optional[LunaTokenizer]:
    """Build the tokenizer of a task from files in the given folders, or return None for an image task.

    ``config`` is the configuration of the exported model. If the source and target vocabularies of a
    translation model differ, the tokenizer contains a separate target tokenizer.
    """
    dictionary, target = task.source_dictionary, task.target_dictionary
    if dictionary is None:
        return None
    files = find_text_pipeline(folders)
    languages = [getattr(task.cfg, f"{side}_lang", None) or "en" for side in ("source", "target")]
    longest: Optional[int] = min(config.max_position_embeddings, 10**6)
    if getattr(task, "reads_any_length", False):
        # Learned positions alone limit the text of --task streaming_lm.
        if config.no_token_positional_embeddings or not config.decoder_learned_pos:
            longest = None
    # A language model continues a batch of prompts, so the prompts must end at the same position.
    padding_side = "left" if config.model_type == "luna_lm" else "right"
    template = choose_template(config, task)
    tokenizer = build_tokenizer(files, dictionary, longest, template, padding_side, languages)
    if config.is_encoder_decoder and target.symbols != dictionary.symbols:
        positions = config.max_target_positions
        target_tokenizer = build_tokenizer(files, target, positions, template, languages=languages)
        tokenizer.set_target(target_tokenizer.backend_tokenizer)
    return tokenizer


def vocabulary_digests(tokenizer: Optional[LunaTokenizer]) -> Dict[str, str]:
    """Return the digests of a tokenizer's vocabularies, keyed by file name, or {} without a tokenizer."""
    if tokenizer is None:
        return {}
    both = zip(tokenizer.vocab_files_names.values(), (tokenizer.backend_tokenizer, tokenizer.target))
    return {file: vocabulary_digest(backend) for file, backend in both if backend is not None}


def vocabulary_digest(tokenizer: Tokenizer) -> str:
    """Return a SHA-256 digest of all tokens and ids in a tokenizer's vocabulary."""
    return digest(sorted(tokenizer.get_vocab().items()))


def choose_template(config: Any, task: Any = None) -> Template:
    """Return the :class:`Template` with the special tokens that a model expects around its input.

    ``task`` is the fairseq task on which the model was trained. None stands for a task with default options.
    """
    if config.model_type == "luna_lm":
        first = EOS if task is None else task.source_dictionary[first_token(task)]
        return Template(f"{first} $A", f"{first} $A $B")
    if config.is_encoder_decoder:
        return Template(f"$A {EOS}", f"$A $B {EOS}")
    if getattr(config, "classifier_layers", 0):
        first = "<CLS> " if config.prepends_cls else ""
        return Template(f"{first}$A {EOS}", f"{first}$A {EOS} $B {EOS}")
    options: Any = getattr(task, "cfg", None) or getattr(task, "args", None)
    if not hasattr(options, "separator_token"):
        return MASKED_LM
    # Fine-tuned with fairseq's tasks for one or two sentences.
    tokens = options.init_token, options.separator_token
    first, separator = ["" if token is None else f"{task.source_dictionary[token]} " for token in tokens]
    return Template(f"{first}$A {EOS}", f"{first}$A {EOS} {separator}$B {EOS}")


def word_tokenizer(ids: Dict[str, int], join_pieces: bool = False) -> Tokenizer:
    """Build a tokenizer that splits text at spaces. ``ids`` maps each symbol to its id.

    With ``join_pieces``, decoding joins subwords to words by removing subword-nmt's marks "@@".
    """
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Replace(Regex(f"[{_SPACES}]+"), " ")
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # The decoder inserts a space before each word except the first. No word contains a space, so no word is
    # mistaken for the end of another.
    spaced = decoders.WordPiece(prefix=" ", cleanup=False)
    joined = [decoders.Fuse(), decoders.Replace(Regex("@@( |$)"), "")] if join_pieces else []
    tokenizer.decoder = decoders.Sequence([spaced, *joined])
    return tokenizer


def _gpt2_tokenizer(files: Mapping[str, str], ids: Dict[str, int]) -> Tokenizer:
    """Build a tokenizer with GPT-2's byte-pair encoding.

    ``ids`` maps the symbols of the fairseq dictionary to indices. Symbols that are GPT-2 ids of BPE tokens,
    as decimal strings, are replaced with these tokens. ``files`` names the two files of GPT-2.
    """
    pieces = json.loads(Path(files["gpt2_encoder_json"]).read_text(encoding="utf-8"))
    lines = Path(files["gpt2_vocab_bpe"]).read_text(encoding="utf-8").split("\n")[1:]
    merges = [(left, right) for left, _, right in (line.partition(" ") for line in lines if line)]
    symbols = {str(number): piece for piece, number in pieces.items()}
    vocabulary = {symbols.get(symbol, symbol): index for symbol, index in ids.items()}
    tokenizer = Tokenizer(_byte_pairs(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece_tokenizer(model: Any, ids: Dict[str, int]) -> Tokenizer:
    """Build a tokenizer from a sentencepiece model of type BPE. ``ids`` maps each symbol to its id."""
    pieces = ordinary_pieces(model)
    _check_sentencepiece(model, pieces)
    # Merges are applied in the order in which their results were learned.
    rank = {piece: number for number, piece in enumerate(pieces)}
    pairs = [
        (rank[piece], piece[:cut], piece[cut:])
        for piece in pieces
        for cut in range(1, len(piece))
        if piece[:cut] in rank and piece[cut:] in rank
    ]
    tokenizer = Tokenizer(_byte_pairs(ids, [(left, right) for _, left, right in sorted(pairs)]))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(Regex(f"[{_SPACES}]+"), " "),
            normalizers.Replace(Regex("^ "), ""),
            # The pre-tokenizer would not prepend the character to a text that starts with it.
            normalizers.Prepend(WORD_MARK),
            normalizers.Replace(" ", WORD_MARK),
            # sentencepiece removes the character at the end of a text, even if the text itself contains it.
            normalizers.Replace(Regex(f"{WORD_MARK}+$"), ""),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=WORD_MARK, prepend_scheme="never")
    tokenizer.decoder = decoders.Metaspace(replacement=WORD_MARK, prepend_scheme="always")
    return tokenizer


def _check_sentencepiece(model: Any, pieces: List[str]) -> None:
    """Raise InputError unless a sentencepiece model is a byte-pair encoding that does not normalize text.

    ``pieces`` are the model's subwords in the order of their indices. In a byte-pair encoding, they have the
    scores 0, -1, -2 and so on. Other model types use log probabilities as scores.
    """
    scores = [model.get_score(model.piece_to_id(piece)) for piece in pieces]
    if scores != [-float(number) for number in range(len(scores))]:
        raise InputError("Expected a byte-pair encoding, got another type of sentencepiece model.")
    if "".join(model.encode(_PROBE, out_type=str)) != WORD_MARK + _PROBE:
        raise InputError(
            "Expected a sentencepiece model without normalization, got one that normalizes text."
        )


def _byte_pairs(vocabulary: Dict[str, int], merges: List[Tuple[str, str]]) -> models.BPE:
    """Build a byte-pair encoding for the ``tokenizers`` library.

    ``vocabulary`` maps each subword piece to its id, and ``merges`` lists pairs of pieces in order. Raises
    InputError if a piece or the result of a merge has no id.
    """
    missing = [piece for pair in merges for piece in (*pair, "".join(pair)) if piece not in vocabulary]
    if missing:
        raise InputError(
            f"The dictionary lacks {len(set(missing)):,} of the tokenizer's pieces, such as {missing[0]!r}. "
            "Give the complete dictionary that belongs to this tokenizer."
        )
    return models.BPE(vocab=vocabulary, merges=merges, unk_token=UNKNOWN, fuse_unk=True)

"""Ways in which a checkpoint can be used. Each way gives the same scores for the same items.

``scores(items, left, extra)`` scores one batch, which is padded on the left or right with ``extra``
additional columns. For each item it returns the generated tokens (None without a decoder) and a tensor:

- log-probabilities [T] of the T tokens for a model with a decoder;
- log-probabilities [T, V] over V words for a masked language model, or features of the packed sequence P if a
  way returns no others;
- log-probabilities of the classes for a classifier.
"""

from argparse import Namespace
from typing import Any, Dict, List, Optional, Tuple

import numpy as np
import torch
from kinds import (
    CAUSAL,
    CLASSES,
    MASKED,
    TRANSLATION,
    Item,
    Kind,
    padded,
    values_at_tokens,
)
from tiny_checkpoints import command
from tiny_luna import EOS, PAD
from torch import Tensor

from fairseq import checkpoint_utils
from luna_fairseq.commands import average_checkpoints
from luna_fairseq.models import LunaLanguageModel, LunaMaskedLM, LunaModel

Scores = List[Tuple[Optional[List[int]], Tensor]]
TRUSTED = {"trust_remote_code": True}
FREE = {"forced_eos_token_id": None}  # generate must not replace the last token by EOS
NEW = 5  # number of tokens that are generated after a prefix


def score_targets(logits: Tensor, targets: List[List[int]], ids: Tensor) -> Scores:
    """Return each target with the log-probabilities of its tokens.

    Args:
        logits: logits [B, T, V] for batch size B, T positions and V words.
        targets: tokens of each target.
        ids: padded decoder inputs [B, T].
    """
    rows = values_at_tokens(logits.log_softmax(dim=-1), ids)
    return [(row, values[range(len(row)), row]) for row, values in zip(targets, rows)]


class Way:
    """Base class of the ways of using a checkpoint. An instance is loaded for one kind of model.

    Attributes:
        step_by_step: True if the way generates token by token, so that long targets are slow.
    """

    step_by_step = False
    dtype = torch.float64

    def __init__(self, kind: Kind, folder: Any):
        self.kind, self.folder = kind, folder
        self.load()

    def load(self) -> None:
        raise NotImplementedError


class Forward(Way):
    """One call of the fairseq model with a known target."""

    file = "model.pt"

    def load(self) -> None:
        overrides = {"data": str(self.folder / "data"), "load_checkpoint_heads": True}
        path = [str(self.folder / self.file)]
        models, _, self.task = checkpoint_utils.load_model_ensemble_and_task(path, arg_overrides=overrides)
        self.model = models[0].to(self.dtype).eval()

    def __call__(self, source: Optional[Tensor], previous: Optional[Tensor]) -> Tensor:
        with torch.no_grad():
            if self.kind.job == TRANSLATION:
                return self.model(source, source.ne(PAD).sum(dim=1), previous)[0]
            if self.kind.job == CAUSAL:
                return self.model(previous)[0]
            if self.kind.head:
                return self.model(source, classification_head_name=self.kind.head)[0]
            return self.model(source)[0] if self.kind.job == MASKED else self.model(source)

    def scores(self, items: List[Item], left: bool = False, extra: int = 0) -> Scores:
        source = previous = None
        if self.kind.job != CAUSAL:
            source = padded([item.source for item in items], left, extra)
        if self.kind.has_decoder:
            previous = padded([item.previous for item in items], False, extra)
        logits = self(source, previous)
        if self.kind.has_decoder:
            return score_targets(logits, [item.target for item in items], previous)
        logits = logits.log_softmax(dim=-1)
        rows = values_at_tokens(logits, source) if self.kind.job == MASKED else logits
        return [(None, row) for row in rows]

    def continue_item(self, item: Item, prefix: List[int]) -> List[int]:
        """Generate the NEW most probable tokens after a prefix, except padding and EOS.

        ``continue_items`` of other ways does the same for lists of items and prefixes.

        Args:
            item: item whose source the model reads.
            prefix: first tokens of the target.

        Returns:
            Generated tokens.
        """
        source = None if item.source is None else padded([item.source])
        found = [EOS, *prefix]
        for _ in range(NEW):
            logits = self(source, torch.tensor([found]))[0, -1]
            found.append(int(logits.index_fill(0, torch.tensor([PAD, EOS]), -torch.inf).argmax()))
        return found[1 + len(prefix) :]

    def answer(self, texts: List[str]) -> List[Any]:
        """Return the answer of the model to each text.

        The answer is a translation, a continuation, the three best words for the mask, or class scores.
        """
        dictionary = self.task.source_dictionary
        found: List[Any] = []
        for text in texts:
            tokens = [dictionary.index(word) for word in text.split()]
            if self.kind.job == TRANSLATION:
                new = self.continue_item(Item([*tokens, EOS], None), [])
                found.append(self.task.target_dictionary.string(torch.tensor(new)))
            elif self.kind.job == CAUSAL:
                found.append(
                    dictionary.string(torch.tensor([*tokens, *self.continue_item(Item(None, None), tokens)]))
                )
            else:
                first = [] if self.kind.is_lra else [dictionary.bos()]
                if self.kind.is_lra and not self.kind.options:
                    first = [dictionary.index("<CLS>")]
                values = self.scores([Item([*first, *tokens, EOS], None)])[0][1]
                if self.kind.job == MASKED:
                    place = 1 + tokens.index(dictionary.index("<mask>"))
                    names = {i: dictionary[i] for i in range(len(dictionary)) if dictionary[i][0] == "w"}
                    best = sorted(names, key=lambda i: -values[place, i])[:3]
                    found.append([names[i] for i in best])
                else:
                    found.append(values)
        return found


class Averaged(Forward):
    """Checkpoint written by luna-average-checkpoints."""

    file = "averaged.pt"

    def load(self) -> None:
        files = [str(self.folder / name) for name in ("a.pt", "b.pt")]
        assert average_checkpoints.main(["--inputs", *files, "--output", str(self.folder / self.file)]) == 0
        super().load()


def exported(kind: Kind, folder: Any) -> Any:
    """Return the folder of the model exported by luna-export-huggingface. It is written at the first call.

    All folders have the same name, because transformers caches code by the name of the folder and its
    content.
    """
    there = folder / "hf"
    if not there.exists():
        words = ["--path", folder / "model.pt", "--data", folder / "data"]
        assert command("export", there, *words) == 0
    return there


AUTO = {
    TRANSLATION: "AutoModelForSeq2SeqLM",
    CAUSAL: "AutoModelForCausalLM",
    MASKED: "AutoModelForMaskedLM",
    CLASSES: "AutoModelForSequenceClassification",
}


def load_exported(kind: Kind, folder: Any) -> Any:
    """Load the model of an exported folder with transformers."""
    import transformers

    return getattr(transformers, AUTO[kind.job]).from_pretrained(str(folder), **TRUSTED).eval()


class Imported(Forward):
    """Checkpoint written by luna-import-huggingface from a folder that transformers has saved again."""

    file = "imported.pt"

    def load(self) -> None:
        import transformers

        there, again = exported(self.kind, self.folder), self.folder / "again"
        load_exported(self.kind, there).save_pretrained(str(again))
        transformers.AutoTokenizer.from_pretrained(str(there), **TRUSTED).save_pretrained(str(again))
        words = ["--like", self.folder / "a.pt", "--path", self.folder / self.file]
        assert command("import_checkpoint", again, *words) == 0
        super().load()


class Search(Forward):
    """fairseq's sequence generator. Known targets are given as prefixes."""

    step_by_step = True

    def generate(
        self, source: Optional[Tensor], prefix: Optional[Tensor], longest: int, least: int = 1, beam: int = 1
    ) -> Any:
        """Return the hypotheses of each sentence of a batch, best first."""
        options = Namespace(beam=beam, max_len_b=longest, min_len=least)
        generator = self.task.build_generator([self.model], options)
        if source is None:
            source = prefix[:, :0]
        net_input = {"src_tokens": source, "src_lengths": source.ne(PAD).sum(dim=1)}
        if self.kind.job == CAUSAL:  # fairseq takes the batch size from the source
            net_input = {"src_tokens": torch.cat([torch.full_like(prefix[:, :1], EOS), prefix], dim=1)}
            prefix = None
        sample = {"net_input": net_input}
        return self.task.inference_step(generator, [self.model], sample, prefix_tokens=prefix)

    def scores(self, items: List[Item], left: bool = False, extra: int = 0) -> Scores:
        source = None
        if self.kind.job == TRANSLATION:
            source = padded([item.source for item in items], left, extra)
        target = padded([item.target for item in items])
        found = self.generate(source, target, target.size(1))
        return [
            (best[0]["tokens"].tolist(), best[0]["positional_scores"][: len(best[0]["tokens"])].double())
            for best in found
        ]

    def continue_items(self, items: List[Item], prefixes: List[List[int]], left: bool) -> List[List[int]]:
        """Continue each prefix in a batch with a copy of itself.

        Different items are not batched, because fairseq would let a sentence end before the prefixes of
        others are read.
        """
        found = []
        for item, prefix in zip(items, prefixes):
            source = None
            if self.kind.job == TRANSLATION:
                source = padded([item.source] * 2, left, extra=3)
            longest = len(prefix) + NEW
            best = self.generate(source, padded([prefix] * 2), longest, longest)
            rows = [one[0]["tokens"].tolist()[len(prefix) :][:NEW] for one in best]
            assert rows[0] == rows[1]
            found.append(rows[0])
        return found


class Python(Way):
    """Python interface: LunaModel, LunaLanguageModel and LunaMaskedLM."""

    step_by_step = True

    def load(self) -> None:
        self.hub = self.from_pretrained()
        if self.kind.job == TRANSLATION:
            self.right = self.from_pretrained(left_pad_source=False)

    def from_pretrained(self, **more: Any) -> Any:
        model = {TRANSLATION: LunaModel, CAUSAL: LunaLanguageModel}.get(self.kind.job, LunaMaskedLM)
        words = str(self.folder), "model.pt", str(self.folder / "data")
        return model.from_pretrained(*words, **more).to(self.dtype)

    def scores(self, items: List[Item], left: bool = False, extra: int = 0) -> Scores:
        if self.kind.job == CAUSAL:
            texts = [self.hub.tgt_dict.string(torch.tensor(item.target)) for item in items]
            found = self.hub.score(texts)
            return [(one["tokens"].tolist(), one["positional_scores"].double()) for one in found]
        tokens = [torch.tensor(item.source) for item in items]
        if self.kind.job == TRANSLATION:
            hub = self.hub if left else self.right
            found = hub.generate(tokens, beam=1, max_len_b=3)
            return [(one[0]["tokens"].tolist(), one[0]["positional_scores"].double()) for one in found]
        with torch.no_grad():
            if self.kind.head:
                return [(None, row) for row in self.hub.predict(self.kind.head, tokens)]
            features = self.hub.extract_features(tokens)
            logits = self.hub.model.encoder.lm_head(features).log_softmax(dim=-1)
        return [(None, row[: len(item.source)]) for row, item in zip(logits, items)]

    def continue_items(self, items: List[Item], prefixes: List[List[int]], left: bool) -> List[List[int]]:
        found = []
        for item, prefix in zip(items, prefixes):
            longest = len(prefix) + NEW
            options = {"beam": 1, "max_len_b": longest, "min_len": longest}
            if self.kind.job == CAUSAL:
                best = self.hub.generate([torch.tensor([*prefix, EOS])], **options)[0][0]
            else:
                given = {"inference_step_args": {"prefix_tokens": torch.tensor([prefix])}}
                hub = self.hub if left else self.right
                best = hub.generate([torch.tensor(item.source)], **options, **given)[0][0]
            found.append(best["tokens"].tolist()[len(prefix) :][:NEW])
        return found

    def two_turns(self, items: List[Item], prefixes: List[List[int]], more: List[List[int]]) -> Any:
        """Continue two lines of a stream with a causal language model, one after the other."""
        found = []
        for prefix, line in zip(prefixes, more):
            texts = [self.hub.tgt_dict.string(torch.tensor(tokens)) for tokens in (prefix, line)]
            stream = self.hub.read(texts[0])
            longest = len(line) + NEW
            new = self.hub.sample(texts[1], stream=stream, beam=1, max_len_b=longest, min_len=longest)
            found.append([self.hub.tgt_dict.index(word) for word in new.split()][len(line) :])
        return None, found

    def answer(self, texts: List[str]) -> List[Any]:
        if self.kind.job == TRANSLATION:
            return self.hub.translate(texts, beam=1, max_len_a=0, max_len_b=NEW, min_len=NEW)
        if self.kind.job == CAUSAL:
            longest = [len(text.split()) + NEW for text in texts]
            return [self.hub.sample(text, max_len_b=n, min_len=n) for text, n in zip(texts, longest)]
        if self.kind.job == MASKED:
            return [[word.strip() for _, _, word in self.hub.fill_mask(text, topk=3)] for text in texts]
        with torch.no_grad():
            return list(self.hub.predict(self.kind.head, [self.hub.encode(text) for text in texts]))


class InEightBits(Forward):
    """Model of the Python interface with 8-bit weights, called like :class:`Forward`."""

    dtype = torch.float32

    def load(self) -> None:
        model = {TRANSLATION: LunaModel, CAUSAL: LunaLanguageModel}[self.kind.job]
        words = str(self.folder), "model.pt", str(self.folder / "data")
        self.hub = model.from_pretrained(*words, int8=True)
        self.model = self.hub.models[0]


class Transformers(Way):
    """One call of the model exported to transformers, with source and target padded on the same side."""

    def load(self) -> None:
        self.model = load_exported(self.kind, exported(self.kind, self.folder)).to(self.dtype)

    def score_without_decoder(self, logits: Tensor, ids: Tensor) -> Scores:
        """Return the scores of a model without a decoder.

        Args:
            logits: logits [B, T, V] of a masked language model, or [B, classes] of a classifier.
            ids: tokens [B, T].
        """
        logits = logits.log_softmax(dim=-1)
        return [(None, row) for row in (values_at_tokens(logits, ids) if self.kind.job == MASKED else logits)]

    def read_source(self, items: List[Item], left: bool = False, extra: int = 0) -> Dict[str, Any]:
        """Return the keyword arguments for the source. They are empty for a causal language model."""
        if self.kind.job == CAUSAL:
            return {}
        ids = padded([item.source for item in items], left, extra)
        return {"input_ids": ids, "attention_mask": ids.ne(PAD).long()}

    @property
    def side(self) -> str:
        return "decoder_" if self.kind.job == TRANSLATION else ""

    @torch.no_grad()
    def scores(self, items: List[Item], left: bool = False, extra: int = 0) -> Scores:
        given = self.read_source(items, left, extra)
        if not self.kind.has_decoder:
            ids = given["input_ids"]
            logits = self.model(**given).logits
            again = self.model(ids).logits  # padding is also masked if no mask is given
            there = ids.ne(PAD) if self.kind.job == MASKED else ...
            torch.testing.assert_close(logits[there], again[there], rtol=0, atol=1e-12)
            return self.score_without_decoder(logits, ids)
        ids = padded([item.previous for item in items], left, extra)
        target = {f"{self.side}input_ids": ids, f"{self.side}attention_mask": ids.ne(PAD).long()}
        return score_targets(self.model(**given, **target).logits, [item.target for item in items], ids)

    @property
    def tokenizer(self) -> Any:
        """Tokenizer of the exported folder."""
        import transformers

        return transformers.AutoTokenizer.from_pretrained(str(exported(self.kind, self.folder)), **TRUSTED)

    @torch.no_grad()
    def answer(self, texts: List[str]) -> List[Any]:
        """Return the answers to texts, as :meth:`Forward.answer` does, for a model without a decoder."""
        tokenizer = self.tokenizer
        given = dict(tokenizer(texts, padding=True, return_tensors="pt"))
        logits = self.model(**given).logits
        if self.kind.job == CLASSES:
            return list(logits.log_softmax(dim=-1))
        mask = given["input_ids"].eq(tokenizer.mask_token_id)
        words = torch.tensor(tokenizer.convert_tokens_to_ids(self.words()))
        return [[tokenizer.decode([words[i]]) for i in row[words].topk(3).indices] for row in logits[mask]]

    def words(self) -> List[str]:
        """Return the words of the dictionary."""
        return [f"w{number}" for number in range(17)]


def split_into_chunks(ids: Tensor) -> List[Tensor]:
    """Split tokens [B, T] along T into chunks of 1, 2, 3, 60 and all remaining tokens."""
    ends = [min(end, ids.size(1)) for end in (0, 1, 3, 6, 66, ids.size(1))]
    return [ids[:, start:end] for start, end in zip(ends, ends[1:]) if start < end]


class StepByStep(Transformers):
    """Base class of ways in which the decoder keeps a state between calls.

    ``start`` returns the first state. ``advance`` reads tokens and returns the next state.
    """

    def start(self, items: List[Item], left: bool = False, extra: int = 0) -> Any:
        raise NotImplementedError

    def advance(self, state: Any, ids: Tensor) -> Tuple[Tensor, Any]:
        """Read tokens [B, T], and return their logits [B, T, V] over V words and the next state."""
        raise NotImplementedError

    @torch.no_grad()
    def scores(self, items: List[Item], left: bool = False, extra: int = 0) -> Scores:
        ids = padded([item.previous for item in items], left, extra)
        logits, _ = self.advance(self.start(items, left, extra), ids)
        return score_targets(logits, [item.target for item in items], ids)

    def write(self, state: Any, ids: Tensor) -> Tuple[Tensor, Any]:
        """Generate the most probable tokens after ``ids``.

        Args:
            state: state of the decoder.
            ids: tokens [B, T] that the decoder reads first.

        Returns:
            Five generated tokens per sequence [B, 5], and the state before the last of them is read.
        """
        found = []
        for _ in range(NEW):
            logits, state = self.advance(state, ids)
            never = torch.tensor([PAD, EOS])
            ids = logits[:, -1].index_fill(1, never, -torch.inf).argmax(dim=1, keepdim=True)
            found.append(ids)
        return torch.cat(found, dim=1), state

    @torch.no_grad()
    def continue_items(self, items: List[Item], prefixes: List[List[int]], left: bool) -> List[List[int]]:
        ids = padded([[EOS, *prefix] for prefix in prefixes], True)
        return self.write(self.start(items, left), ids)[0].tolist()

    @torch.no_grad()
    def two_turns(self, items: List[Item], prefixes: List[List[int]], more: List[List[int]]) -> Any:
        ids = padded([[EOS, *prefix] for prefix in prefixes], True)
        first, state = self.write(self.start(items), ids)
        second, _ = self.write(state, torch.cat([first[:, -1:], padded(more, True)], dim=1))
        return first.tolist(), second.tolist()


class Cached(StepByStep):
    """Exported model that reads a sequence in several calls, with the cache of the preceding call."""

    def start(self, items: List[Item], left: bool = False, extra: int = 0) -> Any:
        given = self.read_source(items, left, extra)
        return ({"encoder_outputs": self.model.get_encoder()(**given)} if given else {}), None

    def advance(self, state: Any, ids: Tensor) -> Tuple[Tensor, Any]:
        source, cache = state
        found = []
        for chunk in split_into_chunks(ids):
            given = {f"{self.side}input_ids": chunk, "past_key_values": cache, "use_cache": True}
            out = self.model(**source, **given)
            cache = out.past_key_values
            found.append(out.logits)
        return torch.cat(found, dim=1), (source, cache)


class Onnx(StepByStep):
    """ONNX graphs written by luna-export-onnx, run by onnxruntime."""

    def load(self) -> None:
        import onnxruntime

        there = self.folder / "onnx"
        words = ["--path", self.folder / "model.pt", "--data", self.folder / "data"]
        assert command("export_onnx", there, *words) == 0
        self.graphs = {path.stem: onnxruntime.InferenceSession(str(path)) for path in there.glob("*.onnx")}

    def run(self, graph: str, given: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
        session = self.graphs[graph]
        names = {one.name for one in session.get_inputs()}
        written = [one.name for one in session.get_outputs()]
        return dict(zip(written, session.run(None, {name: given[name] for name in given if name in names})))

    def scores(self, items: List[Item], left: bool = False, extra: int = 0) -> Scores:
        if self.kind.has_decoder:
            return super().scores(items, left, extra)
        ids = padded([item.source for item in items], left, extra)
        logits = torch.from_numpy(self.run("model", {"input_ids": ids.numpy()})["logits"]).double()
        return self.score_without_decoder(logits, ids)

    def start(self, items: List[Item], left: bool = False, extra: int = 0) -> Any:
        nodes = [node for node in self.graphs["decoder"].get_inputs() if node.name.startswith("state_")]
        types = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
        state = {x.name: np.zeros((len(items), *x.shape[1:]), types[x.type]) for x in nodes}
        if self.kind.job == CAUSAL:
            return state
        ids = padded([item.source for item in items], left, extra)
        return {**state, **self.run("encoder", {"input_ids": ids.numpy()})}

    def advance(self, state: Any, ids: Tensor) -> Tuple[Tensor, Any]:
        found = []
        for token in ids.t():
            after = self.run("decoder", {"token": token[:, None].numpy(), **state})
            found.append(torch.from_numpy(after.pop("logits")).double())
            state = {**state, **{name[len("next_") :]: value for name, value in after.items()}}
        return torch.stack(found, dim=1), state


class Generate(Transformers):
    """Method ``generate`` of the exported model."""

    def generate(self, ids: Tensor, given: Dict[str, Any], **more: Any) -> Any:
        options = {"do_sample": False, "num_beams": 1, "suppress_tokens": [PAD], **FREE}
        options = {
            **options,
            "min_new_tokens": NEW,
            "max_new_tokens": NEW,
            "return_dict_in_generate": True,
            **more,
        }
        given = {**given, f"{self.side}input_ids": ids, f"{self.side}attention_mask": ids.ne(PAD).long()}
        return self.model.generate(**given, **options)

    @torch.no_grad()
    def scores(self, items: List[Item], left: bool = False, extra: int = 0) -> Scores:
        """Return the scores of generated tokens. A language model continues the first half of each text."""
        prompts = [[EOS] for _ in items]
        if self.kind.job == CAUSAL:
            prompts = [item.previous[: 1 + len(item.target) // 2] for item in items]
        ids = padded(prompts, True)
        out = self.generate(ids, self.read_source(items, left, extra), output_logits=True)
        new = out.sequences[:, ids.size(1) :].tolist()
        logits = torch.stack(out.logits, dim=1).to(self.dtype)
        found = score_targets(logits, new, torch.tensor(new))
        return [(row[1:] + tokens, values) for row, (tokens, values) in zip(prompts, found)]

    def continue_items(self, items: List[Item], prefixes: List[List[int]], left: bool) -> List[List[int]]:
        ids = padded([[EOS, *prefix] for prefix in prefixes], True)
        return self.generate(ids, self.read_source(items, left)).sequences[:, ids.size(1) :].tolist()

    def two_turns(
        self, items: List[Item], prefixes: List[List[int]], more: List[List[int]]
    ) -> Tuple[List[List[int]], List[List[int]]]:
        given = self.read_source(items)
        ids = padded([[EOS, *prefix] for prefix in prefixes], True)
        first = self.generate(ids, given)
        both = torch.cat([first.sequences, padded(more, True)], dim=1)
        second = self.generate(both, given, past_key_values=first.past_key_values)
        new = first.sequences[:, ids.size(1) :], second.sequences[:, both.size(1) :]
        return new[0].tolist(), new[1].tolist()

    def answer(self, texts: List[str]) -> List[Any]:
        """Return the text that the model generates for each text."""
        tokenizer = self.tokenizer
        given = dict(tokenizer(texts, padding=True, return_tensors="pt"))
        options = {"min_new_tokens": NEW, "max_new_tokens": NEW, "suppress_tokens": [PAD], **FREE}
        written = self.model.generate(**given, do_sample=False, num_beams=1, **options)
        return tokenizer.batch_decode(written, skip_special_tokens=True)

"""What the cases are made of: TOK, CORPUS, PREP, WORD, HF0, START, RUN, PROBE and ORACLE, under their names."""

import json
import random
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from megalite.data.gpt_dataset import GPTDataset
from megalite.data.indexed import IndexedCorpus
from megalite.data.indexed_writer import IndexedWriter
from tests.cases.harness import Outcome, start
from tools import convert_checkpoint

tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

SEQUENCE, BATCH = 64, 8
EOD = 0
COURSE = (
    f"--seq-length {SEQUENCE} --micro-batch-size 2 --global-batch-size {BATCH} --train-iters 20 --lr 1e-3 "
    "--min-lr 1e-3 --lr-decay-style constant --weight-decay 0 --clip-grad 1.0 --attention-dropout 0 "
    "--hidden-dropout 0 --seed 1234 --log-interval 1 --eval-iters 0"
)
PROBE = "--lr 0 --min-lr 0 --weight-decay 0"
WHOLE = "--split 100,0,0"
SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "bos_token_id": EOD,
    "eos_token_id": EOD,
}
"""Of HF0; with 4 key and value heads, so that it can go to 4 tensor parallel ranks."""


class Materials:
    """Makes each thing once, in a folder of the session."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tok, self.corpus, self.model, self.checkpoint = (
            cache(make) for make in (self._tok, self._corpus, self._model, self._checkpoint)
        )

    def _tok(self, entries: int = 320) -> Path:
        """TOK: byte-level BPE with the end of a text as number 0."""
        folder = self.folder / f"tok{entries}"
        folder.mkdir()
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = tokenizers.decoders.ByteLevel()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=entries,
            special_tokens=["<|endoftext|>"],
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts(), trainer)
        assert tokenizer.get_vocab_size() == entries and tokenizer.token_to_id("<|endoftext|>") == EOD
        tokenizer.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>"}')
        return folder

    def _corpus(self, entries: int = 320) -> Path:
        """CORPUS after PREP: the prefix of its files."""
        source, prefix = self.folder / "corpus.jsonl", self.folder / f"corpus{entries}"
        source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts()))
        tool = f"{sys.executable} tools/preprocess_data.py --input {source} --output-prefix {prefix} --append-eod"
        done = start(f"{tool} {self.tokenizer(entries)} --workers 2".split())
        assert done.returncode == 0, done.stderr
        return Path(f"{prefix}_text_document")

    def documents(self, name: str, documents: Sequence[Sequence[int]]) -> Path:
        """A data set of these documents: WORD where each is one word again and again."""
        prefix = self.folder / name
        with IndexedWriter(prefix, np.dtype("uint16")) as writer:
            for document in documents:
                writer.add_document(document)
        return prefix

    def _model(self, **changes: Any) -> Path:
        """HF0: a Llama in which nothing is zero or one by luck; `head=0.0` scales its output weights."""
        head = changes.pop("head", 1.0)
        folder = self.folder / "-".join(["hf", *(f"{k}{v}" for k, v in sorted(changes.items())), str(head)])
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SIZES, **changes}))
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.05 + ("norm" in name))
            if head != 1.0:
                model.lm_head.weight *= head
        model.save_pretrained(folder)
        return folder

    def _checkpoint(self, **changes: Any) -> Path:
        """START: HF0 as our checkpoint."""
        source = self.model(**changes)
        target = source.with_name(f"start-{source.name}")
        words = f"--from hf --to megalite --load {source} --save {target}"
        assert convert_checkpoint.main(words.split()) == 0
        return target

    def samples(
        self, prefix: Path, number: int, *, documents: range | None = None, length: int = SEQUENCE
    ) -> list[list[int]]:
        """The samples of a training set in the order of the run: `length` inputs and a label more."""
        corpus = IndexedCorpus(prefix)
        dataset = GPTDataset(
            corpus,
            sequences=documents or range(len(corpus)),
            num_samples=number,
            seq_length=length,
            seed=1234,
            split="train",
            cache=None,
            vocab_size=None,
        )
        return [dataset[index].tolist() for index in range(number)]

    def tokenizer(self, entries: int = 320) -> str:
        return f"--tokenizer-type HuggingFaceTokenizer --tokenizer-model {self.tok(entries)}"

    def run(self, **changes: Any) -> str:
        """The flags of RUN from START, but for the data."""
        sizes = {**SIZES, **{key: value for key, value in changes.items() if key != "head"}}
        untied = "" if sizes["tie_word_embeddings"] else "--untie-embeddings-and-output-weights"
        return (
            f"--num-layers {sizes['num_hidden_layers']} --hidden-size {sizes['hidden_size']} "
            f"--ffn-hidden-size {sizes['intermediate_size']} --num-attention-heads {sizes['num_attention_heads']} "
            f"--group-query-attention --num-query-groups {sizes['num_key_value_heads']} --max-position-embeddings 128 "
            "--position-embedding-type rope --normalization RMSNorm --norm-epsilon 1e-6 --swiglu "
            f"--disable-bias-linear {untied} {COURSE} {self.tokenizer(sizes['vocab_size'])} "
            f"--load {self.checkpoint(**changes)} --finetune"
        )

    def fresh_gpt(self) -> str:
        """The flags of RUN for a GPT from its own start, with all that tensor parallel ranks hold copies of."""
        return (
            f"--num-layers 2 --hidden-size 64 --num-attention-heads 4 --init-method-std 0.1 {COURSE} {self.tokenizer()}"
        )

    def oracle(self, **changes: Any) -> "Oracle":
        return Oracle(transformers.LlamaForCausalLM.from_pretrained(self.model(**changes)))


class Oracle:
    """The same weights in plain transformers."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def losses(self, tokens: Sequence[int]) -> torch.Tensor:
        """The cross-entropy of each token after the first, with positions from 0: [tokens - 1]."""
        ids = torch.tensor([list(tokens)])
        logits = self.model(ids[:, :-1]).logits
        return torch.nn.functional.cross_entropy(logits[0], ids[0, 1:], reduction="none")

    def mean(self, samples: Sequence[Sequence[int]]) -> float:
        """The mean over all labels of some samples."""
        with torch.no_grad():
            return float(torch.cat([self.losses(sample) for sample in samples]).mean())

    def gradient_norm(self, sample: Sequence[int]) -> float:
        """Of the mean loss, over all parameters, tied ones once."""
        self.model.zero_grad()
        self.losses(sample).mean().backward()
        return float(torch.stack([p.grad.double().norm() for p in self.model.parameters()]).norm())


@cache
def texts() -> list[str]:
    """The 200 texts of CORPUS: seeded random words."""
    random_ = random.Random(5)
    words = ["".join(random_.choices("aeinorst", k=random_.randint(2, 5))) for _ in range(60)]
    return [" ".join(random_.choices(words, k=random_.randint(3, 40))) for _ in range(200)]


def read_back(prefix: Path) -> list[list[int]]:
    """READBACK: the documents of a data set."""
    corpus = IndexedCorpus(prefix)
    return [corpus[index].tolist() for index in range(len(corpus))]


def same(outcome: Outcome, reference: Outcome, iterations: int = 20) -> None:
    """PARITY: each loss within 1e-4, each gradient norm within 1e-3."""
    assert outcome.status == reference.status == 0, outcome.said
    assert len(outcome.losses) == len(reference.losses) == iterations
    assert outcome.losses == pytest.approx(reference.losses, rel=1e-4)
    assert outcome.norms == pytest.approx(reference.norms, rel=1e-3)

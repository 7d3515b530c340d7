"""The loss of a smoothed bigram model, to hold a network's against: what counting pairs of tokens can do.

Interpolated absolute discounting (Ney, Essen and Kneser 1994; surveyed by Chen and Goodman 1999) over Kneser-Ney's
continuation counts: a pair's probability is its discounted share of what followed the first token, and the discounts
go to the tokens by how many different tokens they follow.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np

from megalite.config.cli import parse
from megalite.config.derive import derive
from megalite.config.split import DEFAULT_SPLIT, split_shares
from megalite.data.blend import Request
from megalite.data.gpt_dataset import split_ranges
from megalite.data.indexed import IndexedCorpus
from megalite.data.splits import build_datasets
from megalite.data.tokenizer import build_tokenizer
from megalite.observe import jsonl


class Bigram:
    """Counts of `tokens` (int, one row), ids below vocab_size."""

    def __init__(self, tokens: np.ndarray, vocab_size: int) -> None:
        first, second = tokens[:-1].astype(np.int64), tokens[1:].astype(np.int64)
        pairs = np.bincount(first * vocab_size + second, minlength=vocab_size**2).reshape(vocab_size, vocab_size)
        self.vocab_size = vocab_size
        self.pairs = pairs
        self.unigram = smoothed(np.bincount(tokens, minlength=vocab_size))
        # How many different tokens each token follows says better than its count what comes after an unseen pair.
        self.continuation = smoothed(np.count_nonzero(pairs, axis=0))
        self.discount = discount(pairs)

    def unigram_loss(self, samples: np.ndarray) -> float:
        """The mean nats of the tokens after the first of each row of `samples` [n, s + 1], each taken by itself."""
        return float(-np.log(self.unigram[samples[:, 1:]]).mean())

    def loss(self, samples: np.ndarray) -> float:
        """The mean nats of the tokens after the first of each row of `samples` [n, s + 1], given the one before."""
        before, after = samples[:, :-1], samples[:, 1:]
        total = self.pairs.sum(axis=1)
        kept = np.maximum(self.pairs[before, after] - self.discount, 0)
        freed = self.discount * np.count_nonzero(self.pairs, axis=1)
        # A token that never came first says nothing: all of its mass is free.
        freed, total = np.where(total, freed, 1), np.maximum(total, 1)
        return float(-np.log((kept + freed[before] * self.continuation[after]) / total[before]).mean())


def discount(counts: np.ndarray) -> float:
    """What is taken from each count: n1 / (n1 + 2 n2), with n1 and n2 the numbers of ones and twos."""
    once, twice = np.count_nonzero(counts == 1), np.count_nonzero(counts == 2)
    return once / (once + 2 * twice) if once else 0.5


def smoothed(counts: np.ndarray) -> np.ndarray:
    """Probabilities from counts [v], discounted, so that a token never seen has some."""
    taken = discount(counts)
    freed = taken * np.count_nonzero(counts)
    return (np.maximum(counts - taken, 0) + freed / len(counts)) / counts.sum()


def training_and_validation(training_flags: list[str]) -> tuple[np.ndarray, np.ndarray, int]:
    """The training tokens in one row, the samples of one evaluation [n, s + 1], and the size of the vocabulary."""
    config = parse(training_flags).config
    derived = derive(config, world_size=1)
    wanted = config.train.eval_iters * derived.eval_batch_size
    vocab_size = build_tokenizer(**asdict(config.tokenizer)).vocab_size
    (prefix,), split = config.data.data_path, config.data.split or DEFAULT_SPLIT
    corpus = IndexedCorpus(prefix)
    counted, *_ = split_ranges(split_shares(split), len(corpus.lengths))
    valid = build_datasets(
        [prefix],
        split=split,
        sizes=(0, wanted, 0),
        request=Request(seq_length=config.model.seq_length, seed=config.train.seed, vocab_size=vocab_size),
    ).valid
    assert valid is not None
    samples = [valid[index] for index in range(wanted)]
    return np.concatenate([corpus.get(index) for index in counted]), np.stack(samples), vocab_size


def main(arguments: list[str]) -> int:
    """Compare with the last evaluation that a run logged; 1 where the run's loss is not the lower one."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--log", type=Path, required=True, help="what the run wrote with --log-jsonl")
    parser.add_argument("--output", type=Path, required=True, help="a JSON file for the losses")
    options, training_flags = parser.parse_known_args(arguments)
    tokens, samples, vocab_size = training_and_validation(training_flags)
    evaluation = [record for record in jsonl.read(options.log) if "validation_loss" in record][-1]
    assert evaluation["tokens"] == samples[:, 1:].size, "the model was evaluated on other tokens"
    bigram = Bigram(tokens, vocab_size)
    losses = {
        "model": evaluation["validation_loss"],
        "bigram": bigram.loss(samples),
        "unigram": bigram.unigram_loss(samples),
    }
    options.output.write_text(json.dumps(losses))
    print(f"On {evaluation['tokens']:,} validation tokens, in nats per token, after counting {tokens.size:,} tokens:")
    print("\n".join(f"  {name:<16} {loss:.4f}" for name, loss in losses.items()))
    if losses["model"] < losses["bigram"]:
        return 0
    print("The model has not learned more than pairs of tokens: train it for longer.")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Say what .bin/.idx token files hold: sizes, lengths, first documents, what a --split makes of them, damage.

With a tokenizer documents are decoded, and every id is held against the vocabulary.
With --run and the flags of pretrain_gpt.py: what that run would take of its corpora.
"""

import argparse
import sys

import numpy as np

from megalite.config.split import split_shares
from megalite.config.tokenizer_flags import add_tokenizer_flags, tokenizer_settings
from megalite.data.gpt_dataset import split_ranges
from megalite.data.indexed import IndexedCorpus
from megalite.data.integrity import faults, length_table
from megalite.data.splits import PARTS
from megalite.data.tokenizer import build_tokenizer
from megalite.data.tokenizer_base import Tokenizer
from megalite.train.planned import planned_notes


def main(arguments: list[str]) -> int:
    """Print the listing; 1 if a pair is damaged."""
    options = _parser().parse_args(arguments)
    try:
        if options.run:
            print("\n".join(planned_notes(options.run, ranks=options.ranks, keep=False)))
        tokenizer = build_tokenizer(**tokenizer_settings(options)) if options.tokenizer_type else None
        damaged = False
        for prefix in options.prefix:
            corpus = IndexedCorpus(prefix)
            print("\n".join(_listing(corpus, options, tokenizer)))
            if options.verify_integrity:
                found = list(faults(corpus, tokenizer.vocab_size if tokenizer else None))
                damaged = damaged or bool(found)
                print(
                    "\n".join(f"  damaged: {fault}" for fault in found) or "  Every entry is as a writer would make it."
                )
    except (ValueError, OSError) as error:
        print(f"inspect_dataset: {error}", file=sys.stderr)
        return 1
    return 1 if damaged else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("prefix", nargs="*", help="paths of pairs, without the ending")
    parser.add_argument("--documents", type=int, default=2, metavar="N", help="print the first N documents")
    parser.add_argument("--tokens", type=int, default=32, metavar="N", help="print N tokens of each, at most")
    parser.add_argument("--split", default="969,30,1", help="shares of documents, as in training")
    parser.add_argument("--verify-integrity", action="store_true", help="look at every entry, and at every id")
    add_tokenizer_flags(parser, required=False)
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="ranks of the run that --run describes")
    parser.add_argument("--run", nargs=argparse.REMAINDER, default=[], help="all that follows is of pretrain_gpt.py")
    return parser


def _listing(corpus: IndexedCorpus, options: argparse.Namespace, tokenizer: Tokenizer | None) -> list[str]:
    """The lines of a pair."""
    documents, lengths = len(corpus.documents) - 1, corpus.lengths
    empty = int(np.count_nonzero(np.diff(corpus.documents) == 0))
    lines = [
        corpus.prefix,
        f"  {documents:,} documents, {empty:,} of them empty; {len(corpus):,} sequences",
        f"  {corpus.tokens:,} tokens of {corpus.dtype}, {corpus.bytes:,} B",
    ]
    if len(corpus):
        lines.append(
            f"  tokens in a sequence: {lengths.min():,} to {lengths.max():,}, "
            f"median {np.median(lengths):,.0f}, mean {lengths.mean():,.1f}"
        )
    lines += [
        f"    {least:>11,} to {most:>13,}  {number:>13,} sequences  {tokens:>16,} tokens"
        for least, most, number, tokens in length_table(lengths)
    ]
    lines.append(f"  --split {options.split}")
    for part, here in zip(PARTS, split_ranges(split_shares(options.split), len(corpus)), strict=True):
        tokens = int(lengths[here.start : here.stop].sum(dtype=np.int64))
        lines.append(f"    {part:5}  {len(here):>13,} sequences from {here.start:,} on  {tokens:>16,} tokens")
    for index in range(min(options.documents, len(corpus))):
        tokens = corpus.get(index, 0, min(options.tokens, int(lengths[index]))).tolist()
        lines.append(f"  {corpus.place(index)}: {lengths[index]:,} tokens: {' '.join(map(str, tokens))}")
        if tokenizer:
            lines.append(f"    {tokenizer.decode(tokens)!r}")
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

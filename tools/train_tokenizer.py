"""Train a sentencepiece tokenizer on a JSONL corpus, so that every text, source code included, comes back exactly."""

import argparse
import sys
from pathlib import Path

from megalite.data.preprocess.train import train_tokenizer


def main() -> None:
    """Parse the flags, train, and say how well it does."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--input", required=True, type=Path, help="JSONL file")
    parser.add_argument("--json-key", default="text", help="what to take from each line")
    parser.add_argument("--output-prefix", required=True, help="writes PREFIX.model")
    parser.add_argument("--vocab-size", required=True, type=int, help="number of ids; 256 of them are bytes")
    parser.add_argument("--model-type", choices=("bpe", "unigram"), default="bpe")
    args = parser.parse_args()
    output = Path(f"{args.output_prefix}.model")
    try:
        trained = train_tokenizer(
            args.input, output, vocab_size=args.vocab_size, model_type=args.model_type, key=args.json_key
        )
    except (ValueError, OSError) as error:
        sys.exit(f"{parser.prog}: error: {error}")
    print(
        f"{output}: {trained.vocab_size} ids; {trained.exact} of {trained.texts} texts come back exactly, "
        f"{trained.characters / max(trained.tokens, 1):.2f} characters per token"
    )


if __name__ == "__main__":
    main()

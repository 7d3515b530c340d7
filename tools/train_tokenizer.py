"""Train a tokenizer on texts, so that every text, source code included, comes back exactly."""

import argparse
import sys

from megalite.data.preprocess.sources import FORMATS
from megalite.data.preprocess.train import MODEL_TYPES, train_tokenizer


def main() -> None:
    """Parse the flags, train, and say how well it does."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--input", required=True, nargs="+", help="files, quoted patterns of files")
    parser.add_argument("--input-format", choices=("auto", *FORMATS), default="auto", help="auto: by the file's ending")
    parser.add_argument("--json-key", default="text", help="what to take from each line or row")
    parser.add_argument("--output-prefix", required=True, help="writes PREFIX.model, or PREFIX/tokenizer.json")
    parser.add_argument("--vocab-size", required=True, type=int, help="number of ids; 256 of them are bytes")
    parser.add_argument(
        "--model-type",
        choices=MODEL_TYPES,
        default="bpe",
        help="bpe and unigram are sentencepiece with byte fallback; byte-level-bpe is of Hugging Face's tokenizers",
    )
    args = parser.parse_args()
    try:
        trained = train_tokenizer(
            args.input,
            args.output_prefix,
            vocab_size=args.vocab_size,
            model_type=args.model_type,
            key=args.json_key,
            input_format=args.input_format,
        )
    except (ValueError, OSError) as error:
        sys.exit(f"{parser.prog}: error: {error}")
    print(
        f"{trained.output}: {trained.vocab_size} ids; {trained.exact} of {trained.texts} texts come back exactly, "
        f"{trained.characters / max(trained.tokens, 1):.2f} characters per token"
    )


if __name__ == "__main__":
    main()

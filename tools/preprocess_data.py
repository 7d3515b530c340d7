"""Turn a JSONL corpus into Megatron's .bin/.idx token files."""

import argparse
import os
import sys
from functools import partial

from megalite.data.preprocess.corpus import preprocess
from megalite.data.tokenizer import KINDS


def main() -> None:
    """Parse the flags, which are Megatron's, and run."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--input", required=True, help="JSONL file, or a quoted pattern of files")
    parser.add_argument("--output-prefix", required=True, help="writes PREFIX_KEY_document.bin and .idx")
    parser.add_argument("--json-keys", nargs="+", default=["text"], help="what to take from each line")
    parser.add_argument("--append-eod", action="store_true", help="end each document by the tokenizer's end token")
    parser.add_argument("--workers", type=_positive, default=os.cpu_count() or 1, help="the result is the same for any")
    parser.add_argument("--log-interval", type=_positive, default=1000, help="documents between two lines of progress")
    unneeded = "accepted and not needed: the order is always that of the input"
    parser.add_argument("--partitions", type=_positive, default=1, help=unneeded)
    parser.add_argument("--keep-sequential-samples", action="store_true", help=unneeded)
    parser.add_argument("--tokenizer-type", required=True, choices=KINDS)
    parser.add_argument("--tokenizer-model", help="sentencepiece model, Hugging Face folder or tokenizer.json")
    parser.add_argument("--vocab-file", help="vocab.json of GPT2BPETokenizer")
    parser.add_argument("--merge-file", help="merges.txt of GPT2BPETokenizer")
    parser.add_argument("--vocab-size", type=_positive, help="number of ids of NullTokenizer")
    args = parser.parse_args()
    names = ("tokenizer_type", "tokenizer_model", "vocab_file", "merge_file", "vocab_size")
    try:
        preprocess(
            inputs=args.input,
            output_prefix=args.output_prefix,
            tokenizer={name: getattr(args, name) for name in names},
            keys=args.json_keys,
            append_eod=args.append_eod,
            workers=args.workers,
            log_interval=args.log_interval,
            say=partial(print, flush=True),
        )
    except (ValueError, OSError) as error:
        sys.exit(f"{parser.prog}: error: {error}")
    except KeyboardInterrupt:
        sys.exit(f"{parser.prog}: interrupted; nothing was written")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is below 1")
    return number


if __name__ == "__main__":
    main()

"""Turn texts (JSON lines, parquet, plain text; .gz and .zst too) into Megatron's .bin/.idx token files."""

import argparse
import os
import sys
from functools import partial

from megalite.config.tokenizer_flags import add_tokenizer_flags, tokenizer_settings
from megalite.data.preprocess.corpus import preprocess
from megalite.data.preprocess.encode import Encoding
from megalite.data.preprocess.sources import FORMATS
from megalite.data.preprocess.workers import find_workers


def main() -> None:
    """Parse the flags, which are Megatron's and some more, and run."""
    parser = _parser()
    args = parser.parse_args()
    encoding = Encoding(
        tokenizer=tuple(tokenizer_settings(args).items()),
        keys=tuple(dict.fromkeys(args.json_keys)),
        append_eod=args.append_eod,
        on_error=args.on_error,
        allow_special=args.allow_special,
        split_sentences=args.split_sentences,
        keep_newlines=args.keep_newlines,
    )
    say = partial(print, flush=True)
    try:
        if args.find_optimal_num_workers:
            find_workers(
                inputs=args.input,
                input_format=args.input_format,
                encoding=encoding,
                candidates=args.workers_to_check,
                max_documents=args.max_documents,
                say=say,
            )
        else:
            preprocess(
                inputs=args.input,
                input_format=args.input_format,
                output_prefix=args.output_prefix,
                encoding=encoding,
                workers=args.workers,
                log_interval=args.log_interval,
                report=args.report,
                say=say,
            )
    except (ValueError, OSError) as error:
        sys.exit(f"{parser.prog}: error: {error}")
    except KeyboardInterrupt:
        sys.exit(f"{parser.prog}: interrupted; nothing was written")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--input", required=True, nargs="+", help="files, quoted patterns of files, - for standard input"
    )
    parser.add_argument(
        "--input-format",
        choices=("auto", *FORMATS),
        default="auto",
        help="text is one document a file, text-lines one a line; auto: .txt is text, .parquet parquet, the rest jsonl",
    )
    parser.add_argument("--output-prefix", required=True, help="writes PREFIX_KEY_document.bin and .idx")
    parser.add_argument("--json-keys", nargs="+", default=["text"], help="what to take from each line or row")
    parser.add_argument("--append-eod", action="store_true", help="end each document by the tokenizer's end token")
    parser.add_argument("--split-sentences", action="store_true", help="a sequence each sentence: PREFIX_KEY_sentence")
    parser.add_argument("--keep-newlines", action="store_true", help="line ends stay at the ends of sentences")
    parser.add_argument("--lang", choices=("english",), default="english", help="whose abbreviations end no sentence")
    parser.add_argument(
        "--allow-special", action="store_true", help="spellings of special tokens in the text are those"
    )
    parser.add_argument(
        "--on-error",
        choices=("stop", "skip", "replace"),
        default="stop",
        help="what to do with a bad record: end, leave it out, or put U+FFFD for what is not a character",
    )
    parser.add_argument("--report", metavar="FILE", help="write every bad record there, as JSON lines")
    cores = os.cpu_count() or 1
    parser.add_argument("--workers", type=_positive, default=cores, help="the result is the same for any number")
    parser.add_argument("--find-optimal-num-workers", action="store_true", help="try some numbers, and write nothing")
    candidates = sorted({1 << power for power in range(cores.bit_length())} | {cores})
    parser.add_argument("--workers-to-check", type=_positive, nargs="+", default=candidates, help="the numbers to try")
    parser.add_argument("--max-documents", type=_positive, default=100_000, help="documents that each is tried on")
    parser.add_argument("--log-interval", type=_positive, default=1000, help="documents between two lines of progress")
    unneeded = "accepted and not needed: the order is always that of the input"
    parser.add_argument("--partitions", type=_positive, default=1, help=unneeded)
    parser.add_argument("--keep-sequential-samples", action="store_true", help=unneeded)
    add_tokenizer_flags(parser, required=True)
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is below 1")
    return number


if __name__ == "__main__":
    main()

"""Rules about what the run reads and writes."""

from collections.abc import Iterator

from megalite.config.split import split_shares
from megalite.rules.job import Job, Rules


def _data(job: Job) -> Iterator[str]:
    data = job.config.data
    if data.mock_data == bool(data.data_path):
        yield ("--data-path and --mock-data exclude each other. " if data.mock_data else "There are no data. ") + (
            "Give --data-path PREFIX, or --mock-data to train on made-up tokens."
        )


def _split(job: Job) -> Iterator[str]:
    try:
        split_shares(job.config.data.split)
    except ValueError as error:
        yield str(error)


def _data_files(job: Job) -> Iterator[str]:
    for prefix in job.config.data.data_path:
        missing = [prefix + ending for ending in (".bin", ".idx") if not job.exists(prefix + ending)]
        if missing and not _is_number(prefix):
            hint = " Leave the ending out." if prefix.endswith((".bin", ".idx")) else ""
            yield f"--data-path {prefix}: there is no {' and no '.join(missing)}.{hint}"


def _tokenizer(job: Job) -> Iterator[str]:
    tokenizer, kind = job.config.tokenizer, job.config.tokenizer.tokenizer_type
    needs = {
        "GPT2BPETokenizer": ("vocab_file", "merge_file"),
        "ByteLevelTokenizer": (),
        "NullTokenizer": ("vocab_size",),
    }.get(kind, ("tokenizer_model",))
    values = {"--" + name.replace("_", "-"): getattr(tokenizer, name) for name in needs}
    missing = [flag for flag, value in values.items() if value in (None, "")]
    if missing:
        yield f"--tokenizer-type {kind} needs {' and '.join(missing)}." + (
            " Without a tokenizer's files, use --tokenizer-type NullTokenizer --vocab-size 1024."
            * job.config.data.mock_data
        )
    for flag, value in values.items():
        # Hugging Face knows models by name, too.
        if isinstance(value, str) and value and kind != "HuggingFaceTokenizer" and not job.exists(value):
            yield f"{flag} {value} does not exist."


def _checkpoint(job: Job) -> Iterator[str]:
    kept = job.config.checkpoint
    if kept.save and kept.save_interval is None:
        yield f"--save {kept.save} needs --save-interval. Try --save-interval {job.config.train.train_iters or 1000}."
    if not kept.load and kept.ckpt_step is not None:
        yield f"--ckpt-step {kept.ckpt_step} needs --load."
    if not kept.load and kept.exit_on_missing_checkpoint:
        yield "--exit-on-missing-checkpoint needs --load."


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


_TOKENIZER = "--tokenizer-type --tokenizer-model --vocab-file --merge-file --vocab-size"

FILES_RULES: Rules = (
    ("--data-path --mock-data", _data),
    ("--split", _split),
    ("--data-path", _data_files),
    (_TOKENIZER, _tokenizer),
    ("--save --save-interval --load --ckpt-step --exit-on-missing-checkpoint", _checkpoint),
)
"""Each rule with the flags that it reads."""

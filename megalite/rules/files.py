"""Rules about what the run reads and writes."""

from collections.abc import Iterator

from megalite.config.data_files import data_files, sources
from megalite.config.split import DEFAULT_SPLIT, split_shares
from megalite.rules.job import Job, Rules


def _data(job: Job) -> Iterator[str]:
    given = sources(job.config.data)
    if not given:
        yield "There are no data. Give --data-path PREFIX, or --mock-data to train on made-up tokens."
    elif len(given) > 1:
        yield f"{', '.join(given[:-1])} and {given[-1]} exclude each other. Give one of them."


def _split(job: Job) -> Iterator[str]:
    split, by_part = job.config.data.split, {"--train-data-path", "--per-split-data-args-path"}
    for flag in sources(job.config.data):
        if split is not None and flag in by_part:
            yield f"--split {split} does not go with {flag}, whose parts have files of their own. Leave --split out."
            return
    try:
        split_shares(DEFAULT_SPLIT if split is None else split)
    except ValueError as error:
        yield str(error)


def _data_files(job: Job) -> Iterator[str]:
    data = job.config.data
    if len(sources(data)) != 1 or data.mock_data:
        return
    try:
        files = data_files(data, job.read)
    except ValueError as error:
        yield str(error)
        return
    if files.common is None and "train" not in files.parts:
        where = f" in {data.per_split_data_args_path}" if data.per_split_data_args_path else ""
        yield f"There is nothing to train on{where}: give {'its key train' if where else '--train-data-path'} a prefix."
    for blend in files.blends:
        try:
            prefixes = blend.prefixes()
        except ValueError as error:
            yield str(error)
            continue
        for prefix in prefixes:
            if "://" in prefix:  # What is behind a URL is looked at when it is read.
                continue
            missing = [prefix + ending for ending in (".bin", ".idx") if not job.exists(prefix + ending)]
            if missing:
                hint = " Leave the ending out." if prefix.endswith((".bin", ".idx")) else ""
                yield f"{blend.source} {prefix}: there is no {' and no '.join(missing)}.{hint}"


def _validation_sets(job: Job) -> Iterator[str]:
    data = job.config.data
    if data.multiple_validation_sets and data.mock_data:
        yield "--multiple-validation-sets does not go with --mock-data, which is one corpus. Leave it out."


def _fill_in_the_middle(job: Job) -> Iterator[str]:
    data = job.config.data
    if data.fim_split_sample is not None and data.fim_fragment_rate is None:
        yield f"--fim-split-sample {data.fim_split_sample} needs --fim-fragment-rate. Try --fim-fragment-rate 0.5."
    if data.fim_split_sample is None and data.fim_fragment_rate is not None:
        yield f"--fim-fragment-rate {data.fim_fragment_rate} needs --fim-split-sample, which cuts into fragments."


def _tokenizer(job: Job) -> Iterator[str]:
    tokenizer, kind = job.config.tokenizer, job.config.tokenizer.tokenizer_type
    needs = {
        "GPT2BPETokenizer": ("vocab_file", "merge_file"),
        "ByteLevelTokenizer": (),
        "NullTokenizer": ("vocab_size",),
        "TikTokenizer": ("tokenizer_model", "tiktoken_pattern"),
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
        names_file = flag != "--tiktoken-pattern" and kind != "HuggingFaceTokenizer"
        if isinstance(value, str) and value and names_file and not job.exists(value):
            yield f"{flag} {value} does not exist."


def _saving(job: Job) -> Iterator[str]:
    kept, offload = job.config.checkpoint, job.config.offload
    interval, retained = kept.save_interval, kept.save_retain_interval
    if interval and retained and retained % interval:
        near = [multiple * interval for multiple in (retained // interval, retained // interval + 1) if multiple]
        yield (
            f"--save-retain-interval {retained} is not a multiple of --save-interval {interval}: what is saved would "
            f"rarely be retained. Try {' or '.join(map(str, near))}."
        )
    if kept.async_save and offload.optimizer_cpu_offload and offload.optimizer_offload_device == "disk":
        yield (
            "--async-save would copy into memory what --optimizer-offload-device disk keeps out of it. Leave out "
            "--async-save."
        )


def _checkpoint(job: Job) -> Iterator[str]:
    kept = job.config.checkpoint
    if kept.save and kept.save_interval is None:
        yield f"--save {kept.save} needs --save-interval. Try --save-interval {job.config.train.train_iters or 1000}."
    if not kept.load and kept.ckpt_step is not None:
        yield f"--ckpt-step {kept.ckpt_step} needs --load."
    if not kept.load and kept.exit_on_missing_checkpoint:
        yield "--exit-on-missing-checkpoint needs --load."
    if kept.use_checkpoint_args and not (kept.load or kept.pretrained_checkpoint):
        yield "--use-checkpoint-args needs --load or --pretrained-checkpoint."
    if kept.allow_other_data and not kept.load:
        yield "--allow-other-data needs --load."


_DATA = "--data-path --data-args-path --train-data-path --valid-data-path --test-data-path --per-split-data-args-path"
_TOKENIZER = "--tokenizer-type --tokenizer-model --vocab-file --merge-file --vocab-size --tiktoken-pattern"

FILES_RULES: Rules = (
    (f"{_DATA} --mock-data", _data),
    ("--split", _split),
    (_DATA, _data_files),
    ("--multiple-validation-sets --mock-data", _validation_sets),
    ("--fim-split-sample --fim-fragment-rate", _fill_in_the_middle),
    (_TOKENIZER, _tokenizer),
    (
        "--save-interval --save-retain-interval --async-save --optimizer-cpu-offload --optimizer-offload-device",
        _saving,
    ),
    (
        "--save --save-interval --load --ckpt-step --exit-on-missing-checkpoint --use-checkpoint-args "
        "--pretrained-checkpoint --allow-other-data",
        _checkpoint,
    ),
)
"""Each rule with the flags that it reads."""

"""The data that the settings name."""

from dataclasses import replace
from pathlib import Path

from megalite.config.data_files import data_files
from megalite.config.derive import Derived
from megalite.config.schema import Config, Data
from megalite.config.split import DEFAULT_SPLIT
from megalite.data.batch import DocumentEnds, ReadAhead
from megalite.data.blend import BlendedDataset, Request
from megalite.data.cyclic import Cyclic
from megalite.data.fill_in_the_middle import FillInTheMiddle, Middle, special_id
from megalite.data.gpt_dataset import GPTDataset
from megalite.data.order import describe_order
from megalite.data.splits import Datasets, build_datasets, build_datasets_of_parts, build_mock_datasets
from megalite.data.tokenizer_base import Tokenizer
from megalite.data.usage import check_epochs


def datasets(config: Config, derived: Derived, tokenizer: Tokenizer, *, keep: bool = True) -> Datasets:
    """Training, validation and test data as long as the run needs them; its notes say what it takes of each corpus.

    Without `keep` no index is written, or looked for.
    """
    data = config.data
    found = _built(config, derived, tokenizer, keep)
    if isinstance(found.train, GPTDataset | BlendedDataset):
        found = replace(found, order={**describe_order(found.train), "dataloader_type": data.dataloader_type})
    if data.dataloader_type == "cyclic" and found.train is not None:
        rounds = derived.train_samples / len(found.train)
        usage = (replace(u, samples=round(rounds * u.samples)) if u.part == "train" else u for u in found.usage)
        found = replace(found, train=Cyclic(found.train), usage=tuple(usage))
    if data.max_epochs is not None:
        check_epochs(found.usage, data.max_epochs)
    found = replace(found, notes=(*found.notes, *map(str, found.usage)))
    pad = None
    if data.fim_data:
        middle = _middle(data, tokenizer)
        pad = middle.pad
        found = found.changed(lambda part: FillInTheMiddle(part, middle, tokenizer, seed=config.train.seed))
    if data.num_workers and found.train is not None:
        note = f"each rank reads samples ahead in {data.num_workers} thread{'s' * (data.num_workers > 1)}"
        found = replace(found, train=ReadAhead(found.train, data.num_workers), notes=(*found.notes, note))
    apart = data.dataloader_inter_document_masking
    if data.eod_mask_loss or data.reset_position_ids or data.reset_attention_mask or apart or pad is not None:
        ends = DocumentEnds(
            eod=tokenizer.eod,
            mask_loss=data.eod_mask_loss,
            reset_positions=data.reset_position_ids or apart,
            reset_attention=data.reset_attention_mask or apart,
            pad=pad,
        )
        found = replace(found, ends=ends)
    return found


def _middle(data: Data, tokenizer: Tokenizer) -> Middle:
    names = ("prefix", "middle", "suffix", "pad")
    ids = {name: special_id(tokenizer, getattr(data, f"fim_{name}_token"), f"--fim-{name}-token") for name in names}
    split = data.fim_split_sample
    if ids["pad"] == tokenizer.eod:
        raise ValueError(
            f"--fim-pad-token {data.fim_pad_token} is the end of document, too, which would not count for the loss "
            f"then. Give another token."
        )
    return Middle(
        rate=data.fim_rate,
        spm_rate=data.fim_spm_rate,
        separator=None if split is None else special_id(tokenizer, split, "--fim-split-sample"),
        fragment_rate=data.fim_fragment_rate or 0.0,
        untouched=data.fim_no_prefix,
        **ids,
    )


def _built(config: Config, derived: Derived, tokenizer: Tokenizer, keep: bool) -> Datasets:
    data, (train, valid, test) = config.data, derived.data_samples
    # A cyclic order goes round one epoch, and makes the repetitions itself.
    sizes = (None if data.dataloader_type == "cyclic" else train, valid, test)
    request = Request(
        seq_length=config.model.seq_length,
        seed=config.train.seed,
        vocab_size=tokenizer.vocab_size,
        surplus=data.mid_level_dataset_surplus,
        cache=Path(data.data_cache_path) if data.data_cache_path else None,
        keep=keep,
    )
    if data.mock_data:
        return build_mock_datasets(sizes=sizes, request=request, vocab_size=tokenizer.vocab_size, eod=tokenizer.eod)
    files = data_files(data, lambda path: Path(path).read_text("utf-8"))
    apart = data.multiple_validation_sets
    if files.common is None:
        paths = {part: blend.entries for part, blend in files.parts.items()}
        return build_datasets_of_parts(paths, sizes=sizes, request=request, validate_apart=apart)
    split = DEFAULT_SPLIT if data.split is None else data.split
    return build_datasets(files.common.entries, split=split, sizes=sizes, request=request, validate_apart=apart)

"""Settings that exclude each other: one on the command line overrules its alternatives in a configuration file."""

from collections.abc import Mapping
from itertools import permutations
from typing import Any

COMMAND_LINE = "the command line"
"""Where a setting came from if not from a file."""

_PARTS = "train_data_path valid_data_path test_data_path"

ALTERNATIVES: tuple[tuple[str, ...], ...] = (
    ("data_path", "data_args_path", _PARTS, "per_split_data_args_path", "mock_data"),
    ("train_iters", "train_samples"),
    ("rampup_batch_size", "step_batch_size_schedule"),
    ("global_batch_size", "step_batch_size_schedule"),
    ("lr_decay_iters", "lr_decay_samples"),
    ("lr_warmup_iters", "lr_warmup_samples", "lr_warmup_fraction"),
    ("lr_wsd_decay_iters", "lr_wsd_decay_samples"),
    ("swiglu", "quick_geglu", "squared_relu"),
    ("ddp_bucket_size", "ddp_num_buckets"),
    (
        "num_layers_per_virtual_pipeline_stage",
        "num_virtual_stages_per_pipeline_rank",
        "pipeline_model_parallel_layout",
    ),
    (
        "pipeline_model_parallel_layout",
        "decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers",
        "account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split",
    ),
)
"""In each row, fields of one string go together, and those of two exclude each other."""


OVERRULES = ((f"{_PARTS} per_split_data_args_path", "split"),)
"""Fields, and what does not go with them; not the other way round."""


def overruled(values: Mapping[str, Any], origins: Mapping[str, str]) -> dict[str, str]:
    """Each field of a file that one of the command line overrules: which one."""
    pairs = [pair for row in ALTERNATIVES for pair in permutations(row, 2)] + list(OVERRULES)
    found: dict[str, str] = {}
    for wanted, others in pairs:
        asked = [name for name in wanted.split() if values.get(name) and origins[name] == COMMAND_LINE]
        given = [name for name in others.split() if values.get(name) and origins[name] != COMMAND_LINE]
        found |= {name: asked[0] for name in given if asked}
    return found

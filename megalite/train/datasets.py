"""The data that the settings name."""

from pathlib import Path

from megalite.config.derive import Derived
from megalite.config.schema import Config
from megalite.data.splits import Datasets, build_datasets, build_mock_datasets
from megalite.data.tokenizer_base import Tokenizer


def datasets(config: Config, derived: Derived, tokenizer: Tokenizer) -> Datasets:
    """Training, validation and test data as long as the run needs them."""
    sizes = (derived.train_samples, derived.eval_samples, derived.eval_samples)
    seq_length, seed = config.model.seq_length, config.train.seed
    cache = Path(config.data.data_cache_path) if config.data.data_cache_path else None
    if config.data.mock_data:
        return build_mock_datasets(
            sizes=sizes,
            seq_length=seq_length,
            seed=seed,
            vocab_size=tokenizer.vocab_size,
            eod=tokenizer.eod,
            cache=cache,
        )
    return build_datasets(
        config.data.data_path,
        split=config.data.split,
        sizes=sizes,
        seq_length=seq_length,
        seed=seed,
        cache=cache,
        vocab_size=tokenizer.vocab_size,
    )

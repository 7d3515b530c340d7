"""Every setting of a training run, its type, default and meaning. The only source: flags, files and help come from it.

The docstring under a field is its help. A flag is the field's name with dashes, in Megatron's spelling and with
Megatron's default. A required field has no default; that it is given is for `validate.check` to say.
"""

from dataclasses import dataclass, field
from typing import Any, Literal


def option(
    default: Any = None,
    *,
    required: bool = False,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    flag: str | None = None,
) -> Any:
    """A field with bounds on its value, or with a `flag` that is not its name: for a True default, its negation."""
    bounds = {"at least": at_least, "above": above, "at most": at_most, "below": below}
    stated = {words: bound for words, bound in bounds.items() if bound is not None}
    return field(default=default, metadata={"required": required, "bounds": stated, "flag": flag})


@dataclass(frozen=True, kw_only=True)
class Model:
    """The network."""

    num_layers: int = option(required=True, at_least=1)
    """Number of transformer layers."""
    hidden_size: int = option(required=True, at_least=1)
    """Width of the residual stream."""
    ffn_hidden_size: int | None = option(at_least=1)
    """Width inside the MLP. Unset: 4 x hidden size; with --swiglu 8/3 x hidden size, rounded down to 64s."""
    num_attention_heads: int = option(required=True, at_least=1)
    """Number of query heads."""
    group_query_attention: bool = False
    """Let several query heads share one key and value head; without it --num-query-groups is not read."""
    num_query_groups: int = option(1, at_least=1)
    """Number of key and value heads under --group-query-attention."""
    kv_channels: int | None = option(at_least=1)
    """Width of one head. Unset: hidden size / heads."""
    seq_length: int = option(required=True, at_least=1)
    """Tokens in one training sequence."""
    max_position_embeddings: int | None = option(at_least=1)
    """Longest sequence that the model can read. Unset: the sequence length (Megatron demands it)."""
    position_embedding_type: Literal["learned_absolute", "rope"] = "learned_absolute"
    """How positions enter: a learned table added to the embedding, or rotary embeddings in attention."""
    rotary_base: int = option(10000, at_least=1)
    """Base of the rotary frequencies."""
    normalization: Literal["LayerNorm", "RMSNorm"] = "LayerNorm"
    """The normalisation before attention, before the MLP and at the end."""
    norm_epsilon: float = option(1e-5, above=0)
    """Added to the variance in a normalisation."""
    swiglu: bool = False
    """Use a gated SiLU in the MLP instead of GELU."""
    add_bias_linear: bool = option(True, flag="--disable-bias-linear")
    """Give the linear layers biases."""
    add_qkv_bias: bool = False
    """Give the query, key and value projection a bias even where the other linear layers have none."""
    untie_embeddings_and_output_weights: bool = False
    """Give the output layer its own weight instead of the embedding's."""
    hidden_dropout: float = option(0.1, at_least=0, below=1)
    """Probability of dropping an element after the embedding, attention and MLP."""
    attention_dropout: float = option(0.1, at_least=0, below=1)
    """Probability of dropping an attention weight."""
    init_method_std: float = option(0.02, at_least=0)
    """Standard deviation of the initial weights; attention-out and fc2 divide it by sqrt(2 x layers)."""
    embedding_init_method_std: float | None = option(at_least=0)
    """Standard deviation of the initial embeddings. Unset: --init-method-std."""
    make_vocab_size_divisible_by: int = option(128, at_least=1)
    """The vocabulary is padded to a multiple of this times the tensor parallel size."""


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """How the job is spread over processes and devices."""

    tensor_model_parallel_size: int = option(1, at_least=1)
    """Ranks that share each layer's matrices."""
    sequence_parallel: bool = False
    """Split activations over the sequence outside the tensor parallel regions."""
    ddp_bucket_size: int | None = option(at_least=1)
    """Elements in one gradient bucket. Unset: everything at once; under --overlap-grad-reduce 40 million,
    or 1 million x data parallel size if that is more."""
    overlap_grad_reduce: bool = False
    """Reduce each gradient bucket over data parallel ranks as soon as it is complete, during the backward pass."""
    distributed_backend: Literal["auto", "gloo", "nccl"] = "auto"
    """The communication library; auto is nccl on a GPU, gloo without one."""
    distributed_timeout_minutes: int = option(10, at_least=1)
    """Minutes that a rank waits for the others in one collective before it gives up."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto is a GPU where there is one."""


@dataclass(frozen=True, kw_only=True)
class Train:
    """Batches, length and precision of the run."""

    micro_batch_size: int = option(required=True, at_least=1)
    """Sequences that one rank computes at once."""
    global_batch_size: int | None = option(at_least=1)
    """Sequences in one optimizer step over all ranks. Unset: micro-batch size x data parallel size."""
    train_iters: int | None = option(at_least=1)
    """Length of the run in optimizer steps; give this or --train-samples."""
    train_samples: int | None = option(at_least=1)
    """Length of the run in sequences; give this or --train-iters."""
    seed: int = option(1234, at_least=0)
    """Seed of weights, sample order and dropout."""
    eval_interval: int | None = option(at_least=1)
    """Evaluate every so many iterations. Unset: only after the last."""
    eval_iters: int = option(100, at_least=0)
    """Global batches in one evaluation; 0 turns evaluation off."""
    bf16: bool = False
    """Compute in bfloat16, with main parameters and main gradients in fp32."""
    exit_interval: int | None = option(at_least=1)
    """Stop after an iteration that this divides, saving first if --save is given."""


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """The update and its schedules."""

    optimizer: Literal["adam", "sgd"] = "adam"
    """The update rule: Adam with decoupled weight decay, or SGD with momentum."""
    lr: float = option(required=True, at_least=0)
    """Highest learning rate."""
    min_lr: float = option(0.0, at_least=0)
    """Learning rate at the end of the decay."""
    lr_decay_style: Literal["constant", "linear", "cosine", "inverse-square-root", "WSD"] = "linear"
    """Shape of the learning rate after the warm-up."""
    lr_decay_iters: int | None = option(at_least=1)
    """Iterations until the lowest learning rate. Unset: --train-iters."""
    lr_decay_samples: int | None = option(at_least=1)
    """Sequences until the lowest learning rate. Unset: --train-samples."""
    lr_warmup_fraction: float | None = option(at_least=0, below=1)
    """Share of the decay that is warm-up; instead of iterations or samples."""
    lr_warmup_iters: int = option(0, at_least=0)
    """Iterations of linear warm-up."""
    lr_warmup_samples: int = option(0, at_least=0)
    """Sequences of linear warm-up."""
    lr_warmup_init: float = option(0.0, at_least=0)
    """Learning rate at which the warm-up starts."""
    lr_wsd_decay_style: Literal["exponential", "linear", "cosine", "minus_sqrt"] = "exponential"
    """Shape of the final decay of a WSD schedule."""
    lr_wsd_decay_iters: int | None = option(at_least=1)
    """Iterations of the final decay of a WSD schedule."""
    lr_wsd_decay_samples: int | None = option(at_least=1)
    """Sequences of the final decay of a WSD schedule."""
    weight_decay: float = option(0.01, at_least=0)
    """Weight decay; biases and other one-dimensional parameters have none."""
    weight_decay_incr_style: Literal["constant", "linear", "cosine"] = "constant"
    """How the weight decay goes from --start-weight-decay to --end-weight-decay over the run."""
    start_weight_decay: float | None = option(at_least=0)
    """Weight decay at the start, where it is not constant."""
    end_weight_decay: float | None = option(at_least=0)
    """Weight decay at the end, where it is not constant."""
    adam_beta1: float = option(0.9, at_least=0, below=1)
    """Decay of Adam's first moment."""
    adam_beta2: float = option(0.999, at_least=0, below=1)
    """Decay of Adam's second moment."""
    adam_eps: float = option(1e-8, above=0)
    """Added to the root of Adam's second moment."""
    sgd_momentum: float = option(0.9, at_least=0, below=1)
    """Momentum of SGD."""
    clip_grad: float = option(1.0, at_least=0)
    """Largest global L2 norm of the gradient; 0 turns clipping off."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """Where the tokens come from."""

    data_path: tuple[str, ...] = ()
    """Prefixes of .bin/.idx files: `A B`, or with weights `0.3 A 0.7 B`."""
    split: str = "969, 30, 1"
    """Shares of documents for training, validation and test."""
    mock_data: bool = False
    """Train on made-up tokens instead of files."""
    data_cache_path: str | None = None
    """Directory for index files. Unset: beside the data."""


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """How text becomes tokens."""

    tokenizer_type: Literal[
        "GPT2BPETokenizer",
        "SentencePieceTokenizer",
        "GPTSentencePieceTokenizer",
        "Llama2Tokenizer",
        "HuggingFaceTokenizer",
        "ByteLevelTokenizer",
        "NullTokenizer",
    ] = "GPT2BPETokenizer"
    """The kind of tokenizer."""
    tokenizer_model: str | None = None
    """A SentencePiece model file, or a Hugging Face folder."""
    vocab_file: str | None = None
    """vocab.json of GPT2BPETokenizer."""
    merge_file: str | None = None
    """merges.txt of GPT2BPETokenizer."""
    vocab_size: int | None = option(at_least=1)
    """Number of tokens of NullTokenizer."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What is kept and what is continued."""

    save: str | None = None
    """Directory to save checkpoints in."""
    save_interval: int | None = option(at_least=1)
    """Iterations between checkpoints."""
    load: str | None = None
    """Directory to continue from; where it holds no checkpoint, training starts anew."""
    finetune: bool = False
    """Take only the weights from --load and start at iteration 0."""
    no_load_optim: bool = False
    """Do not load the state of the optimizer."""
    ckpt_step: int | None = option(at_least=1)
    """Load this iteration instead of the latest."""
    exit_on_missing_checkpoint: bool = False
    """Stop where --load holds no checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Log:
    """What is told while it runs."""

    log_interval: int = option(100, at_least=1)
    """Iterations between progress lines."""
    log_jsonl: str | None = None
    """File to append one JSON object per logged iteration to."""
    tensorboard_dir: str | None = None
    """Directory for TensorBoard, if it is installed."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole run. Each part is a section of a configuration file."""

    model: Model = field(default_factory=Model)
    parallel: Parallel = field(default_factory=Parallel)
    train: Train = field(default_factory=Train)
    optimizer: Optimizer = field(default_factory=Optimizer)
    data: Data = field(default_factory=Data)
    tokenizer: Tokenizer = field(default_factory=Tokenizer)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    log: Log = field(default_factory=Log)

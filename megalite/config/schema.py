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
    position_embedding_type: Literal["learned_absolute", "rope", "none"] = "learned_absolute"
    """How positions enter: a learned table added to the embedding, rotary embeddings in attention, or not at all."""
    rotary_base: int = option(10000, at_least=1)
    """Base of the rotary frequencies."""
    rotary_percent: float = option(1.0, above=0, at_most=1)
    """Share of each head's channels that rotary embeddings turn; the rest has no position."""
    rotary_interleaved: bool = False
    """Turn channel 2i with channel 2i + 1, instead of channel i with the one half a head away."""
    rotary_seq_len_interpolation_factor: int | None = option(at_least=1)
    """Divide rotary positions by this, to read sequences that many times longer."""
    no_rope_freq: str | None = None
    """Layers without rotary positions: N for every N-th, or a list of 1 (without) and 0."""
    use_rope_scaling: bool = False
    """Scale the low rotary frequencies as Llama 3.1 does, which was trained on 8192 positions before."""
    rope_scaling_factor: float = option(8.0, at_least=1)
    """By how much --use-rope-scaling slows the lowest frequencies."""
    normalization: Literal["LayerNorm", "RMSNorm"] = "LayerNorm"
    """The normalisation before attention, before the MLP and at the end."""
    norm_epsilon: float = option(1e-5, above=0)
    """Added to the variance in a normalisation."""
    apply_layernorm_1p: bool = False
    """Keep the weights of normalisations as their distance from 1, so that they start at 0 as Megatron's do then."""
    apply_residual_connection_post_layernorm: bool = False
    """Take the residual from behind the normalisation instead of before it."""
    fp32_residual_connection: bool = False
    """Keep the residual stream in fp32 under --bf16."""
    qk_layernorm: bool = False
    """Normalise each query and key over its head, before positions are added."""
    swiglu: bool = False
    """Use a gated SiLU in the MLP instead of GELU."""
    quick_geglu: bool = False
    """Use a gated x sigmoid(1.702 x) in the MLP instead of GELU."""
    squared_relu: bool = False
    """Use the square of ReLU in the MLP instead of GELU."""
    gelu: Literal["tanh", "exact"] = "tanh"
    """Which GELU: its tanh approximation, which Megatron's default computes, or the exact one."""
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
    apply_query_key_layer_scaling: bool = False
    """Divide attention scores by the layer's number, and multiply back in fp32: the same function, less overflow."""
    window_size: str | None = None
    """`left,right`: attend to so many earlier tokens, -1 for all of them, and to none to the right: 0."""
    window_attn_skip_freq: str | None = None
    """Which layers attend to everything despite --window-size: N for every N-th, or a list of 1 (windowed) and 0."""
    softmax_type: Literal["vanilla", "off-by-one", "learnable"] = "vanilla"
    """Let attention attend to nothing: one more score in the softmax, 0 or learned for each head."""
    init_method_xavier_uniform: bool = False
    """Draw the initial weights uniformly within sqrt(6 / (inputs + outputs)) instead of normally."""
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
    pipeline_model_parallel_size: int = option(1, at_least=1)
    """Ranks that share the layers, each with stages of its own."""
    pipeline_schedule: Literal["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"] | None = None
    """The order of forwards and backwards. Unset: 1f1b, or interleaved where ranks have several stages."""
    num_virtual_stages_per_pipeline_rank: int | None = option(at_least=1)
    """Stages on each pipeline rank, which it runs interleaved. Unset: 1, or 2 for zb-v."""
    num_layers_per_virtual_pipeline_stage: int | None = option(at_least=1)
    """The same, said by the number of layers in a stage."""
    microbatch_group_size_per_virtual_pipeline_stage: int | None = option(at_least=1)
    """Micro-batches that a rank runs through one stage before it turns to its next. Unset: the pipeline size."""
    pipeline_model_parallel_layout: str | None = None
    """What each stage has: E embedding, t a layer, L loss, | next stage: `E|(t|)*3,tL`."""
    decoder_first_pipeline_num_layers: int | None = option(at_least=1)
    """Layers of the first pipeline rank (under zb-v, of the first stage); the other ranks share the rest."""
    decoder_last_pipeline_num_layers: int | None = option(at_least=1)
    """Layers of the last pipeline rank (under zb-v, of the last stage); the other ranks share the rest."""
    account_for_embedding_in_pipeline_split: bool = False
    """Let the embedding count as a layer where layers are dealt out to stages."""
    account_for_loss_in_pipeline_split: bool = False
    """Let the loss count as a layer where layers are dealt out to stages."""
    use_tp_pp_dp_mapping: bool = False
    """Number ranks in the order tp-cp-ep-pp-dp instead of tp-cp-ep-dp-pp: stages are neighbours, replicas are not."""
    ddp_bucket_size: int | None = option(at_least=1)
    """Elements in one gradient bucket. Unset: everything at once; under --overlap-grad-reduce 40 million,
    or 1 million x data parallel size if that is more."""
    overlap_grad_reduce: bool = False
    """Reduce each gradient bucket over data parallel ranks as soon as it is complete, during the backward pass."""
    use_distributed_optimizer: bool = False
    """Shard main parameters and optimizer states over data parallel ranks: gradients are reduce-scattered, parameters
    gathered (ZeRO, stage 1)."""
    overlap_param_gather: bool = False
    """Gather the parameters of each bucket under the next forward pass, by the time that they are needed."""
    distributed_backend: Literal["auto", "gloo", "nccl"] = "auto"
    """The communication library; auto is nccl on a GPU, gloo without one."""
    distributed_timeout_minutes: int = option(10, at_least=1)
    """Minutes that a rank waits for the others in one collective before it gives up."""
    cpu_threads: int | None = option(at_least=1)
    """Threads of each rank on a CPU. Unset: OMP_NUM_THREADS, or under torchrun the cores divided among the ranks."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto is a GPU where there is one."""


@dataclass(frozen=True, kw_only=True)
class Train:
    """Batches, length and precision of the run."""

    micro_batch_size: int = option(required=True, at_least=1)
    """Sequences that one rank computes at once."""
    global_batch_size: int | None = option(at_least=1)
    """Sequences in one optimizer step over all ranks. Unset: micro-batch size x data parallel size."""
    rampup_batch_size: tuple[int, ...] = ()
    """Start with smaller global batches: START INCREMENT SAMPLES goes from START to --global-batch-size in increments
    spread evenly over SAMPLES."""
    step_batch_size_schedule: tuple[str, ...] = ()
    """Global batch sizes, each with the number of consumed tokens from which on it holds: `0:16 2.4B:320`."""
    decrease_batch_size_if_needed: bool = False
    """Lower a global batch size that is no multiple of micro-batch size x data parallel size to the next that is."""
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
    eval_global_batch_size: int | None = option(at_least=1)
    """Sequences in one batch of evaluation. Unset: the global batch size that training comes to."""
    full_validation: bool = False
    """Evaluate on all of the validation data, in as many whole batches as they make, instead of --eval-iters."""
    skip_train: bool = False
    """Only evaluate what --load names."""
    bf16: bool = False
    """Compute in bfloat16, with main parameters and main gradients in fp32."""
    exit_interval: int | None = option(at_least=1)
    """Stop after an iteration that this divides, saving first if --save is given."""
    exit_duration_in_mins: float | None = option(at_least=0)
    """Stop after the iteration in which so many minutes have passed, saving first if --save is given."""
    exit_signal_handler: bool = False
    """Stop after the iteration in which a rank receives --exit-signal, saving first if --save is given; exit with 0."""
    exit_signal: Literal["SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2"] = "SIGTERM"
    """The signal of --exit-signal-handler."""
    iterations_to_skip: tuple[int, ...] = ()
    """Iterations, counted from 1, whose data are passed over: no update is made."""
    check_weight_hash_across_dp_replicas_interval: int | None = option(at_least=1)
    """Compare the weights of data parallel replicas bit by bit every so many iterations, and stop if they differ."""
    deterministic_mode: bool = False
    """Use deterministic algorithms only, and sum gradients in the order of ranks, whatever the buckets."""
    manual_gc: bool = False
    """Collect Python's garbage only at evaluations and every --manual-gc-interval iterations: on all ranks at once."""
    manual_gc_interval: int = option(0, at_least=0)
    """Iterations between garbage collections under --manual-gc; 0: at evaluations only."""


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
    split: str | None = None
    """Shares of documents for training, validation and test. Unset: `969, 30, 1`."""
    data_args_path: str | None = None
    """A file that holds what --data-path would."""
    train_data_path: tuple[str, ...] = ()
    """What to train on, like --data-path, instead of a share of it."""
    valid_data_path: tuple[str, ...] = ()
    """What to validate on, beside --train-data-path."""
    test_data_path: tuple[str, ...] = ()
    """What to test on, beside --train-data-path."""
    per_split_data_args_path: str | None = None
    """A JSON file with the keys train, valid and test: for each what its --train-data-path would be, or null."""
    mock_data: bool = False
    """Train on made-up tokens instead of files."""
    mid_level_dataset_surplus: float = option(0.005, at_least=0)
    """By how much more than its share each corpus of a weighted blend is asked for."""
    multiple_validation_sets: bool = False
    """Evaluate on each validation corpus by itself, and report it by the name of its file."""
    dataloader_type: Literal["single", "cyclic"] = "single"
    """The order of training samples: the one in which they were built, or a new order each time all were seen."""
    eod_mask_loss: bool = False
    """Do not count the loss of the token that follows an end of document."""
    reset_position_ids: bool = False
    """Let positions start anew after an end of document."""
    reset_attention_mask: bool = False
    """Let tokens attend to their own document only."""
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
    no_save_optim: bool = False
    """Do not save the state of the optimizer."""
    use_checkpoint_opt_param_scheduler: bool = False
    """Go on with the learning rate and weight decay schedules of the checkpoint where the flags say otherwise."""
    override_opt_param_scheduler: bool = False
    """Go on with the learning rate and weight decay schedules of the flags where the checkpoint says otherwise."""
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
    tensorboard_log_interval: int = option(1, at_least=1)
    """Iterations between points of loss, gradient norm and learning rate in TensorBoard and Weights & Biases."""
    wandb_project: str | None = None
    """Project of Weights & Biases to report to, if it is installed."""
    wandb_exp_name: str | None = None
    """Name of the run in --wandb-project."""
    wandb_save_dir: str | None = None
    """Directory for the files of --wandb-project. Unset: --save/wandb."""
    log_progress: bool = False
    """Append what the log says of starts, saves and stops to progress.txt in --save, with the time."""
    log_params_norm: bool = False
    """Log the L2 norm of the parameters."""
    log_num_zeros_in_grad: bool = False
    """Log how many elements of the gradient are zero."""
    timing_log_level: int = option(0, at_least=0, at_most=2)
    """Time nothing but whole iterations (0), the parts of an iteration (1), or their parts, too (2)."""
    timing_log_option: Literal["max", "minmax", "all"] = "minmax"
    """Times to print: the longest over all ranks, the shortest and the longest, or every rank's."""
    log_timers_to_tensorboard: bool = False
    """Write the times of --timing-log-level, the longest over all ranks, to TensorBoard and Weights & Biases, too."""
    pipeline_trace: str | None = None
    """File for the timeline of the steps of the last log interval: Chrome trace events, one row a rank."""


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

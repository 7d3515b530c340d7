"""Every setting of a training run, its type, default and meaning. The only source: flags, files and help come from it.

The docstring under a field is its help. A flag is the field's name with dashes, in Megatron's spelling and with
Megatron's default. A required field has no default; that it is given is for `validate.check` to say.
"""

from dataclasses import dataclass, field
from typing import Literal

from megalite.config.field import option
from megalite.config.memory import Memory
from megalite.config.model import Model
from megalite.config.offload import Offload
from megalite.config.parallel import Parallel


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
    fp16: bool = False
    """Compute in float16, with main parameters and main gradients in fp32, and a loss scale that adapts."""
    loss_scale: float | None = option(above=0)
    """A loss scale that stays. Unset: under --fp16 one that adapts, otherwise none."""
    initial_loss_scale: float = option(2.0**32, above=0)
    """The loss scale of --fp16 at the start."""
    min_loss_scale: float = option(1.0, above=0)
    """The least loss scale of --fp16: a gradient that overflows even so stops the run."""
    loss_scale_window: int = option(1000, at_least=1)
    """Steps in a row without overflow after which the loss scale of --fp16 doubles."""
    hysteresis: int = option(2, at_least=1)
    """Overflows until the loss scale of --fp16 is halved; full again when it doubles."""
    check_for_nan_in_loss_and_grad: bool = option(True, flag="--no-check-for-nan-in-loss-and-grad")
    """Stop at a loss or a gradient that is not finite. Off: no update is made, and the next batch follows."""
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
    kernels: Literal["auto", "reference", "require"] = "auto"
    """What computes the ops of csrc/: kernels where they are built (auto), pure torch (reference), or kernels, without
    which the run does not start (require). `python -m megalite.ops` lists them."""
    manual_gc: bool = False
    """Collect Python's garbage only at evaluations and every --manual-gc-interval iterations: on all ranks at once."""
    manual_gc_interval: int = option(0, at_least=0)
    """Iterations between garbage collections under --manual-gc; 0: at evaluations only."""

    @property
    def param_bytes(self) -> int:
        """Of a parameter, and of an element of an activation."""
        return 2 if self.bf16 or self.fp16 else 4


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """The update and its schedules."""

    optimizer: Literal["adam", "sgd", "muon"] = "adam"
    """The update rule: Adam with decoupled weight decay, SGD with momentum, or Muon for the matrices of layers and Adam
    for all else."""
    lr: float = option(required=True, at_least=0)
    """Highest learning rate."""
    min_lr: float = option(0.0, at_least=0)
    """Learning rate at the end of the decay."""
    decoupled_lr: float | None = option(at_least=0)
    """Highest learning rate of the word embedding and the output layer. Unset: --lr."""
    decoupled_min_lr: float | None = option(at_least=0)
    """Their learning rate at the end of the decay, beside --decoupled-lr. Unset: --min-lr."""
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
    adam_kernel: Literal["torch", "apex"] = "torch"
    """What computes Adam's update: torch's fused kernel, or on a GPU that of apex's FusedAdam, if apex is installed."""
    sgd_momentum: float = option(0.9, at_least=0, below=1)
    """Momentum of SGD."""
    muon_momentum: float = option(0.9, at_least=0, below=1)
    """Momentum of Muon."""
    muon_use_nesterov: bool = False
    """Give Muon Nesterov's momentum."""
    muon_num_ns_steps: int = option(5, at_least=1)
    """Steps of the Newton-Schulz iteration that makes Muon's momentum orthogonal."""
    muon_scale_mode: Literal["spectral", "unit_rms_norm", "shape_scaling"] = "spectral"
    """What Muon's update of an m x n matrix is multiplied by: the root of max(m, n), of m/n, or of max(1, m/n)."""
    muon_extra_scale_factor: float = option(1.0, above=0)
    """A further factor of Muon's updates."""
    muon_split_qkv: bool = option(True, flag="--muon-no-split-qkv")
    """Take queries, keys and values as three matrices under Muon."""
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
    dataloader_inter_document_masking: bool = False
    """Keep documents apart: --reset-position-ids and --reset-attention-mask in one."""
    data_cache_path: str | None = None
    """Directory for index files. Unset: beside the data."""
    max_epochs: float | None = option(above=0)
    """Refuse to go through any corpus more often than this in training."""
    num_workers: int = option(2, at_least=0)
    """Threads of each rank that read the samples of the next iteration meanwhile."""
    fim_data: bool = False
    """Fill in the middle: cut documents in three, and train on prefix, suffix, middle. Samples keep their length."""
    fim_rate: float = option(0.5, at_least=0, at_most=1)
    """The share of documents that --fim-data cuts."""
    fim_spm_rate: float = option(0.5, at_least=0, at_most=1)
    """The share of cut documents that come as suffix, prefix, middle."""
    fim_split_sample: str | None = None
    """A token that cuts documents into fragments, such as files, of which each is cut by itself."""
    fim_fragment_rate: float | None = option(at_least=0, at_most=1)
    """The share of fragments that are cut, in the --fim-rate of documents that have any."""
    fim_no_prefix: str | None = None
    """Documents and fragments that begin with this are not cut."""
    fim_prefix_token: str = "<fim_prefix>"
    """The token before a prefix."""
    fim_middle_token: str = "<fim_middle>"
    """The token before a middle."""
    fim_suffix_token: str = "<fim_suffix>"
    """The token before a suffix."""
    fim_pad_token: str = "<fim_pad>"
    """The token that fills up a sample which became shorter; it does not count for the loss."""


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """How text becomes tokens."""

    tokenizer_type: Literal[
        "GPT2BPETokenizer",
        "SentencePieceTokenizer",
        "GPTSentencePieceTokenizer",
        "Llama2Tokenizer",
        "HuggingFaceTokenizer",
        "TikTokenizer",
        "ByteLevelTokenizer",
        "NullTokenizer",
    ] = "GPT2BPETokenizer"
    """The kind of tokenizer."""
    tokenizer_model: str | None = None
    """A SentencePiece model file, a Hugging Face folder or tokenizer.json, or the JSON list of TikTokenizer."""
    vocab_file: str | None = None
    """vocab.json of GPT2BPETokenizer."""
    merge_file: str | None = None
    """merges.txt of GPT2BPETokenizer."""
    vocab_size: int | None = option(at_least=1)
    """Number of tokens of NullTokenizer, or how many TikTokenizer takes. Unset: at most 131072."""
    tiktoken_pattern: Literal["v1", "v2"] | None = None
    """How TikTokenizer cuts text into words."""
    tiktoken_num_special_tokens: int = option(1000, at_least=1)
    """How many ids of TikTokenizer, the first ones, are special."""
    tiktoken_special_tokens: tuple[str, ...] = ()
    """Names of the first of them. Unset: `<unk> <s> </s> <mask> <pad> <cls> <sep>`."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What is kept and what is continued."""

    save: str | None = None
    """Directory to save checkpoints in."""
    save_interval: int | None = option(at_least=1)
    """Iterations between checkpoints."""
    async_save: bool = False
    """Write checkpoints beside training, which waits only while the state is copied to memory of the host."""
    save_retain_last: int | None = option(at_least=1)
    """Keep only so many of the newest checkpoints. Unset: all, or 1 with --save-retain-interval."""
    save_retain_interval: int | None = option(at_least=1)
    """Keep the checkpoints of the multiples of so many iterations, besides those of --save-retain-last."""
    load: str | None = None
    """Directory to continue from, or a folder of Hugging Face to start from; where it is that of --save and holds no
    checkpoint yet, training starts anew."""
    pretrained_checkpoint: str | None = None
    """Checkpoints, or a folder of Hugging Face, to take the weights from and start at iteration 0 as long as --load is
    unset or holds no checkpoint."""
    use_checkpoint_args: bool = False
    """Take the settings of the model from --load or --pretrained-checkpoint wherever they are not given."""
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
    """Stop where --load holds no checkpoint, even if it is that of --save."""
    verify_integrity: bool = False
    """Before loading, check the checksums of all files."""
    allow_other_data: bool = False
    """Go on from --load with other data than the checkpoint's, or in another order: some come again, or never."""


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
    memory_report: bool = False
    """Print after the first step what it has kept in memory, by kind, beside what was computed."""
    pipeline_trace: str | None = None
    """File for the timeline of the steps of the last log interval: Chrome trace events, one row a rank."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole run. Each part is a section of a configuration file."""

    model: Model = field(default_factory=Model)
    parallel: Parallel = field(default_factory=Parallel)
    train: Train = field(default_factory=Train)
    memory: Memory = field(default_factory=Memory)
    optimizer: Optimizer = field(default_factory=Optimizer)
    offload: Offload = field(default_factory=Offload)
    data: Data = field(default_factory=Data)
    tokenizer: Tokenizer = field(default_factory=Tokenizer)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    log: Log = field(default_factory=Log)

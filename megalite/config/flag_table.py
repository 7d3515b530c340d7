"""Megatron's flags that are not ours, as data: those that change nothing here, and those that are refused.

In a row of flags, `--flag=a|b` names values with which the flag asks for nothing, and is taken without a word; a
final `*` stands for any ending. `--no-x` and `--disable-x` are one flag. What a user would notice is never taken as
"without effect": no number, no file and no report may be missing.
"""

NO_EFFECT: tuple[tuple[str, str], ...] = (
    ("there is one model implementation", "--use-mcore-models --transformer-impl"),
    (
        "kernels are chosen by what is installed, with equal results",
        "--use-flash-attn --attention-backend --no-masked-softmax-fusion --no-bias-swiglu-fusion "
        "--no-bias-dropout-fusion --no-rope-fusion --no-persist-layer-norm --no-gradient-accumulation-fusion "
        "--cross-entropy-loss-fusion --cross-entropy-fusion-impl --use-flashinfer-fused-rope --enable-cuda-graph "
        "--external-cuda-graph --cuda-graph-*",
    ),
    ("fused or not, GELU stays the same function", "--no-bias-gelu-fusion"),
    (
        "always so here",
        "--attention-softmax-in-fp32 --accumulate-allreduce-grads-in-fp32 --calculate-per-token-loss "
        "--use-cpu-initialization --log-throughput --log-memory-to-tensorboard --log-validation-ppl-to-tensorboard "
        "--no-create-attention-mask-in-dataloader --no-data-sharding --no-use-tokenizer-model-from-checkpoint-args",
    ),
    (
        "what stages send travels while they compute, with equal results",
        "--no-overlap-p2p-communication --overlap-p2p-communication-warmup-flush",
    ),
    ("the head's weight gradient is computed when it is due", "--defer-embedding-wgrad-compute --wgrad-deferral-limit"),
    ("--position-embedding-type decides", "--no-position-embedding"),
    ("dropout keeps no random state", "--no-save-rng --no-load-rng --te-rng-tracker --inference-rng-tracker"),
    (
        "communication has one implementation, with equal results",
        "--tp-comm-overlap* --ddp-average-in-collective --disable-gloo-process-groups --use-nccl-ub --use-sharp "
        "--nccl-communicator-config-path",
    ),
    (
        "files are mapped into memory",
        "--num-dataset-builder-threads --no-mmap-bin-files",
    ),
    ("Muon multiplies matrices in fp32", "--muon-fp32-matmul-prec"),
    ("memory is left to torch", "--empty-unused-memory-level"),
    (
        "checkpoints have one format, saved whole and loaded strictly",
        "--ckpt-format --use-dist-ckpt --dist-ckpt-format --auto-detect-ckpt-format --dist-ckpt-strictness "
        "--dist-ckpt-optim-fully-reshardable --ckpt-fully-parallel-save --no-ckpt-fully-parallel-save "
        "--ckpt-fully-parallel-load --ckpt-assume-constant-structure --async-strategy "
        "--async-ckpt-use-cpu-shm --use-persistent-ckpt-worker",
    ),
)
"""Why, said once after `Accepted, without effect`, and the flags."""

_PARALLEL = (
    (
        "is not supported yet: no rank holds a part of a sequence only. Use --tensor-model-parallel-size with "
        "--sequence-parallel.",
        "--context-parallel-size=1 --cp-comm-type --hierarchical-context-parallel-sizes",
    ),
    (
        "is not supported: the update is one, and --overlap-param-gather hides the gathering under the forward pass.",
        "--overlap-param-gather-with-optimizer-step",
    ),
    (
        "is not supported yet: each rank holds all parameters of its stages. Use --use-distributed-optimizer, and "
        "--tensor-model-parallel-size or --pipeline-model-parallel-size, which share parameters too.",
        "--use-torch-fsdp2 --use-megatron-fsdp --megatron-fsdp-*",
    ),
    ("is not supported: weights depend on --seed only, never on the rank.", "--data-parallel-random-init"),
)

_PRECISION = (
    ("is not supported: the loss is computed in fp32. Leave it out.", "--fp16-lm-cross-entropy"),
    (
        "is not supported. Use --bf16.",
        "--fp8-* --fp4-* --first-last-layers-bf16 --use-precision-aware-optimizer",
    ),
    ("is not supported yet: torch decides how a matrix product sums.", "--disable-bf16-reduced-precision-matmul"),
    ("is an old name. Use --recompute-granularity full.", "--checkpoint-activations"),
    (
        "is not supported: activations stay on the device. Use a smaller --micro-batch-size, or offload the states of "
        "the optimizer by --optimizer-cpu-offload.",
        "--cpu-offloading-num-layers=0 --fine-grained-activation-offloading --offload-modules",
    ),
    (
        "is not supported yet: each rank holds all parameters of its stages, on the device. Share them by "
        "--tensor-model-parallel-size or --pipeline-model-parallel-size, and offload the rest: "
        "--use-distributed-optimizer --optimizer-cpu-offload.",
        "--offload-param*",
    ),
    ("is not supported: no step is run twice. Use --rerun-mode disabled.", "--rerun-mode=disabled|validate_results"),
    ("is not supported: it tests the rerun machine of Megatron.", "--error-injection-rate --error-injection-type"),
)

_MODEL = (
    (
        "is not supported yet: there are no experts.",
        "--num-experts --moe-* --overlap-moe-expert-parallel-comm --expert-model-parallel-size=1 "
        "--expert-tensor-parallel-size=1",
    ),
    (
        "is not supported yet: attention has heads and query groups, and no other variant. "
        "Use --group-query-attention.",
        "--multi-latent-attention --q-lora-rank --kv-lora-rank --qk-head-dim --qk-pos-emb-head-dim --v-head-dim "
        "--rope-type --attention-output-gate --experimental-attention-variant --linear-* --apply-wd-to-qk-layernorm",
    ),
    ("is not supported yet: one token is predicted.", "--mtp-*"),
    (
        "is not supported yet: the MLP has GELU, or --swiglu.",
        "--activation-func-clamp-value --glu-linear-offset",
    ),
    ("is not supported: a model is described by its flags.", "--spec=local --enable-gpt-oss"),
    ("is not supported: layers are decoder layers. Use --num-layers.", "--encoder-num-layers --decoder-num-layers"),
    ("is not supported. Use --seq-length.", "--encoder-seq-length --decoder-seq-length"),
)

_COURSE = (
    ("is not supported yet: what is timed is the parts of a step. Use --timing-log-level.", "--profile"),
    (
        "is not supported: matrices are made orthogonal whole, in every layout, and all else is updated by Adam.",
        "--muon-tp-mode=duplicated --muon-scalar-optimizer=adam",
    ),
    ("is not supported. Set the environment variable WANDB_ENTITY.", "--wandb-entity"),
    ("is not supported. Use --timing-log-level 1 with --timing-log-option all.", "--log-straggler"),
    ("is not supported. Use --config.", "--yaml-cfg"),
)

_DATA = (
    ("is not supported: the tokenizer's end of document ends documents. Leave it out.", "--fim-eod-token"),
    ("is not supported yet: samples are whole sequences.", "--sft"),
    (
        "is not supported: the vocabulary's size is the tokenizer's. Use --make-vocab-size-divisible-by.",
        "--padded-vocab-size --vocab-extra-ids=0",
    ),
    ("is not supported: code from a tokenizer folder is never run. Leave it out.", "--trust-remote-code"),
)

_CHECKPOINT = (
    (
        "is not supported: any layout loads any checkpoint. Give the sizes of this run.",
        "--use-mp-args-from-checkpoint-args",
    ),
    ("is not supported: the folder that is saved in counts on. Use another --save.", "--override-ckpt-iteration"),
    ("is not supported in training. Use tools/convert_checkpoint.py.", "--ckpt-convert-*"),
)

_ELSEWHERE = (
    (
        "is not for training. Use tools/generate.py.",
        "--inference-* --prompts --prompt-file --num-tokens-to-generate --temperature --top_k --top_p --top-n-logprobs "
        "--return-log-probs --output-path --max-tokens-to-oom --incoming-requests-per-sec --incoming-requests-per-step "
        "--enable-chunked-prefill --flash-decode --decode-only-cuda-graphs --use-legacy-static-engine",
    ),
    ("is not supported: models are neither distilled nor quantised.", "--export-* --test-mode"),
    (
        "is for torchrun. Write it before pretrain_gpt.py.",
        "--nnodes --nproc* --node-rank --node_rank --master-addr --master_addr --master-port --master_port --rdzv* "
        "--standalone --max-restarts --max_restarts --monitor-interval --local-addr --role --redirects --tee "
        "--local-ranks-filter",
    ),
    ("is an old way to start ranks. Use torchrun.", "--local-rank --local_rank"),
    (
        "is for srun. Write it before the program.",
        "--container-image --container-mounts --exclusive --mem --ntasks-per-node --output --overcommit",
    ),
    ("is an option of a launch script. Use --save and --load.", "--checkpoint-path"),
    ("is an option of a launch script. Use --tensorboard-dir.", "--tensorboard-logs-path"),
    ("is an option of a launch script. Use --data-path.", "--data"),
    ("is an option of a launch script. Use --tokenizer-model.", "--tokenizer"),
    ("is an option of a launch script. Use torchrun and its options.", "--distributed-config-file"),
    ("is an old name. Use --micro-batch-size.", "--batch-size"),
    ("is an old name. Use --tensor-model-parallel-size.", "--model-parallel-size"),
    ("is an old name. Use --lr-warmup-fraction.", "--warmup"),
)

REFUSED: tuple[tuple[str, str], ...] = (
    *_PARALLEL,
    *_PRECISION,
    *_MODEL,
    *_COURSE,
    *_DATA,
    *_CHECKPOINT,
    *_ELSEWHERE,
)
"""What follows the flag in the message, `is` first, and the flags."""

SYNONYMS: dict[str, tuple[str, ...]] = {
    "--use-rotary-position-embeddings": ("--position-embedding-type", "rope"),
    "--persistent-save-interval": ("--save-interval",),
    "--layernorm-epsilon": ("--norm-epsilon",),
    "--recompute-activations": ("--recompute-granularity", "selective"),
    "--override-opt_param-scheduler": ("--override-opt-param-scheduler",),
    "--use-checkpoint-opt_param-scheduler": ("--use-checkpoint-opt-param-scheduler",),
}
"""Other spellings, and what they stand for; values that were given are appended."""

CLASHES: dict[str, tuple[str, object, str]] = {
    "--accumulate-allreduce-grads-in-fp32": (
        "grad_reduce_in_bf16",
        True,
        "does not go with --grad-reduce-in-bf16. Give one.",
    ),
    "--no-position-embedding": (
        "position_embedding_type",
        "learned_absolute",
        "does not go with learned positions. Use --position-embedding-type rope.",
    ),
}
"""Flags without effect that would contradict a setting if it has this value: its field, the value, what to say."""

"""Megatron's flags that are not ours, as data: those that change nothing here, and those that are refused.

In a row of flags, `--flag=a|b` names values with which the flag asks for nothing, and is taken without a word; a
final `*` stands for any ending.
"""

NO_EFFECT: tuple[tuple[str, str], ...] = (
    ("there is one model implementation", "--use-mcore-models --transformer-impl"),
    (
        "kernels are chosen by what is installed, with equal results",
        "--use-flash-attn --attention-backend --no-masked-softmax-fusion --no-bias-gelu-fusion --no-bias-swiglu-fusion "
        "--no-bias-dropout-fusion --no-rope-fusion --no-persist-layer-norm --no-gradient-accumulation-fusion "
        "--cross-entropy-loss-fusion --cross-entropy-fusion-impl --use-flashinfer-fused-rope",
    ),
    (
        "always so here",
        "--attention-softmax-in-fp32 --accumulate-allreduce-grads-in-fp32 --calculate-per-token-loss "
        "--use-cpu-initialization --log-throughput --no-create-attention-mask-in-dataloader --use-dist-ckpt",
    ),
    (
        "only fp16 needs it",
        "--apply-query-key-layer-scaling --loss-scale --initial-loss-scale --min-loss-scale "
        "--loss-scale-window --hysteresis",
    ),
    ("the order of ranks only matters with pipeline stages", "--use-tp-pp-dp-mapping"),
    ("--position-embedding-type decides", "--no-position-embedding"),
    ("dropout keeps no random state", "--no-save-rng --no-load-rng --te-rng-tracker --inference-rng-tracker"),
    (
        "communication overlaps where it pays",
        "--tp-comm-overlap* --ddp-average-in-collective --disable-gloo-process-groups --use-nccl-ub --use-sharp",
    ),
    ("the data need no workers", "--num-workers --num-dataset-builder-threads --no-mmap-bin-files"),
    ("memory is left to Python and torch", "--manual-gc --manual-gc-interval --empty-unused-memory-level"),
    (
        "checkpoints have one format, saved whole and loaded strictly",
        "--ckpt-format --dist-ckpt-format --auto-detect-ckpt-format --dist-ckpt-strictness --async-strategy "
        "--dist-ckpt-optim-fully-reshardable --ckpt-fully-parallel-save --no-ckpt-fully-parallel-save "
        "--ckpt-fully-parallel-load --ckpt-assume-constant-structure --async-save --use-persistent-ckpt-worker "
        "--verify-integrity",
    ),
    (
        "not logged",
        "--log-params-norm --log-num-zeros-in-grad --log-timers-to-tensorboard --log-memory-to-tensorboard "
        "--log-validation-ppl-to-tensorboard --log-progress --log-straggler --timing-log-level --timing-log-option",
    ),
    ("TensorBoard is written every --log-interval", "--tensorboard-log-interval"),
    ("steps are never run twice", "--rerun-mode"),
    ("gradients and losses are always checked", "--no-check-for-nan-in-loss-and-grad"),
)

_ONLY_DENSE = "is not supported yet: tensor, sequence and data parallelism are."
_YET = "is not supported yet."

REFUSED: tuple[tuple[str, str], ...] = (
    (
        _ONLY_DENSE,
        "--pipeline-model-parallel-size=1 --context-parallel-size=1 --expert-model-parallel-size=1 "
        "--expert-tensor-parallel-size=1 --cp-comm-type --hierarchical-context-parallel-sizes "
        "--num-layers-per-virtual-pipeline-stage --num-virtual-stages-per-pipeline-rank=1 "
        "--pipeline-model-parallel-layout --decoder-first-pipeline-num-layers --decoder-last-pipeline-num-layers "
        "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split "
        "--microbatch-group-size-per-virtual-pipeline-stage --no-overlap-p2p-communication "
        "--overlap-p2p-communication-warmup-flush --defer-embedding-wgrad-compute --wgrad-deferral-limit",
    ),
    (
        "is not supported yet: every data parallel rank holds the whole optimizer state.",
        "--use-distributed-optimizer --overlap-param-gather --overlap-param-gather-with-optimizer-step "
        "--num-distributed-optimizer-instances=1 --use-torch-fsdp2 --use-megatron-fsdp "
        "--data-parallel-sharding-strategy=no_shard --megatron-fsdp-*",
    ),
    ("is not supported yet. Use --bf16.", "--fp16 --fp16-lm-cross-entropy"),
    ("is not supported.", "--fp8-* --fp4-* --first-last-layers-bf16 --use-precision-aware-optimizer"),
    ("is not supported yet: gradients are reduced in fp32.", "--grad-reduce-in-bf16"),
    (
        "is not supported yet: activations are kept.",
        "--recompute-activations --recompute-granularity --recompute-method --recompute-num-layers "
        "--recompute-modules --distribute-saved-activations --cpu-offloading-num-layers=0 --optimizer-cpu-offload",
    ),
    (
        "is not supported yet: there are no experts.",
        "--num-experts --moe-* --overlap-moe-expert-parallel-comm --expert-*",
    ),
    (
        "is not supported yet: attention has multiple heads or query groups.",
        "--multi-latent-attention --q-lora-rank "
        "--kv-lora-rank --qk-head-dim --qk-pos-emb-head-dim --v-head-dim --attention-output-gate "
        "--experimental-attention-variant --linear-*",
    ),
    ("is not supported yet: one token is predicted.", "--mtp-*"),
    (
        _YET,
        "--rotary-percent=1.0|1|1. --rotary-interleaved --use-rope-scaling --rope-scaling-factor "
        "--rotary-seq-len-interpolation-factor --no-rope-freq --apply-layernorm-1p --qk-layernorm --squared-relu "
        "--quick-geglu --window-size --window-attn-skip-freq --softmax-type=vanilla --fp32-residual-connection "
        "--apply-residual-connection-post-layernorm --decoupled-lr --decoupled-min-lr --apply-wd-to-qk-layernorm "
        "--override-opt_param-scheduler --override-opt-param-scheduler --use-checkpoint-opt_param-scheduler "
        "--use-checkpoint-opt-param-scheduler --step-batch-size-schedule --rampup-batch-size "
        "--decrease-batch-size-if-needed --exit-duration-in-mins --exit-signal-handler --iterations-to-skip "
        "--deterministic-mode --data-parallel-random-init --train-data-path --valid-data-path --test-data-path "
        "--data-args-path --per-split-data-args-path --mid-level-dataset-surplus=0.005 --reset-position-ids "
        "--reset-attention-mask --eod-mask-loss --dataloader-inter-document-masking --fim-data --fim-* --sft "
        "--dataloader-type=single --padded-vocab-size --vocab-extra-ids=0 --tiktoken-pattern --full-validation "
        "--multiple-validation-sets --eval-global-batch-size --skip-train --profile --save-retain-interval "
        "--check-weight-hash-across-dp-replicas-interval --pretrained-checkpoint --no-save-optim "
        "--override-ckpt-iteration --use-checkpoint-args --use-mp-args-from-checkpoint-args --spec=local "
        "--error-injection-rate --error-injection-type --init-method-xavier-uniform --enable-cuda-graph "
        "--cuda-graph-*",
    ),
    ("is not supported: checkpoints are converted by tools/convert_checkpoint.py.", "--ckpt-convert-*"),
    ("is not supported: code from a tokenizer folder is never run.", "--trust-remote-code"),
    ("is not supported. Use --log-jsonl or --tensorboard-dir.", "--wandb-*"),
    ("is not supported. Use --config.", "--yaml-cfg"),
    ("is not supported: layers are decoder layers. Use --num-layers.", "--encoder-num-layers --decoder-num-layers"),
    ("is not supported. Use --seq-length.", "--encoder-seq-length --decoder-seq-length"),
    ("is an old name. Use --micro-batch-size.", "--batch-size"),
    ("is an old name. Use --tensor-model-parallel-size.", "--model-parallel-size"),
    ("is an old name. Use --lr-warmup-fraction.", "--warmup"),
    ("is an old name, and recomputation is not supported yet.", "--checkpoint-activations"),
)

SYNONYMS: dict[str, tuple[str, ...]] = {
    "--use-rotary-position-embeddings": ("--position-embedding-type", "rope"),
    "--persistent-save-interval": ("--save-interval",),
    "--layernorm-epsilon": ("--norm-epsilon",),
}
"""Other spellings, and what they stand for; values that were given are appended."""

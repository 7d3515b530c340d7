"""The planner's numbers against closed forms, the trainer's own, and programs run on paper; its answers to wishes."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from megalite.config.cli import parse
from megalite.config.derive import derive
from megalite.config.size import ModelSize, model_size
from megalite.plan.answers import fewest_gpus, largest_micro_batch, largest_model
from megalite.plan.bubble import closed_length, simulated_length
from megalite.plan.claims import claims, gpt
from megalite.plan.compare import comparison, recommendations, sent_bytes
from megalite.plan.compute import Pass
from megalite.plan.description import describe, described_size
from megalite.plan.flops import CONVENTIONS, executed_flops
from megalite.plan.hardware import DEVICES, find_device, make_cluster
from megalite.plan.launch import layout_flags, layout_of, problems
from megalite.plan.layout import Layout, Practice
from megalite.plan.machines import usual_rates
from megalite.plan.memory import in_flight, memory_of_ranks
from megalite.plan.page import draw_plan
from megalite.plan.prediction import Job, Prediction
from megalite.plan.presets import PRESETS
from megalite.plan.profile import Profile, load_profile, save_profile
from megalite.plan.rank import rank_plans
from megalite.plan.rates import Rates
from megalite.plan.search import Wishes, layouts, reason, search
from megalite.plan.table import Course, prediction_lines
from megalite.plan.trial import Trial, trial_lines
from megalite.schedule.check import peak_kept
from megalite.schedule.schedules import make_schedule
from tools.plan import flags_of_config, main

PUBLIC = {
    "gpt2-small": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
}
"""As the published checkpoints have."""


def job_of(preset: str, gpu: str = "h100", nodes: int = 1, **cluster: float) -> Job:
    config, _ = describe([], preset=preset)
    device = find_device(gpu)
    return Job(
        size=described_size(config),
        cluster=make_cluster(device, gpus_per_node=8, nodes=nodes, memory_gb=cluster.get("memory_gb")),
        rates=usual_rates(device.name),
        practice=Practice(overlap_grads=True, overlap_params=True),
    )


@pytest.mark.parametrize(("preset", "parameters"), PUBLIC.items())
def test_presets_have_the_published_parameters(preset: str, parameters: int) -> None:
    assert Prediction(job=job_of(preset), layout=Layout()).parameters == parameters


def test_every_preset_describes_a_model() -> None:
    for preset in PRESETS:
        assert job_of(preset).size.num_layers > 0


@pytest.mark.parametrize(
    ("facts", "parameters"),
    [
        ({"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257},
         PUBLIC["gpt2-small"]),
        ({"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
          "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "vocab_size": 128256},
         PUBLIC["llama3-8b"]),
        ({"model_type": "qwen2", "num_hidden_layers": 24, "hidden_size": 896, "intermediate_size": 4864,
          "num_attention_heads": 14, "num_key_value_heads": 2, "max_position_embeddings": 32768, "vocab_size": 151936,
          "tie_word_embeddings": True},
         494_032_768),
        ({"model_type": "qwen3", "num_hidden_layers": 28, "hidden_size": 1024, "intermediate_size": 3072,
          "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960,
          "vocab_size": 151936, "tie_word_embeddings": True},
         596_049_920),
    ],
)  # fmt: skip
def test_a_config_json_describes_a_model(tmp_path: Path, facts: dict[str, object], parameters: int) -> None:
    (tmp_path / "config.json").write_text(json.dumps(facts), encoding="utf-8")
    config, _ = describe([], named=flags_of_config(tmp_path))
    job = replace(job_of("llama3-8b"), size=described_size(config))
    assert Prediction(job=job, layout=Layout()).parameters == parameters


def test_conventions_are_the_papers_formulas() -> None:
    size = gpt(24, 2304, 24)
    layers, hidden, seq, vocab = 24, 2304, 2048, 51200
    unit = 72 * 512 * layers * seq * hidden**2
    assert CONVENTIONS["model"](size, samples=512) == pytest.approx(
        unit * (1 + seq / (6 * hidden) + vocab / (12 * layers * hidden)), rel=1e-12
    )
    assert CONVENTIONS["hardware, full recompute"](size, samples=512) == pytest.approx(
        96 / 72 * unit * (1 + seq / (6 * hidden) + vocab / (16 * layers * hidden)), rel=1e-12
    )
    assert CONVENTIONS["hardware, selective recompute"](size, samples=512) == pytest.approx(
        unit * (1 + seq / (3 * hidden) + vocab / (12 * layers * hidden)), rel=1e-12
    )
    more = executed_flops(size, samples=1, recompute="selective") - executed_flops(size, samples=1, recompute="none")
    assert more == 4 * layers * seq**2 * hidden


CLAIMED = {
    "175e9 x 4 bytes": 700.0, "in 16 bits": 350.0, "174,615,846,912 x 4 bytes": 698.5, "16 bytes each": 2.80,
    "with fp32 gradients, 18": 3.15, "with both gradients, 20": 3.50, "activations, b=1": 275, "  recomputed": 4.8,
    "  with flash attention": 82, "needs, with 8 FLOPs": 46.2, "at 140 TFLOP/s, with 8": 95.1,
    "at 140 TFLOP/s, with 6": 71.3, "exact FLOPs, full recomputation": 97.4, "exact FLOPs, none": 73.1,
    "activations, selective": -70, "activations, full": -98, "host, 13B": 156, "over PCIe, 13B": 52, "DP 8": 208,
    "TP 2 x DP 4": 104, "DP 8, ZeRO-1": 71.5, "TP 2 x DP 4, ZeRO-1": 45.5, "both, fp32 gradients, DP 8": 97.5,
    "both, fp32 gradients, TP 2": 58.5, "the same against ZeRO-1 on 8": 2.75, "NVLink, 4 micro-batches": 93.7,
    "NVLink, 32 micro-batches": 96.9, "PCIe, 4 micro-batches": 44, "PCIe, 32 micro-batches": 62,
    "100 Gb/s a GPU, 4 micro-batches": 57, "100 Gb/s a GPU, 32 micro-batches": 89,
    "16 stages need, to be busy 80 %": 60, "NVLink 230 GB/s": 1.7, "100 Gb/s a node": 256,
}  # fmt: skip


def test_claims_come_out_to_the_told_digit() -> None:
    computed = {name: value for claim in claims() for name, value, _ in claim.computed}
    for name, told in CLAIMED.items():
        digits = len(str(told).rstrip("0").partition(".")[2])
        assert abs(computed[name] - told) <= 0.5 * 10**-digits * 1.2, name


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("micro_batches", [1, 3, 4, 8, 12])
@pytest.mark.parametrize(
    ("schedule", "chunks"),
    [("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("interleaved", 3), ("zb-h1", 1), ("zb-v", 2)],
)
def test_in_flight_is_what_programs_keep(schedule: str, chunks: int, ranks: int, micro_batches: int) -> None:
    if schedule in ("zb-v", "interleaved") and micro_batches < 2 * ranks:
        pytest.skip("a pipeline that is never full keeps less")
    programs = make_schedule(schedule, num_ranks=ranks, num_micro_batches=micro_batches, num_chunks=chunks)
    layout = Layout(
        pipeline=ranks, chunks=chunks, schedule=schedule, micro_batch_size=1, global_batch_size=micro_batches
    )
    assert [in_flight(layout, rank) for rank in range(ranks)] == [peak_kept(program) for program in programs]


@pytest.mark.parametrize(("schedule", "chunks"), [("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("zb-v", 2)])
@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 8), (4, 16), (8, 64)])
def test_the_closed_length_is_the_simulated_one(schedule: str, chunks: int, ranks: int, micro_batches: int) -> None:
    stage = Pass(forward=1.0, inputs=1.0, weights=1.0)
    rank = Pass(forward=chunks, inputs=chunks, weights=chunks)
    closed = closed_length(schedule, [rank] * ranks, chunks=chunks, micro_batches=micro_batches)
    run = simulated_length(schedule, [stage] * ranks * chunks, ranks=ranks, chunks=chunks, micro_batches=micro_batches)
    assert closed == pytest.approx(run, rel=1e-9 if schedule in ("1f1b", "interleaved") else 0.05)


def test_only_part_of_a_long_schedule_is_simulated() -> None:
    stages = [Pass(forward=1.0, inputs=1.5, weights=1.0)] * 4
    few, many = (simulated_length("1f1b", stages, ranks=4, chunks=1, micro_batches=m) for m in (40, 400))
    assert many - few == pytest.approx(360 * 3.5)


RUNS = [
    ("", 1),
    ("--tensor-model-parallel-size 2", 2),
    ("--tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer", 4),
    ("--pipeline-model-parallel-size 2 --global-batch-size 4", 2),
    ("--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 --global-batch-size 8", 2),
    ("--recompute-granularity full --recompute-method block --recompute-num-layers 1", 1),
    ("--bf16 --use-distributed-optimizer", 2),
    ("--bf16 --use-distributed-optimizer --data-parallel-sharding-strategy optim_grads", 2),
    ("--bf16 --optimizer-cpu-offload --use-distributed-optimizer", 2),
]


@pytest.mark.parametrize(("flags", "ranks"), RUNS, ids=[flags or "plain" for flags, _ in RUNS])
def test_memory_is_the_dry_runs_to_the_byte(flags: str, ranks: int) -> None:
    """And that is the trainer's own: tests of the memory report hold it to real buffers and saved tensors."""
    config, _ = describe(flags.split(), preset="gpt2-small")
    layout = layout_of(config, ranks)
    size = model_size(config.model, vocab_size=50432 if layout.tensor == 2 else 50304)
    practice = Practice(attention="dropout", dropout=True, param_bytes=config.train.param_bytes, workspace=0)
    derived = derive(config, ranks)
    plans = rank_plans(config, derived, 50257)
    ours = memory_of_ranks(size, layout, practice)
    assert [rank.states for rank in ours] == pytest.approx([plan.states.total for plan in plans], rel=1e-6)
    assert [rank.total for rank in ours] == pytest.approx([plan.total for plan in plans], rel=0.02)


def test_traffic_is_the_closed_forms() -> None:
    job = job_of("llama2-7b")
    layout = Layout(tensor=2, data=4, global_batch_size=8)
    sent = sent_bytes(Prediction(job=job, layout=layout))
    activation = 4096 * 4096 * 2
    loss = 4096 * 2 * 3 * 4
    assert sent["tp"] == 2 * ((4 * 32 + 2) * activation + loss)
    assert sent["pp"] == 0


def test_a_search_of_the_largest_model_takes_less_than_a_second() -> None:
    job = job_of("llama3-405b", nodes=2048)
    began = time.process_time()
    found = search(job, Wishes(global_batch_size=2048))
    assert time.process_time() - began < 1
    assert found.best
    assert found.best[0].layout.tensor == 8
    assert found.lost["tensor parallelism across nodes"] >= 0


@pytest.mark.parametrize(("preset", "nodes"), [("llama3-8b", 1), ("gpt3-13b", 2), ("gpt3-175b", 16)])
def test_the_trainer_accepts_what_is_found(preset: str, nodes: int) -> None:
    _, flags = describe([], preset=preset)
    job = job_of(preset, nodes=nodes)
    found = search(job, Wishes(global_batch_size=32 * nodes, micro_batch_size=1))
    for candidate in found.best[:: max(1, len(found.best) // 12)]:
        assert problems(flags, candidate.layout) == []
        parsed = parse([*flags, *layout_flags(candidate.layout), "--lr", "1", "--train-iters", "1"])
        assert layout_of(parsed.config, candidate.layout.gpus) == candidate.layout


def test_the_best_is_the_best_of_all_that_are_valid() -> None:
    job = job_of("gpt3-1.3b", gpu="a100")
    wishes = Wishes(global_batch_size=16)
    every = [Prediction(job=job, layout=layout) for layout in layouts(job, wishes)]
    fastest = min(p.quick_time.total for p in every if p.fits)
    assert search(job, wishes).best[0].quick_time.total <= 1.02 * fastest


def test_less_memory_never_gives_a_faster_layout() -> None:
    times = [
        search(job_of("gpt3-13b", memory_gb=memory), Wishes(global_batch_size=64, tensor=2)).best[0].time.total
        for memory in (160, 80, 40)
    ]
    assert times == sorted(times)


def test_reasons_say_what_costs() -> None:
    job = job_of("gpt3-13b", gpu="a100", nodes=2)
    best = search(job, Wishes(global_batch_size=64)).best[0]
    wide = Layout(tensor=8, data=2, global_batch_size=64, zero=1)
    assert "tensor parallelism over 8" in reason(Prediction(job=job, layout=wide), best)
    heavy = Layout(data=16, micro_batch_size=4, global_batch_size=64)
    assert "does not fit by" in reason(Prediction(job=job, layout=heavy), best)


def test_questions() -> None:
    job = job_of("llama2-7b", gpu="a100")
    layout = Layout(tensor=2, sequence_parallel=True, data=4, global_batch_size=64, zero=1)
    widest = largest_micro_batch(job, layout)
    assert widest is not None and widest.fits
    assert not Prediction(job=job, layout=replace(layout, micro_batch_size=2 * widest.layout.micro_batch_size)).fits
    few = fewest_gpus(job, Wishes(global_batch_size=64))
    assert few is not None and few.layout.gpus == 2
    narrow = Wishes(global_batch_size=8, tensor=8, pipeline=1, micro_batch_size=1)
    small, large = (largest_model(job_of("llama2-7b", memory_gb=gb), narrow) for gb in (40, 80))
    assert small is not None and large is not None
    assert small.parameters < large.parameters


def test_tables_and_pages_are_made() -> None:
    job = job_of("gpt3-6.7b", gpu="a100")
    lines = comparison(job, 128)
    assert [line.split()[0] for line in lines[1:4]] == ["data", "ZeRO-1", "ZeRO-2"]
    _, found = next(recommendations(job_of("gpt3-1.3b"), 64))
    assert found is not None and found.fits
    tried = search(job, Wishes(global_batch_size=128, tensor=2, pipeline=2)).best
    page = draw_plan(tried[0], tried, Course(tokens=1e9, price=2.0))
    assert page.count("<svg") >= 3
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "GPU-hours" in "\n".join(prediction_lines(tried[0], Course(tokens=1e9)))


def test_shares_of_a_step_add_up() -> None:
    found = Prediction(
        job=job_of("llama3-8b", nodes=2), layout=Layout(tensor=2, pipeline=2, data=4, global_batch_size=32, zero=1)
    )
    assert sum(vars(found.time).values()) == pytest.approx(found.time.total)
    assert 0 < found.mfu <= found.hfu < 1
    assert found.gpu_hours(1e9) == pytest.approx(1e9 / found.tokens_per_second / 3600 * 16)


def test_profiles_are_read_back(tmp_path: Path) -> None:
    profile = Profile(device=find_device("a100"), rates=Rates(matmul=0.5, origin="calibrated"))
    save_profile(tmp_path / "here.json", profile)
    assert load_profile(tmp_path / "here.json") == profile
    (tmp_path / "other.json").write_text('{"colour": 1}', encoding="utf-8")
    with pytest.raises(ValueError, match="no profile of --calibrate: 'device'"):
        load_profile(tmp_path / "other.json")


WRONG = [
    ("--preset llama3-8b --gpu h10", "--gpu h10 is not known. Try h100"),
    ("--preset llama3-9b", "--preset llama3-9b is not known. Try llama3-8b"),
    ("--preset llama3-8b --tp 3", "--tp 3 does not divide --num-attention-heads 32"),
    ("--preset llama3-8b --gpus 3 --pp 1 --global-batch-size 4", "must be a multiple of 3"),
    ("--preset llama3-8b --device-mem 0", "--device-mem 0 must be above 0"),
    ("--preset llama3-8b --pp 5", "--pp 5 does not divide 8 GPUs. Try --pp 4"),
    ("--preset llama3-8b --nodes 0", "--nodes 0 must be 1 or more"),
    ("--preset llama3-8b --gpus 12", "does not fill nodes of --gpus-per-node 8. Try --gpus 16"),
    ("--preset llama3-8b --gpu l4 --intra nvlink", "l4 has no NVLink. Try --intra pcie"),
    ("--preset llama3-8b --global-batch-size 0", "--global-batch-size 0 must be 1 or more"),
    ("--preset llama3-8b --num-lyers 3", "--num-lyers"),
    ("", "Try --preset llama3-8b"),
]


@pytest.mark.parametrize(("line", "told"), WRONG, ids=[line or "nothing" for line, _ in WRONG])
def test_impossible_wishes_get_an_answer(line: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    assert told in capsys.readouterr().err


def test_what_fits_nowhere_says_what_is_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--preset", "gpt3-175b", "--gpu", "a100", "--global-batch-size", "8"]) == 1
    told = capsys.readouterr().out
    assert "nothing fits; nearest is" in told
    assert "devices of" in told


_SMALL = ("--preset", "gpt3-1.3b", "--gpu", "a100", "--global-batch-size", "16")


def test_json_and_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*_SMALL, "--json", "--tokens", "1e9"]) == 0
    told = json.loads(capsys.readouterr().out)
    best = told["best"][0]
    assert best["memory"]["peak"] == max(rank["total"] for rank in best["memory"]["ranks"])
    assert best["step_seconds"]["known"] == "modelled"
    assert best["gpu_hours"] > 0
    assert main([*_SMALL, "--vs", "--tp 2"]) == 0
    told = capsys.readouterr().out
    assert "torchrun --nproc-per-node 8 pretrain_gpt.py" in told
    assert "B to A" in told


def test_trials_say_whether_the_order_holds() -> None:
    job = job_of("gpt2-small", gpu="a100")
    fast, slow = (Prediction(job=job, layout=Layout(data=d, global_batch_size=16)) for d in (8, 2))
    right = [Trial(predicted=fast, seconds=(1.0, 1.1)), Trial(predicted=slow, seconds=(2.0, 2.1))]
    wrong = [Trial(predicted=fast, seconds=(2.0, 2.1)), Trial(predicted=slow, seconds=(1.0, 1.1))]
    close = [Trial(predicted=fast, seconds=(1.0, 2.1)), Trial(predicted=slow, seconds=(1.0, 1.9))]
    assert "the ranking holds beyond the spread" in trial_lines(right)
    assert "the ranking holds beyond the spread" in trial_lines(close)
    assert "the ranking does not hold" in trial_lines(wrong)


@pytest.mark.soak
def test_this_machine_is_measured_and_a_layout_tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--calibrate", str(tmp_path / "here.json"), "--gpus", "2"]) == 0
    model = "--num-layers 2 --hidden-size 64 --num-attention-heads 2 --seq-length 32 --vocab-size 64"
    job = "--gpus 2 --gpus-per-node 2 --global-batch-size 4 --tokenizer-type NullTokenizer --probe 1"
    assert main([*model.split(), *job.split(), "--profile", str(tmp_path / "here.json")]) == 0
    assert "the ranking" in capsys.readouterr().out


def test_devices_are_possible() -> None:
    for device in DEVICES.values():
        assert 0 < device.matmul <= device.peak
        assert device.memory > 0 and device.bandwidth > 0 and device.units > 0


def test_padding_follows_tensor_parallelism() -> None:
    job = job_of("gpt2-small")
    sizes: list[ModelSize] = [job.padded(tensor) for tensor in (1, 2)]
    assert [size.vocab_size for size in sizes] == [50304, 50432]

"""Which layout, how much memory, how long: `python tools/plan.py --preset llama3-8b --gpu h100 --nodes 4`.

Models are told by the trainer's own flags, a preset or a config.json. With --tp, --pp or --dp one layout is predicted;
without, all are tried.
"""

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from megalite.checkpoint.stated import of_config
from megalite.config.schema import Config, Tokenizer
from megalite.config.show import to_flags
from megalite.config.stored_model import stored_model
from megalite.plan.answers import faster_networks, fewest_gpus, largest_micro_batch, largest_model
from megalite.plan.claims import claim_lines
from megalite.plan.compare import comparison, scenario_lines
from megalite.plan.description import describe, described_size
from megalite.plan.hardware import find_device, make_cluster
from megalite.plan.launch import launch_command, problems
from megalite.plan.layout import Practice
from megalite.plan.machines import usual_rates
from megalite.plan.page import draw_plan
from megalite.plan.prediction import Job, Prediction
from megalite.plan.profile import load_profile
from megalite.plan.search import Wishes, search
from megalite.plan.table import Course, against, course_lines, found_lines, gigabytes, plain, prediction_lines, seconds
from megalite.plan.trial import probe, trial_lines

PROBE_ROUNDS, PROBE_STEPS = 3, 5


def main(arguments: Sequence[str]) -> int:
    """Answer, or say what is wrong with the question; the exit status is 2 then."""
    options, model_flags = _parser().parse_known_args(arguments)
    try:
        if options.claims:
            return _tell(claim_lines())
        if options.calibrate:
            return calibrate(options.calibrate, options.gpus or 1)
        return _answer(Plan.of(options, model_flags), options)
    except (ValueError, RuntimeError) as error:
        print(f"plan: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="plan", description=__doc__, allow_abbrev=False)
    model = parser.add_argument_group("the model; the trainer's flags are read, too")
    model.add_argument("--preset", help="a named model, such as gpt3-175b or llama3-8b")
    model.add_argument("--hf-config", type=Path, help="a config.json of Hugging Face, or its folder")
    cluster = parser.add_argument_group("the machines")
    cluster.add_argument("--gpu", default="h100", help="an accelerator (default: h100)")
    cluster.add_argument("--gpus-per-node", type=int, default=8)
    cluster.add_argument("--nodes", type=int, default=1)
    cluster.add_argument("--gpus", type=int, help="all GPUs, instead of --nodes")
    cluster.add_argument("--intra", choices=("nvlink", "pcie"), help="links in a node (default: the best it has)")
    cluster.add_argument("--inter-gbps", type=float, help="gigabits a second of each GPU's share of the network")
    cluster.add_argument("--device-mem", type=float, help="gigabytes of a device, if not those of its data sheet")
    cluster.add_argument("--profile", type=Path, help="rates that --calibrate saved")
    layout = parser.add_argument_group("the layout: what is given is kept, the rest is searched")
    for flag, told in (("--tp", "tensor"), ("--pp", "pipeline"), ("--dp", "data")):
        layout.add_argument(flag, type=int, help=f"{told} parallel size")
    layout.add_argument("--micro-batch-size", type=int)
    layout.add_argument("--global-batch-size", type=int, help="sequences of a step (default: a million tokens or more)")
    layout.add_argument(
        "--zero", type=int, choices=(0, 1, 2), help="what replicas share out (default: what is fastest)"
    )
    layout.add_argument("--recompute", choices=("none", "selective", "full"))
    layout.add_argument("--offload", action="store_true", help="let the optimizer live on the host")
    course = parser.add_argument_group("the training")
    course.add_argument("--tokens", type=float, help="tokens in all: then days and GPU-hours are told")
    course.add_argument("--price-per-gpu-hour", type=float)
    ask = parser.add_argument_group("questions")
    ask.add_argument("--vs", help="flags of another layout to put beside: --vs '--tp 1 --dp 8'")
    ask.add_argument("--compare", action="store_true", help="strategies side by side")
    ask.add_argument("--scenario", action="store_true", help="what to choose on usual machines")
    ask.add_argument("--claims", action="store_true", help="what is told of large models, worked out again")
    ask.add_argument("--largest-model", action="store_true", help="the largest model of this shape that fits")
    ask.add_argument("--largest-micro-batch", action="store_true")
    ask.add_argument("--fewest-gpus", action="store_true")
    ask.add_argument("--faster-network", action="store_true", help="what faster links would bring")
    ask.add_argument("--calibrate", type=Path, help="measure this machine with --gpus processes, and save a profile")
    ask.add_argument("--probe", type=int, metavar="N", help="train the best N layouts here for a few steps, by turns")
    report = parser.add_argument_group("the answer")
    report.add_argument("--top", type=int, default=5, help="layouts to list (default: 5)")
    report.add_argument("--json", action="store_true")
    report.add_argument("--html", type=Path, help="write a page with charts")
    return parser


def flags_of_config(path: Path) -> list[str]:
    """The flags of a model of Hugging Face; its sequences are as long as it reads, and at most 8192."""
    facts = of_config(path / "config.json" if path.is_dir() else path)
    model = replace(stored_model(facts), seq_length=min(facts["max_position_embeddings"], 8192))
    tokenizer = Tokenizer(tokenizer_type="NullTokenizer", vocab_size=facts["vocab_size"])
    return shlex.split(" ".join(to_flags(Config(model=model, tokenizer=tokenizer), "model", "tokenizer")))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is asked."""

    job: Job
    config: Config
    model_flags: list[str]
    wishes: Wishes
    course: Course

    @classmethod
    def of(cls, options: argparse.Namespace, flags: Sequence[str]) -> "Plan":
        named = flags_of_config(options.hf_config) if options.hf_config else []
        config, model_flags = describe(flags, preset=options.preset, named=named)
        profile = load_profile(options.profile) if options.profile else None
        device = profile.device if profile else find_device(options.gpu)
        nodes = options.nodes
        per_node = options.gpus_per_node
        if options.gpus is not None:
            if options.gpus < 1:
                raise ValueError(f"--gpus {options.gpus} must be 1 or more. Try --gpus 8.")
            per_node = min(per_node, options.gpus)
            if options.gpus % per_node:
                raise ValueError(
                    f"--gpus {options.gpus} does not fill nodes of --gpus-per-node {per_node}. "
                    f"Try --gpus {-(-options.gpus // per_node) * per_node}."
                )
            nodes = options.gpus // per_node
        cluster = make_cluster(
            device,
            gpus_per_node=per_node,
            nodes=nodes,
            intra=options.intra or ("nvlink" if device.intra else "pcie"),
            inter_gbps=options.inter_gbps,
            memory_gb=options.device_mem,
        )
        job = Job(
            size=described_size(config),
            cluster=cluster,
            rates=profile.rates if profile else usual_rates(device.name),
            practice=_practice(config, param_bytes=4 if device.name == "cpu" else 2),
            divisible_by=config.model.make_vocab_size_divisible_by,
        )
        batch = options.global_batch_size
        if batch is None:
            batch = -(-1_000_000 // job.size.seq_length // cluster.gpus) * cluster.gpus
        if batch < 1:
            raise ValueError(f"--global-batch-size {batch} must be 1 or more. Try {cluster.gpus}.")
        return cls(
            job=job,
            config=config,
            model_flags=model_flags,
            wishes=_wishes(options, batch),
            course=Course(tokens=options.tokens, price=options.price_per_gpu_hour),
        )


def _wishes(options: argparse.Namespace, batch: int) -> Wishes:
    return Wishes(
        global_batch_size=batch,
        tensor=options.tp,
        pipeline=options.pp,
        data=options.dp,
        micro_batch_size=options.micro_batch_size,
        recompute=options.recompute,
        zero=options.zero,
        offload=options.offload,
    )


def _practice(config: Config, *, param_bytes: int) -> Practice:
    """This trainer's, in bf16 or on a CPU in fp32, with what can be hidden hidden; attention as the model asks."""
    model = config.model
    softmax = model.softmax_type != "vanilla" or model.apply_query_key_layer_scaling
    return Practice(
        attention="dropout" if model.attention_dropout else "softmax" if softmax else "fused",
        dropout=model.hidden_dropout > 0,
        param_bytes=param_bytes,
        overlap_grads=True,
        overlap_params=True,
    )


def _answer(plan: Plan, options: argparse.Namespace) -> int:
    job, wishes = plan.job, plan.wishes
    if options.compare:
        return _tell(comparison(job, wishes.global_batch_size))
    if options.scenario:
        return _tell(scenario_lines(job, wishes.global_batch_size))
    if options.largest_model:
        largest = largest_model(job, wishes)
        if largest is None:
            raise ValueError("No model of this shape fits, not even 2 layers. Try a device with more memory.")
        told = f"the largest model of this shape has {largest.parameters:,} parameters"
        return _tell([told, *prediction_lines(largest.prediction, plan.course)])
    if options.fewest_gpus:
        fewest = fewest_gpus(job, wishes)
        if fewest is None:
            raise ValueError("This model fits on no number of these GPUs up to 65,536. Try --recompute full --offload.")
        return _tell([f"{fewest.layout.gpus} GPUs are enough", *prediction_lines(fewest, plan.course)])
    found = search(job, wishes)
    if options.json:
        given = [plain(candidate, plan.course) for candidate in found.best[: options.top]]
        print(
            json.dumps({"tried": found.tried, "fit": len(found.fitting), "lost": found.lost, "best": given}, indent=1)
        )
        return 0 if found.best else 1
    lines = found_lines(found, options.top, plan.course)
    if found.best:
        lines += _more(plan, options, found.best[0], found.best)
    _tell(lines)
    return 0 if found.best else 1


def _more(plan: Plan, options: argparse.Namespace, best: Prediction, fitting: list[Prediction]) -> list[str]:
    """What is told beside a search: other questions about its best, and how to launch it."""
    lines: list[str] = []
    if options.vs:
        other = _parser().parse_args(shlex.split(options.vs))
        one = search(plan.job, _wishes(other, other.global_batch_size or plan.wishes.global_batch_size))
        beside = one.best[0] if one.best else one.nearest
        lines += ["", *(against(best, beside) if beside else [])]
    if options.largest_micro_batch:
        widest = largest_micro_batch(plan.job, best.layout)
        told = f"{widest.layout.micro_batch_size}, with {gigabytes(widest.peak)}" if widest else "none"
        lines += ["", f"largest micro-batch of this layout: {told}"]
    if options.faster_network:
        lines.append("")
        for name, faster in faster_networks(plan.job, best.layout):
            gain = best.time.total / faster.time.total - 1
            lines += [f"{name:28} {seconds(faster.time.total)}, {gain:.1%} faster", *course_lines(faster, plan.course)]
    if options.html:
        options.html.write_text(draw_plan(best, fitting, plan.course), encoding="utf-8")
        lines += ["", f"The page is in {options.html}"]
    if options.probe:
        trials = probe(plan.model_flags, fitting[: options.probe], rounds=PROBE_ROUNDS, steps=PROBE_STEPS)
        lines += ["", *trial_lines(trials)]
    faults = problems(plan.model_flags, best.layout)
    lines += ["", *(["The trainer would refuse it:", *faults] if faults else ["on each node:"])]
    width = plan.job.practice.param_bytes
    return [*lines, launch_command(plan.model_flags, best.layout, plan.job.cluster, param_bytes=width)]


def calibrate(path: Path, processes: int) -> int:
    """Measure in processes of their own: this one never imports torch."""
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes))
    return subprocess.run([*launcher, "-m", "megalite.report.calibrate", str(path)], check=False).returncode


def _tell(lines: Sequence[str]) -> int:
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""C57 and C59: addresses, and machines without a GPU. A port that is taken fails inside torchrun: see docs/train.md."""

import subprocess

import pytest
import torch

from tests.e2e.test_launch import ROOT, TINY, TORCHRUN

JOB = ["pretrain_gpt.py", *TINY, "--train-iters", "2"]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_nccl_without_a_gpu_is_refused_in_one_line() -> None:
    found = run(*TORCHRUN, "2", *JOB, "--distributed-backend", "nccl")
    assert found.returncode != 0
    said = "pretrain_gpt.py: --distributed-backend nccl needs a GPU, and there is none. Use --distributed-backend gloo."
    assert said in found.stderr.splitlines()
    assert (
        "Traceback (most recent call last):\n  File"
        not in found.stderr.partition("ChildFailedError")[0].partition(said)[0]
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_flags_it_is_gloo_on_the_cpu_and_said_once() -> None:
    found = run(TORCHRUN[0], "--nproc-per-node", "2", "--master-addr", "::1", "--master-port", "29765", *JOB)
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("2 ranks joined by gloo, computing on cpu") == 1
    assert "step 2/2" in found.stdout


def test_two_standalone_jobs_at_once() -> None:
    jobs = [
        subprocess.Popen([*TORCHRUN, "2", *JOB], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        for _ in range(2)
    ]
    (first, _), (second, _) = (job.communicate(timeout=60) for job in jobs)
    assert [job.returncode for job in jobs] == [0, 0]
    losses = [[line.split("|")[1] for line in out.splitlines() if line.startswith("step ")] for out in (first, second)]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 2

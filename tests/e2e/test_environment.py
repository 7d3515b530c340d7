"""C57 and C59: addresses, and machines without a GPU. A port that is taken fails inside torchrun: see docs/train.md."""

import os
import signal
import subprocess
import time
from pathlib import Path

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
    assert found.stdout.count("2 ranks joined by gloo, computing on cpu, 1 thread each") == 1
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


def test_a_machine_that_cannot_look_up_its_own_name() -> None:
    """C57 (d): a network namespace with only loopback; torchrun's own look-up needs --local-addr (docs/train.md)."""
    namespace = ["unshare", "-n", "-u", "sh", "-c"]
    prepare = "ip link set lo up && hostname nowhere.invalid"
    if subprocess.run([*namespace, prepare], capture_output=True).returncode:
        pytest.skip("network namespaces need Linux, root and iproute2")
    job = " ".join([TORCHRUN[0], "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2", *JOB])
    found = run(*namespace, f"{prepare} && {job}")
    assert found.returncode == 0, found.stderr
    assert "step 2/2" in found.stdout


def test_a_killed_job_starts_again_on_its_port() -> None:
    """C57 (e)."""
    launch = [TORCHRUN[0], "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", "29766"]
    job = subprocess.Popen(
        [*launch, "pretrain_gpt.py", *TINY], stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
    )
    assert job.stdout is not None
    next(line for line in job.stdout if line.startswith("step "))
    ranks = subprocess.run(["pgrep", "-P", str(job.pid)], capture_output=True, text=True).stdout.split()
    os.kill(job.pid, signal.SIGKILL)
    job.wait()
    assert len(ranks) == 2
    for _ in range(100):
        left = [rank for rank in ranks if Path(f"/proc/{rank}").exists()]
        time.sleep(0.1 if left else 0)
    assert not left, "ranks outlive their launcher"
    found = run(*launch, *JOB)
    assert found.returncode == 0, found.stderr
    assert "step 2/2" in found.stdout

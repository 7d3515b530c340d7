"""Rules about what is kept elsewhere than on the device."""

from collections.abc import Iterator

from megalite.rules.job import Job, Rules


def _asked(job: Job) -> Iterator[str]:
    offload = job.config.offload
    given = {
        f"--optimizer-offload-fraction {offload.optimizer_offload_fraction:g}": offload.optimizer_offload_fraction < 1,
        "--overlap-cpu-optimizer-d2h-h2d": offload.overlap_cpu_optimizer_d2h_h2d,
        f"--optimizer-offload-device {offload.optimizer_offload_device}": offload.optimizer_offload_device != "cpu",
    }
    flags = [flag for flag, is_given in given.items() if is_given]
    if flags and not offload.optimizer_cpu_offload:
        verb = "needs" if len(flags) == 1 else "need"
        yield f"{' and '.join(flags)} {verb} --optimizer-cpu-offload. Give it, or leave them out."


def _folder(job: Job) -> Iterator[str]:
    offload = job.config.offload
    on_disk = offload.optimizer_offload_device == "disk"
    if on_disk and not offload.offload_dir:
        yield "--optimizer-offload-device disk needs --offload-dir. Give a folder on a local disk: --offload-dir away."
    if offload.offload_dir and not on_disk:
        yield (
            f"--offload-dir {offload.offload_dir} is for files, and --optimizer-offload-device cpu has none. Use "
            "--optimizer-offload-device disk."
        )


OFFLOAD_RULES: Rules = (
    (
        "--optimizer-cpu-offload --optimizer-offload-fraction --overlap-cpu-optimizer-d2h-h2d "
        "--optimizer-offload-device",
        _asked,
    ),
    ("--optimizer-offload-device --offload-dir", _folder),
)
"""Each rule with the flags that it reads."""

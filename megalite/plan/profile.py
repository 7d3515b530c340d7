"""What --calibrate measures of a machine, kept in a file: its figures, and the rates that software reaches there."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from megalite.plan.hardware import Device
from megalite.plan.rates import Rates


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One machine."""

    device: Device
    rates: Rates


def save_profile(path: Path, profile: Profile) -> None:
    """Write what --profile reads."""
    path.write_text(json.dumps(asdict(profile), indent=1) + "\n", encoding="utf-8")


def load_profile(path: Path) -> Profile:
    """Read a profile. ValueError where the file is none."""
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        return Profile(device=Device(**given["device"]), rates=Rates(**given["rates"]))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"--profile {path} is no profile of --calibrate: {error}. Make one with --calibrate."
        ) from error

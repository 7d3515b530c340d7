"""Train a GPT: `torchrun --nproc-per-node N pretrain_gpt.py --flag value ...`. Try --help and --dry-run."""

import sys
import time
import traceback

from megalite.checkpoint.stated import stated_model
from megalite.config.cli import parse
from megalite.config.from_checkpoint import with_model_of_checkpoint
from megalite.config.show import differences, help_text, to_toml
from megalite.environment import fail, launch
from megalite.plan.summary import summary
from megalite.validate import check, notices

PROGRAM = "pretrain_gpt.py"


def main() -> int:
    """Parse and check the settings, then train. The exit status is 2 where the settings are wrong."""
    here, parsed = launch(), with_model_of_checkpoint(parse(sys.argv[1:]), stated_model)
    first = here.rank == 0
    if "--help" in parsed.actions:
        return _tell(first, help_text(PROGRAM))

    faulty = {flag for problem in parsed.problems for flag in problem.flags}
    problems = parsed.problems + check(parsed.config, here.world_size, faulty=faulty)
    if problems:
        listed = "\n".join(f"  {number}. {problem}" for number, problem in enumerate(problems, 1))
        return fail(here, PROGRAM, f"{len(problems)} problem{'s' * (len(problems) > 1)}\n{listed}", status=2)

    if "--print-config" in parsed.actions:
        return _tell(first, to_toml(parsed.config))
    said = parsed.notices + notices(parsed.config, here.world_size)
    if "--dry-run" in parsed.actions:
        return _tell(first, "\n".join([*said, summary(parsed.config, parsed.origins, here.world_size)]))

    _tell(first, "\n".join([*differences(parsed.config, parsed.origins), *said]))
    from megalite.train.run import run  # Only now torch is imported: wrong settings fail in milliseconds.

    try:
        run(parsed.config, here)
    except BrokenPipeError:
        return _tell(first, "", status=1)
    except ConnectionError as error:  # Another rank failed: torchrun ends this one once the cause is on the screen.
        time.sleep(5)
        return fail(here, PROGRAM, str(error), status=1)
    except (ValueError, OSError, FloatingPointError) as error:
        return fail(here, PROGRAM, str(error), status=1)
    except KeyboardInterrupt:
        at = f"; checkpoints are in {parsed.config.checkpoint.save}" if parsed.config.checkpoint.save else ""
        return _tell(first, f"\nInterrupted{at}.", status=130)
    except Exception:
        return fail(here, PROGRAM, traceback.format_exc(), status=1)
    return 0


def _tell(first: bool, text: str, *, status: int = 0) -> int:
    try:
        if first:
            print(text, flush=True)
    except BrokenPipeError:  # The reader has seen enough: `| head`.
        sys.stdout = None  # type: ignore[assignment]  # Nothing is left to flush at exit.
    return status


if __name__ == "__main__":
    sys.exit(main())

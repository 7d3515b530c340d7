"""Convert a Hugging Face folder to a megalite checkpoint, or back, or read one of Megatron-LM.

Values keep their bits unless --dtype is given.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from megalite.checkpoint.hf.exporting import export_folder
from megalite.checkpoint.hf.families import FAMILIES
from megalite.checkpoint.hf.importing import import_folder
from megalite.checkpoint.megatron import find_megatron, import_megatron
from megalite.checkpoint.place import find, folder_name
from megalite.checkpoint.release import Imported
from megalite.config.model import Model
from megalite.config.schema import Config, Tokenizer
from megalite.config.show import to_flags, to_toml

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}


def main(arguments: list[str]) -> int:
    """Convert, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    kinds = ["hf", "megalite", "megatron"]
    parser.add_argument("--from", dest="source", choices=kinds, required=True, help="the kind of --load")
    parser.add_argument("--to", dest="target", choices=kinds[:2], required=True, help="the kind of --save")
    parser.add_argument("--load", type=Path, required=True, help="a Hugging Face folder, or a folder of checkpoints")
    parser.add_argument("--save", type=Path, required=True, help="the folder to write")
    parser.add_argument("--ckpt-step", type=int, help="the iteration to read instead of the latest")
    parser.add_argument(
        "--family", choices=FAMILIES, help="the model_type of an export; unset: whence it came, or fits"
    )
    parser.add_argument("--dtype", choices=DTYPES, help="round the tensors to this; unset: as they are stored")
    parser.add_argument("--max-file-gb", type=float, default=5.0, help="largest file of weights of an export (5)")
    parser.add_argument("--vocab-size", type=int, help="of Megatron-LM's tokenizer: rows above it are padding")
    parser.add_argument("--tokenizer", type=Path, help="a folder whose tokenizer goes along with Megatron-LM's weights")
    given = parser.parse_args(arguments)
    problem = _refused(given)
    if problem:
        parser.error(problem)
    try:
        if given.target == "hf":
            checkpoint = find(given.load, given.ckpt_step)
            size = max(int(given.max_file_gb * 1e9), 1)
            exported = export_folder(
                checkpoint, given.save, family=given.family, dtype=DTYPES.get(given.dtype), max_file_bytes=size
            )
            print(f"{checkpoint} is now a {exported.architecture} in {given.save}: {', '.join(exported.files)}.")
            print(f"{exported.tensors} tensors, {exported.parameters:,} parameters. {exported.tokenizer}")
        else:
            print(_import_report(_imported(given), given.load, given.save))
    except (ValueError, OSError) as error:
        print(f"convert_checkpoint: {error}", file=sys.stderr)
        return 1
    return 0


def _refused(given: argparse.Namespace) -> str:
    """What does not go together, or nothing."""
    if (given.source == "megalite") != (given.target == "hf"):
        return (
            f"--from {given.source} --to {given.target} converts nothing: from hf or megatron to megalite, or from "
            "megalite to hf"
        )
    needs = {
        "ckpt_step": (given.source != "hf", "--from megalite or megatron: a Hugging Face folder holds no iterations"),
        "family": (given.target == "hf", "--to hf: an import reads the family from config.json"),
        "vocab_size": (given.source == "megatron", "--from megatron: others say it themselves"),
        "tokenizer": (given.source == "megatron", "--from megatron: others bring their own"),
    }
    for name, (fits, needed) in needs.items():
        if getattr(given, name) is not None and not fits:
            return f"--{name.replace('_', '-')} needs {needed}"
    return ""


def _imported(given: argparse.Namespace) -> Imported:
    """Write the release checkpoint."""

    def files(model: dict[str, Any], tokenizer: dict[str, str] | None) -> dict[str, bytes]:
        return {"config.toml": to_toml(_config(model, tokenizer, given.save / folder_name(None))).encode()}

    dtype = DTYPES.get(given.dtype)
    if given.source == "hf":
        return import_folder(given.load, given.save, dtype=dtype, extra_files=files)
    return import_megatron(
        find_megatron(given.load, given.ckpt_step),
        given.save,
        vocab_size=given.vocab_size,
        tokenizer=given.tokenizer,
        dtype=dtype,
        extra_files=files,
    )


def _config(model: dict[str, Any], tokenizer: dict[str, str] | None, checkpoint: Path) -> Config:
    """The settings of a run that would have made this checkpoint, as far as they are known."""
    settings = {name: value for name, value in model.items() if name != "vocab_size"}
    if tokenizer is None:
        opened: dict[str, Any] = {"vocab_size": model["vocab_size"]}
    else:
        folder = checkpoint.absolute() / "tokenizer"
        opened = {name: value if name == "tokenizer_type" else str(folder / value) for name, value in tokenizer.items()}
    return Config(model=Model(**settings, seq_length=model["max_position_embeddings"]), tokenizer=Tokenizer(**opened))


def _import_report(imported: Imported, source: Path, root: Path) -> str:
    """What was converted, and the flags that train it."""
    config = _config(imported.model, imported.tokenizer, imported.directory)
    tokenizer = "it brought no tokenizer that megalite opens: give --tokenizer-type"
    if imported.tokenizer is not None:
        tokenizer = f"its tokenizer is a {imported.tokenizer['tokenizer_type']}"
    lines = " \\\n  ".join([f"--load {root} --finetune", *to_flags(config, "model", "tokenizer")])
    return (
        f"{source} is now the checkpoint {imported.directory}: {imported.tensors} tensors, "
        f"{imported.parameters:,} parameters; {tokenizer}.\nTo train it (--seq-length may be smaller):\n  {lines}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

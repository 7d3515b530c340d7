"""A Hugging Face folder straight into the running layout: no checkpoint is written in between."""

from collections.abc import Sequence

from megalite.checkpoint.foreign import fill
from megalite.checkpoint.hf.opening import OpenedFolder
from megalite.checkpoint.load import load_strictly, shapes_of
from megalite.checkpoint.strict import unfit
from megalite.mesh import Group
from megalite.shard import Shard


def load_folder(opened: OpenedFolder, shards: Sequence[Shard], world: Group) -> None:
    """Fill every shard's tensor, in place and in its own dtype; files are mapped, so that no tensor is held whole.

    Every rank calls this with its own shards, cut in any way. Raises ValueError on every rank as `load_strictly` does.
    """
    rows = {row.ours: row for row in opened.rows}

    def check() -> list[str]:
        return unfit(shapes_of(shards), {name: row.shape for name, row in rows.items()})

    def fill_all() -> None:
        for shard in shards:
            fill(shard, rows[shard.name], opened.tensors)

    load_strictly(opened.path, shards, world, held=rows, check=check, fill=fill_all)

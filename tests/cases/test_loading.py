"""What a run may be told to load, and what it says of the rest: folders of Hugging Face, a model without its flags,
a place that holds nothing, another order of the data."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.cases.fixtures import COURSE, PROBE, WHOLE, Materials
from tests.cases.harness import Outcome, Program
from tools import convert_checkpoint

LAYERS = "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --group-query-attention --num-query-groups 2"
STEPS = "--train-iters 3 --save-interval 1"


def data(materials: Materials) -> str:
    return f"{COURSE} --seq-length 32 --data-path {materials.corpus()} {WHOLE} {materials.tokenizer()}"


@pytest.fixture(scope="module")
def begun(program: Program, materials: Materials, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two of three iterations of a small model."""
    folder = tmp_path_factory.mktemp("begun")
    found = program("one", LAYERS, data(materials), STEPS, f"--exit-interval 2 --save {folder}/run")
    assert found.status == 0, found.said
    return folder / "run"


def resume(program: Program, materials: Materials, begun: Path, *words: str, layers: str = LAYERS) -> Outcome:
    return program("one", layers, data(materials), STEPS, f"--load {begun}", *words)


@pytest.mark.parametrize("layout", ["tp2-sp", "pp2"])
def test_a_hugging_face_folder_is_loaded_as_it_is(program, materials, layout: str) -> None:
    """The loss is that of transformers; --use-checkpoint-args spares all that describes the model."""
    source = materials.model()
    words = f"{data(materials)} {PROBE} --train-iters 1 --load {source} --use-checkpoint-args"
    found = program(layout, words)
    assert found.status == 0, found.said
    expected = materials.oracle().mean(materials.samples(materials.corpus(), 8, length=32))
    assert found.losses == pytest.approx([expected], rel=1e-5)
    assert f"settings of the model are those of {source}." in found.said[0]
    assert f"loaded the weights of {source}" in found.said[0]


def test_rows_that_no_text_comes_to_are_kept(program, materials, tmp_path: Path) -> None:
    """Qwen's vocabulary is larger than its tokenizer's. The rows above take part in the softmax, and come back."""
    source, rows = tmp_path / "hf", 333
    shutil.copytree(materials.model(vocab_size=rows), source)
    shutil.copy(materials.tok(320) / "tokenizer.json", source)
    course = f"{data(materials)} {STEPS} --use-checkpoint-args"
    kept = f"--pretrained-checkpoint {source} --save {tmp_path}/run --load {tmp_path}/run"
    first = program("tp2-sp", course, kept, "--exit-interval 1")
    assert first.status == 0, first.said[0]
    expected = materials.oracle(vocab_size=rows).mean(materials.samples(materials.corpus(), 8, length=32))
    assert first.losses == pytest.approx([expected], rel=1e-5)
    assert f"the vocabulary of {source} has 333 rows; the tokenizer uses 320 of them" in first.said[0]
    second, whole = program("one", course, kept), program("one", course, f"--load {source}")
    assert first.losses + second.losses == pytest.approx(whole.losses, rel=1e-5)

    probe = f"{data(materials)} {PROBE} --train-iters 1 --use-checkpoint-args"
    still = program("tp2-sp", probe, f"--load {source} --save {tmp_path}/still --save-interval 1")
    assert still.status == 0, still.said[0]
    back = f"--from megalite --to hf --load {tmp_path}/still --save {tmp_path}/back"
    assert convert_checkpoint.main(back.split()) == 0
    before, after = (load_file(folder / "model.safetensors") for folder in (source, tmp_path / "back"))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)

    other = program("one", course, f"--load {source} {materials.tokenizer(310)}")
    assert other.status == 1 and "vocab_size: 310 here, 333 there" in other.said[0]
    assert "more rows are kept where the folder holds this tokenizer" in other.said[0]


def test_settings_that_differ_from_config_json_are_listed_together(program, materials) -> None:
    source = materials.model()
    model = (
        "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --ffn-hidden-size 172 --position-embedding-type rope"
    )
    given = f"{model} --swiglu --disable-bias-linear --untie-embeddings-and-output-weights --normalization RMSNorm"
    found = program("one", given, data(materials), f"--rotary-base 500 --norm-epsilon 1e-3 --load {source}")
    assert found.status == 1
    assert "rotary_base: 500 here, 10000 there" in found.said[0]
    assert "norm_epsilon: 0.001 here, 1e-06 there" in found.said[0]
    known = program("one", data(materials), f"--rotary-base 500 --num-layers 3 --load {source} --use-checkpoint-args")
    assert known.status == 2
    assert f"contradict {source}: num_layers is 3, not 4; rotary_base is 500, not 10000." in known.said[0]


class Runs:
    """Whose pickle would leave a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> object:
        return Path.touch, (self.mark,)


def pickle_that_runs(folder: Path) -> str:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({**tensors, "x": Runs(folder / "mark")}, folder / "pytorch_model.bin")
    return "cannot be read as a file of torch.save"


def index_that_leads_out(folder: Path) -> str:
    names = load_file(folder / "model.safetensors")
    listed = {"weight_map": dict.fromkeys(names, "../model.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(listed))
    return "names files outside its folder"


def header_that_lies(folder: Path) -> str:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    return "cannot be read as safetensors"


def tensor_of_another_shape(folder: Path) -> str:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(65)
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors")
    return r"missing: lm_head.weight\n.*wrong shape: model.norm.weight"


@pytest.mark.parametrize("spoil", [pickle_that_runs, index_that_leads_out, header_that_lies, tensor_of_another_shape])
def test_a_folder_that_misleads_is_refused(program, materials, tmp_path: Path, spoil) -> None:
    folder = tmp_path / "hf"
    shutil.copytree(materials.model(), folder)
    refused = spoil(folder)
    found = program("one", data(materials), f"--load {folder} --use-checkpoint-args")
    assert found.status == 1
    assert re.search(refused, found.said[0]), found.said[0]
    assert not (folder / "mark").exists()


def test_the_model_of_a_checkpoint_need_not_be_repeated(program, materials, begun: Path) -> None:
    whole = resume(program, materials, begun)
    spared = resume(program, materials, begun, "--use-checkpoint-args", layers="")
    assert whole.status == spared.status == 0, spared.said
    assert spared.losses == whole.losses and len(whole.losses) == 1
    other = resume(program, materials, begun, "--use-checkpoint-args --hidden-dropout 0.5 --seq-length 16", layers="")
    assert other.status == 1 and "--seq-length: 16 here, 32 there" in other.said[0]  # the data, not the model


def test_a_place_that_holds_nothing(program, materials, begun: Path, tmp_path: Path) -> None:
    empty = f"--load {tmp_path}/empty"
    alone = program("one", LAYERS, data(materials), STEPS, empty)
    assert alone.status == 1
    assert "leave --load out, or give --save the same folder" in alone.said[0]
    strict = program(
        "one", LAYERS, data(materials), STEPS, empty, f"--save {tmp_path}/empty --exit-on-missing-checkpoint"
    )
    assert strict.status == 1 and "there is no checkpoint in" in strict.said[0]
    unnamed = program("one", data(materials), STEPS, empty, "--use-checkpoint-args")
    assert unnamed.status == 2 and "--use-checkpoint-args finds no model. there is no checkpoint" in unnamed.said[0]
    first = program("one", data(materials), STEPS, empty, f"--save {tmp_path}/empty --use-checkpoint-args")
    assert first.status == 2 and "For a first start give --num-layers, --hidden-size, --num-att" in first.said[0]
    pretrained = f"{empty} --save {tmp_path}/empty --pretrained-checkpoint"
    nowhere = program("one", LAYERS, data(materials), STEPS, f"{pretrained} {tmp_path}/nowhere")
    assert nowhere.status == 1 and "--pretrained-checkpoint: there is no checkpoint in" in nowhere.said[0]

    first = program("one", LAYERS, data(materials), STEPS, f"{pretrained} {begun} --exit-interval 1")
    assert f"loaded the weights of {begun}" in first.said[0] and first.status == 0, first.said
    tuned = program("one", LAYERS, data(materials), STEPS, f"--load {begun} --finetune")
    assert first.losses == tuned.losses[:1]
    second = program("one", LAYERS, data(materials), STEPS, f"{pretrained} {begun} ")
    assert f"loaded {tmp_path}/empty/iter_0000001" in second.said[0]
    assert second.losses == tuned.losses[1:]


def test_the_first_of_several_starts_may_ask_for_the_model_of_the_checkpoint(program, materials, tmp_path) -> None:
    words = f"{data(materials)} {STEPS} --load {tmp_path}/run --save {tmp_path}/run --use-checkpoint-args"
    first = program("one", LAYERS, words, "--exit-interval 1")
    assert first.status == 0, first.said[0]
    assert "--use-checkpoint-args: the settings of the model are those of the flags. there is no" in first.said[0]
    second = program("one", words)
    assert second.status == 0 and f"settings of the model are those of {tmp_path}/run/iter_0000001" in second.said[0]
    assert first.losses + second.losses == program("one", LAYERS, data(materials), STEPS).losses


def test_an_iteration_may_be_named(program, materials, begun: Path) -> None:
    found = resume(program, materials, begun, "--ckpt-step 1")
    assert found.status == 0 and found.losses[1:] == resume(program, materials, begun).losses
    gone = resume(program, materials, begun, "--ckpt-step 7")
    assert gone.status == 1 and "iteration 7 was asked for" in gone.said[0]


def test_hashes_are_checked_before_anything_is_loaded(program, materials, begun: Path, tmp_path: Path) -> None:
    whole = resume(program, materials, begun, "--verify-integrity")
    assert whole.status == 0 and "--verify-integrity: all files are as they were saved" in whole.said[0]
    shutil.copytree(begun, tmp_path / "spoilt")
    [file] = (tmp_path / "spoilt/iter_0000002").glob("optimizer-*")
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    checked = resume(program, materials, tmp_path / "spoilt", "--verify-integrity")
    assert checked.status == 1 and f"damaged file: {file.name} is not the file that was saved" in checked.said[0]
    assert resume(program, materials, tmp_path / "spoilt").status == 0


ORDERS = {
    "--seed 5": "--seed: 5 here, 1234 there",
    "--split 50,50,0": "--split: documents 0 to 99 of",
    "--dataloader-type cyclic": "--dataloader-type: cyclic here, single there",
    "--seq-length 16 --max-position-embeddings 32": "--seq-length: 16 here, 32 there",
}


@pytest.mark.parametrize("words", ORDERS)
def test_another_order_of_the_data_is_noticed(program, materials, begun: Path, words: str) -> None:
    refused = resume(program, materials, begun, words)
    assert refused.status == 1
    assert ORDERS[words] in refused.said[0] and "come again or never" in refused.said[0]
    if words.startswith("--seed"):
        allowed = resume(program, materials, begun, words, "--allow-other-data")
        assert (
            allowed.status == 0 and "--allow-other-data: 16 samples were consumed in another order" in allowed.said[0]
        )
        tuned = resume(program, materials, begun, words, "--finetune")
        assert tuned.status == 0 and len(tuned.losses) == 3


def test_other_documents_are_noticed_and_a_moved_corpus_is_not(program, materials, begun: Path, tmp_path: Path) -> None:
    corpus = materials.corpus()
    for ending in (".bin", ".idx"):
        shutil.copy(f"{corpus}{ending}", tmp_path / f"moved{ending}")
    moved = resume(program, materials, begun, f"--data-path {tmp_path}/moved")
    assert moved.status == 0 and moved.losses == resume(program, materials, begun).losses
    words = materials.documents("words", [[7] * 40] * 200)
    other = resume(program, materials, begun, f"--data-path {words}")
    assert other.status == 1 and f"--data-path: {words} here, {corpus} there" in other.said[0]

"""`steelyard checkpoint`: what it prints about good and damaged folders, and its exit code."""

import json

import numpy
import pytest
import small_folders
import small_gguf
import tiny_models

from steelyard.tools.cli import main

KINDS = {kind.name: kind for kind in small_folders.KINDS}
QUERY, GATE = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.gate_proj"


def look(folder, capsys, *flags):
    """The exit code and the JSON that the command prints."""
    code = main(["checkpoint", str(folder), "--json", *flags])
    return code, json.loads(capsys.readouterr().out)


@pytest.fixture
def change(tmp_path):
    """Writes a folder of one file after changing its tensors."""

    def changed(name, edit):
        small_folders.write_folder(tmp_path, KINDS[name])
        (file,) = tmp_path.glob("*.safetensors")
        tensors = small_folders.tensors_of(KINDS[name])
        edit(tensors)
        file.write_bytes(small_folders.file_of(tensors))
        return tmp_path

    return changed


def change_config(folder, edit):
    config = json.loads((folder / "config.json").read_text())
    edit(config)
    (folder / "config.json").write_text(json.dumps(config))


def test_layers_are_grouped_with_formats_and_bytes(tmp_path, capsys):
    small_folders.write_folder(tmp_path, KINDS["modelopt-nvfp4"])
    code, found = look(tmp_path, capsys)
    rows = {row["layers"]: row for row in found["layers"]}
    assert (code, found["method"], found["problems"], found["notes"]) == (0, "modelopt", [], [])
    assert len(rows) == len(tiny_models.LAYERS)
    row = rows["model.layers.*.mlp.gate_proj"]
    assert (row["count"], row["weights"], row["shape"]) == (1, "e2m1 1x16 static", [160, 64])
    assert row["inputs"] == "e2m1 1x16 static"
    assert row["bytes"] == 160 * 64 // 2 + 160 * 64 // 16 + 4
    elements = 4 * 64 * 64 + 3 * 160 * 64
    assert found["bits_per_weight"] == pytest.approx(8 * (elements / 2 + elements / 16 + 7 * 4) / elements)
    assert found["plain"] == {"BF16": {"count": 5, "bytes": 2 * (2 * 48 * 64 + 3 * 64)}}
    assert found["others"] == {"count": 7, "bytes": 28}
    assert found["bytes"] == elements // 2 + elements // 16 + 28 + 2 * (2 * 48 * 64 + 3 * 64) + 28


def test_each_layer_has_a_row_if_asked_for(tmp_path, capsys):
    small_folders.write_folder(tmp_path, KINDS["ct-fp8-dynamic"])
    _, found = look(tmp_path, capsys, "--all")
    assert {row["layers"] for row in found["layers"]} == set(tiny_models.LAYERS)
    assert {(row["weights"], row["inputs"]) for row in found["layers"]} == {("e4m3 row", "e4m3 row")}


def test_gguf_files_are_described_as_folders_are(tmp_path, capsys):
    kind = small_gguf.KINDS[0]
    small_gguf.write_folder(tmp_path, kind)
    code, found = look(tmp_path / small_gguf.FILE, capsys, "--all")
    assert (code, found["method"], found["problems"]) == (0, "gguf", [])
    rows = {row["layers"]: row for row in found["layers"]}
    assert set(rows) == set(tiny_models.LAYERS)
    row = rows["model.layers.0.mlp.down_proj"]
    assert (row["weights"], row["inputs"], row["shape"]) == ("e2m1 1x32", "", [64, 160])
    assert row["bytes"] == 64 * 160 // 32 * 17
    (tmp_path / small_gguf.FILE).write_bytes(b"GGUF")
    code, found = look(tmp_path, capsys)
    assert code == 1
    assert "header of model.gguf must end within the file" in found["problems"][0]["text"]


def test_the_table_has_totals(tmp_path, capsys):
    small_folders.write_folder(tmp_path, KINDS["ct-fp8"])
    assert main(["checkpoint", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line.split() for line in lines if line.startswith("model.layers.*.mlp.up_proj")]
    assert row == [
        "model.layers.*.mlp.up_proj",
        "1",
        "e4m3",
        "tensor",
        "e4m3",
        "tensor",
        "static",
        "160x64",
        "10.0",
        "KiB",
    ]
    assert "quantized  7 weights, 46.0 KiB, 8.00 bits per weight on average" in lines


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_nothing_is_wrong_with_whole_folders(kind, tmp_path, capsys):
    small_folders.write_folder(tmp_path, kind)
    code, found = look(tmp_path, capsys)
    assert (code, found["problems"]) == (0, [])


def replace(name, array):
    return lambda tensors: tensors.update({name: array})


DAMAGES = {
    "missing scale": ("ct-mxfp8", lambda tensors: tensors.pop(f"{QUERY}.weight_scale"), f"{QUERY}.weight_scale"),
    "missing codes": ("ct-fp8-dynamic", lambda tensors: tensors.pop(f"{QUERY}.weight"), f"{QUERY}.weight, its codes"),
    "missing second level": (
        "ct-nvfp4",
        lambda tensors: tensors.pop(f"{QUERY}.weight_global_scale"),
        f"{QUERY}.weight_global_scale",
    ),
    "wrong shape": (
        "modelopt-mxfp8",
        replace(f"{QUERY}.weight_scale", numpy.zeros((64, 3), numpy.uint8)),
        f"{QUERY}.weight_scale in model.safetensors must have shape [64, 2]",
    ),
    "wrong dtype": (
        "modelopt-mxfp8",
        replace(f"{QUERY}.weight_scale", numpy.zeros((64, 2), numpy.float32)),
        f"{QUERY}.weight_scale in model.safetensors must be U8 or F8_E8M0, got F32",
    ),
    "zero": (
        "modelopt-fp8",
        replace(f"{QUERY}.weight_scale", numpy.zeros((), numpy.float32)),
        f"{QUERY}.weight_scale in model.safetensors must be positive and finite, got 0.0",
    ),
    "infinite": (
        "modelopt-fp8-rows",
        replace(f"{QUERY}.weight_scale", numpy.full(64, numpy.inf, numpy.float32)),
        "must be positive and finite, got inf at [0, 0] and 64 such in all",
    ),
    "NaN": (
        "ct-mxfp8",
        replace(f"{QUERY}.weight_scale", numpy.full((64, 2), 255, numpy.uint8)),
        f"{QUERY}.weight_scale in model.safetensors must be numbers, which byte 255 is not",
    ),
    "wrong scale of an input": (
        "modelopt-fp8",
        replace(f"{QUERY}.input_scale", numpy.full((), -1, numpy.float32)),
        f"{QUERY}.input_scale in model.safetensors must be one positive, finite number",
    ),
    "different second levels": (
        "ct-nvfp4",
        replace(f"{GATE}.weight_global_scale", numpy.full(1, 3, numpy.float32)),
        f"{GATE}.weight_global_scale in model.safetensors, model.layers.0.mlp.up_proj.weight_global_scale in "
        "model.safetensors should be one number, got [3.0, 321.5]",
    ),
    "unexplained": (
        "modelopt-fp8",
        replace("model.layers.0.mlp.other_scale", numpy.ones((), numpy.float32)),
        "model.layers.0.mlp.other_scale in model.safetensors (F32 []) is not explained by config.json",
    ),
}


@pytest.mark.parametrize(("name", "edit", "text"), DAMAGES.values(), ids=DAMAGES)
def test_damage_is_found_once(name, edit, text, change, capsys):
    code, found = look(change(name, edit), capsys)
    assert code == 1
    (problem,) = found["problems"]
    assert text in problem["text"]


def test_all_that_is_wrong_is_found(change, capsys):
    def edit(tensors):
        tensors.pop(f"{QUERY}.weight_scale")
        tensors[f"{GATE}.weight_scale"] = numpy.zeros((), numpy.float32)

    folder = change("modelopt-fp8", edit)
    assert main(["checkpoint", str(folder)]) == 1
    wrong = [line for line in capsys.readouterr().out.splitlines() if line.startswith("wrong: ")]
    assert [line.split(": ")[1] for line in wrong] == [QUERY, GATE]


def test_a_missing_shard_is_found(tmp_path, capsys):
    small_folders.write_folder(tmp_path, KINDS["modelopt-nvfp4"])
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    code, found = look(tmp_path, capsys)
    assert code == 1
    assert found["problems"][0]["place"] == "model-00002-of-00002.safetensors"
    assert all("index" not in problem["text"] for problem in found["problems"][1:])


def test_an_ignored_layer_with_scales_is_noted(tmp_path, capsys):
    small_folders.write_folder(tmp_path, KINDS["ct-mxfp8"])
    change_config(tmp_path, lambda config: config["quantization_config"]["ignore"].append("re:.*q_proj"))
    code, found = look(tmp_path, capsys)
    assert (code, len(found["notes"])) == (0, 1)
    assert found["notes"][0].startswith(QUERY)


def test_a_config_that_says_nothing_right_does_not_stop_it(tmp_path, capsys):
    small_folders.write_folder(tmp_path, KINDS["ct-mxfp8"])
    (tmp_path / "config.json").write_text("{")
    code, found = look(tmp_path, capsys)
    assert code == 1
    assert found["problems"][0]["place"] == "config.json"
    assert found["plain"]["BF16"]["count"] == 5

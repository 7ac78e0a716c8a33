"""Hugging Face's Trainer trains, evaluates, saves and resumes a net, and a trained net generates."""

import inspect
import json
from pathlib import Path

import pytest
import torch
from small_llama import make_small_llama
from transformers import LlamaForCausalLM, Trainer, TrainingArguments

import steelyard

# One worker trains the net that several tests look at.
pytestmark = pytest.mark.xdist_group("hugging_face_trainer")
VOCABULARY, LENGTH = 24, 16


class Counting(torch.utils.data.Dataset):
    """Sequences that count up from a start, and a column that no forward takes."""

    def __len__(self) -> int:
        return VOCABULARY

    def __getitem__(self, start: int) -> dict:
        tokens = (torch.arange(LENGTH) + start) % VOCABULARY
        return {"input_ids": tokens, "labels": tokens, "origin": f"row {start}"}


def make_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return make_small_llama(vocab_size=VOCABULARY, intermediate_size=128, pad_token_id=None, eos_token_id=None)


def make_trainer(net, folder: Path, steps: int, **others) -> Trainer:
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        seed=0,
        **{"save_strategy": "no"} | others,
    )
    return Trainer(model=net, args=arguments, train_dataset=Counting(), eval_dataset=Counting())


def losses(trainer: Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A trainer whose net has learned to count."""
    trainer = make_trainer(steelyard.compile(make_model(), "mxfp8"), tmp_path_factory.mktemp("trained"), 40)
    trainer.train()
    return trainer


def test_columns_are_chosen_by_the_signature_of_the_model(trained):
    net = trained.model
    assert inspect.signature(type(net).forward) == inspect.signature(LlamaForCausalLM.forward)
    assert set(next(iter(trained.get_train_dataloader()))) == {"input_ids", "labels"}


def test_training_follows_the_model_in_high_precision(trained, tmp_path):
    plain = make_trainer(make_model(), tmp_path, 4)
    plain.train()
    found, expected = losses(trained), losses(plain)
    assert len(found) == 40
    assert found[:4] == pytest.approx(expected, rel=0.03)
    assert found[:4] != expected
    assert found[-1] < 0.05 * found[0]


OPTIONS = [
    {"bf16": True},
    {"gradient_checkpointing": True},
    {"gradient_accumulation_steps": 2},
    {"torch_compile": True},
]


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: next(iter(options)))
def test_options_of_training_work_as_for_the_model(options, tmp_path):
    plain = {} if "torch_compile" in options else options
    trainers = [
        make_trainer(steelyard.compile(make_model(), "mxfp8"), tmp_path, 3, **options),
        make_trainer(make_model(), tmp_path, 3, **plain),
    ]
    for trainer in trainers:
        trainer.train()
    found, expected = map(losses, trainers)
    assert len(found) == 3
    assert found == pytest.approx(expected, rel=0.03)
    net = trainers[0].model
    assert {row.kind for row in net.explain().rows if row.is_quantized} == {"fprop", "dgrad", "wgrad"}


def test_evaluation_is_the_loss_of_a_call(trained):
    net = trained.model.eval()
    rows = [Counting()[start] for start in range(VOCABULARY)]
    batch = {name: torch.stack([row[name] for row in rows]) for name in ("input_ids", "labels")}
    with torch.no_grad():
        expected = net(**batch).loss.item()
    assert trained.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-4)
    assert {row.kind for row in net.explain().rows if row.is_quantized} == {"fprop", "dgrad", "wgrad"}


def test_a_trained_net_generates(trained):
    net = trained.model.eval()
    generated = net.generate(torch.tensor([[3, 4, 5]]), max_new_tokens=6, do_sample=False)
    assert generated.tolist() == [[3, 4, 5, 6, 7, 8, 9, 10, 11]]


def test_training_resumes_from_a_checkpoint_with_the_same_bits(tmp_path):
    whole = make_trainer(steelyard.compile(make_model(), "mxfp8"), tmp_path / "whole", 4)
    whole.train()
    first = make_trainer(
        steelyard.compile(make_model(), "mxfp8"), tmp_path / "parts", 2, save_steps=2, save_strategy="steps"
    )
    first.train()
    net = steelyard.compile(make_model(), "mxfp8")
    second = make_trainer(net, tmp_path / "parts", 4)
    second.train(resume_from_checkpoint=str(tmp_path / "parts" / "checkpoint-2"))
    assert losses(second)[-2:] == losses(whole)[-2:]
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), whole.model.parameters(), strict=True))


def test_a_saved_net_is_a_checkpoint_of_the_plain_model(trained, tmp_path):
    trained.save_model(str(tmp_path))
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    loaded = LlamaForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is LlamaForCausalLM
    expected = dict(trained.model.named_parameters())
    assert {name for name, _ in loaded.named_parameters()} == set(expected)
    assert all(torch.equal(parameter, expected[name]) for name, parameter in loaded.named_parameters())

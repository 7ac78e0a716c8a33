"""A LightningModule that holds a net: Lightning's Trainer fits, validates, checkpoints and resumes it."""

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import steelyard


class Classifier(lightning.LightningModule):
    """A compiled MLP that learns which of its inputs is largest."""

    def __init__(self, recipe: str = "mxfp8"):
        super().__init__()
        torch.manual_seed(0)
        self.net = steelyard.compile(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8)), recipe)
        self.losses: list[float] = []

    def training_step(self, batch, index):
        loss = self._loss(batch)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, index):
        self.log("validation_loss", self._loss(batch))

    def _loss(self, batch):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def batches() -> DataLoader:
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(x, x[:, :8].argmax(1)), batch_size=16)


def make_trainer(folder, epochs: int, **options) -> lightning.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    options = quiet | {"enable_checkpointing": False} | options
    return lightning.Trainer(accelerator="cpu", max_epochs=epochs, default_root_dir=folder, **options)


def test_fit_trains_and_validates(tmp_path):
    module = Classifier()
    trainer = make_trainer(tmp_path, 10)
    trainer.fit(module, batches(), batches())
    assert len(module.losses) == 40
    assert module.losses[-1] < 0.5 * module.losses[0]
    with torch.no_grad():
        expected = torch.stack([module._loss(batch) for batch in batches()]).mean().item()
    assert trainer.validate(module, batches(), verbose=False)[0]["validation_loss"] == pytest.approx(expected, rel=1e-5)
    assert {row.kind for row in module.net.explain().rows if row.is_quantized} >= {"fprop", "wgrad"}


def test_mixed_precision_runs_gemms_in_bfloat16(tmp_path):
    module = Classifier()
    make_trainer(tmp_path, 1, precision="bf16-mixed").fit(module, batches())
    gemms = [line for line in module.net.ir("raised").splitlines() if "scaled.matmul fprop" in line]
    assert gemms
    assert all(line.endswith(",bf16>") for line in gemms)


@pytest.mark.parametrize("recipe", ["mxfp8", "fp8-delayed"])
def test_a_checkpoint_resumes_with_the_same_bits(recipe, tmp_path):
    whole = Classifier(recipe)
    make_trainer(tmp_path, 2).fit(whole, batches())
    saving = ModelCheckpoint(dirpath=tmp_path, filename="epoch")
    make_trainer(tmp_path, 1, enable_checkpointing=True, callbacks=[saving]).fit(Classifier(recipe), batches())
    resumed = Classifier(recipe)
    make_trainer(tmp_path, 2).fit(resumed, batches(), ckpt_path=str(tmp_path / "epoch.ckpt"), weights_only=False)
    assert resumed.losses == whole.losses[4:]
    expected = whole.state_dict()
    assert resumed.state_dict().keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in resumed.state_dict().items())


def test_a_checkpoint_is_loaded_into_a_new_module(tmp_path):
    module = Classifier()
    trainer = make_trainer(tmp_path, 1)
    trainer.fit(module, batches())
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    loaded = Classifier.load_from_checkpoint(tmp_path / "last.ckpt")
    x, _ = next(iter(batches()))
    with torch.no_grad():
        assert torch.equal(loaded.net(x), module.net(x))

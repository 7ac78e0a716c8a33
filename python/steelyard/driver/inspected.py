"""What a net says of itself: its IR, its GEMMs, its memory and times, and what low precision does to it."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from steelyard.driver import inspection
from steelyard.driver.attributing import attribute_batches
from steelyard.driver.explanation import Explanation
from steelyard.driver.measuring import Compared, Loss, Measuring, measure_batches
from steelyard.driver.memory import Memory
from steelyard.driver.module_state import ModuleState
from steelyard.driver.profiles import Profile, profile, run_with_backward
from steelyard.driver.reporting import Steps, write_report_of
from steelyard.insight.logs import make_write, scalars
from steelyard.insight.report import Report
from steelyard.insight.results import Attribution


class InspectedModule(torch.nn.Module):
    """What can be asked of a compiled module."""

    _steelyard: ModuleState

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """A context whose calls leave buffers, state and random numbers as they were."""
        before = [(buffer, buffer.clone()) for buffer in self.buffers()]
        state = self._steelyard.backend.state
        tensors = dict(state.tensors)
        before += [(tensor, tensor.clone()) for tensor in tensors.values()]
        devices = sorted({p.device.index for p in self.parameters() if p.is_cuda})
        with torch.random.fork_rng(devices=devices):
            try:
                yield
            finally:
                state.tensors = tensors
                for tensor, value in before:
                    tensor.data.copy_(value)

    def ir(self, stage: str, layer: str | None = None) -> str:
        """The IR of a stage: traced, raised, quantized, fused, partitioned or lowered.

        Several graphs are nested modules in one. A graph that several layers share is there once, with the names of the
        first layer, and a `scaled.call_block` for each of them. `layer` is a pattern of layer names, such as
        "blocks.0.*": only the ops of these layers are shown, with their own names, and with the constants and
        declarations that they read. A net for CUDA also has the generated kernels: gpu, nvvm and ptx, one module per
        kernel. A net for the CPU has its tapes: the native steps that each function runs, with their registers.
        """
        return inspection.print_ir(self._steelyard.backend, stage, layer)

    def ir_dump(self, folder: str | Path) -> list[Path]:
        """Write the IR after every pass, and the program, of every graph into numbered files; returns their paths.

        A graph that several layers share is written once, with the names of the first.
        """
        return inspection.dump_ir(self._steelyard.backend, folder)

    def explain(self, *, ops: bool = False) -> Explanation:
        """One row per GEMM: its formats and kernel, or why it stayed in high precision.

        Ends with the shares of FLOPs and of bytes of parameters that are quantized. With `ops`, the ops that torch runs
        beside the kernels follow, with their shares of the time of the last call that `profile` measured.
        """
        parameters = dict(self.named_parameters(remove_duplicate=False))
        return inspection.explain(self._steelyard.backend, parameters, ops)

    def profile(
        self, *arguments, calls: int = 10, loss: Callable[[Any], torch.Tensor] | None = None, **keywords
    ) -> Profile:
        """What each step of a call with these arguments takes, from real runs: a table by kernel and layer.

        `rows` are its data, and `save_trace(path)` writes the steps of one call for Chrome's tracing page. A step takes
        the median of `calls` calls. With `loss`, a function from what the net returns to a number, the backward runs,
        too. Nothing of the net changes.
        """
        step = partial(self, *arguments, **keywords)
        if loss is not None:
            step = partial(run_with_backward, self, loss, arguments, keywords)
        with self._unchanged():
            self._steelyard.backend.profiled = profile(step, calls)
        return self._steelyard.backend.profiled

    def memory(self) -> Memory:
        """Bytes that the net holds: parameters, quantized weights, workspace, state, and what the backward needs."""
        state = self._steelyard
        steps = state.traced_steps
        return inspection.measure_memory(state.backend, self.parameters(), 0 if steps is None else steps.nbytes())

    def measure(
        self,
        batches: Iterable[Any] | None = None,
        *,
        every: int = 1,
        loss: Loss | None = None,
        backward: bool = False,
        logits: bool | None = None,
        output: bool = False,
        exact: torch.nn.Module | None = None,
    ) -> Any:
        """Measure what each GEMM loses: of each quantize, of each product, and of the whole model.

        With `batches`, calls the net and its model with each, and returns a `Measurement`; gradients, buffers, state
        and random numbers stay as they were. A batch is a tuple of arguments, a dict of keywords, or one argument.
        Without, returns a context manager in which every so many calls of the net are measured, backward included, and
        whose `result` is the `Measurement` so far:

            with net.measure(every=10) as m:
                train(net)
            m.result.rows

        Args:
            batches: What to call the net with.
            every: In the context: measure the first of so many calls.
            loss: From what the model returns, and the batch, to the loss. By default `.loss` of what it returns.
            backward: Run the backward of the loss too, so that gradients are measured: those of each GEMM, and of each
                parameter beside what they are in the model itself.
            logits: Whether the model's output is logits, so that distributions are compared. By default it is if what
                it returns has `.logits`.
            output: In the context: also call the model, in high precision and without gradients, with what each
                measured call is given, so that the result has the error of the output, and with it the KL divergence
                and the difference of the losses. With batches, that is always so.
            exact: With batches: the model whose output is the exact one, as before `steelyard.tune`. By default that
                of the net.
        """
        if batches is None:
            return Measuring(self, every, compared=Compared(loss, logits) if output else None)
        return measure_batches(self, batches, loss=loss, backward=backward, logits=logits, exact=exact)

    def attribute(
        self,
        batches: Iterable[Any],
        *,
        logits: bool | None = None,
        estimate: bool = True,
        layers: int | None = None,
        path: str | Path | None = None,
    ) -> Attribution:
        """What each layer adds to the error of the whole model: with only this layer quantized, and with all but this.

        The error is the KL divergence to the model's own output if that is logits, otherwise the relative error. One
        program runs all this, in which each layer has a switch: two forwards per layer and batch. Beside it stands what
        one backward per batch predicts, and how well the two agree.

        Args:
            batches: What to call the net with, as for `measure`.
            logits: Whether the output is logits, as for `measure`.
            estimate: Whether to run a backward, too.
            layers: Run only so many layers alone, for a large model: half of them are those with the largest estimates,
                the others are spread over the rest. All have estimates, and the agreement is that of those that ran.
            path: A JSON file that keeps what was found so far: a run that was interrupted goes on from there.
        """
        return attribute_batches(self, batches, logits=logits, estimate=estimate, layers=layers, path=path)

    def log_to(self, writer: Any, *, every: int = 10, first_step: int = 0) -> Measuring:
        """Log amaxes, scales, saturation and errors of each layer while the net trains.

        Every so many calls of the net one is measured, and its scalars are written when the next one begins, or
        when the result is closed: `steelyard/<layer>/<kind>/<role>/amax` and so on, as `docs/insight.md` lists them.

        Args:
            writer: A `SummaryWriter` of TensorBoard, something with a `log(dict, step=)` like wandb's, or the path of a
                CSV file with the columns step, name and value.
            every: How many calls there are from one that is measured to the next.
            first_step: The number of the next call, of a run that goes on.

        Returns:
            What ends it by `close()`, or as a context manager.
        """
        write = make_write(writer)
        return Measuring(self, every, lambda step, found: write(first_step + step, scalars(found))).open()

    def report(
        self,
        path: str | Path,
        batches: Iterable[Any] | None = None,
        *,
        loss: Loss | None = None,
        backward: bool = False,
        logits: bool | None = None,
        exact: torch.nn.Module | None = None,
        attribute: bool | int = False,
    ) -> Report:
        """Write a page that shows what low precision does to the model, and JSON of the same name beside it.

        The page is one file that needs no network: what is quantized, what that costs and gains, the model as a map
        coloured by error, each GEMM with its histograms, formats, kernel and source line, and the IR of every stage.
        `docs/report.md` shows it and documents the JSON. It needs the package bokeh:
        `pip install 'steelyard[report]'`.

        Args:
            path: The page to write, as in `report.html`.
            batches: What to call the net with, as `measure` takes them. The first is also timed, beside the model.
                Without batches, the report is of what was compiled before, and says nothing of errors and times.
            loss: As `measure` takes it.
            backward: Run the backward of the loss, too, so that gradients are measured and training steps are timed.
            logits: As `measure` takes it.
            exact: As `measure` takes it; this model is then timed, too.
            attribute: Also find which layers cause the error of the whole model, as `attribute` does: two forwards per
                layer and batch. A number is how many layers run alone, as `attribute` takes it.
        """
        return write_report_of(self, path, batches, Steps(loss, backward, logits, exact), attribute=attribute)

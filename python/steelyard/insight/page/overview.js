// The figures at the top, and what deserves a look.
function outputCard(report) {
  const output = report.output;
  if (!output) return figureCard("Output error", DASH, "", null, report.steps ? "the outputs are no tensors" : "nothing was measured");
  const byKl = known(output.kl_divergence);
  return figureCard(
    byKl ? "Output error (KL)" : "Output error (relative)",
    byKl ? formatNumber(output.kl_divergence) : formatShare(output.relative_error), byKl ? "nats" : "", null,
    byKl && known(output.relative_error) ? `relative error ${formatShare(output.relative_error)}` : null,
    known(output.snr_db) ? `signal to noise ${formatDecibels(output.snr_db)}` : null,
    known(output.loss) ? `loss ${formatNumber(output.loss, 4)}, ${formatNumber(output.loss_high_precision, 4)} in float32` : null);
}

function speedCard(report) {
  const timing = report.timing;
  if (!timing) return figureCard("Speed", DASH, "", null, "nothing was timed");
  const plain = timing.seconds_high_precision;
  const value = known(plain) ? `${(plain / timing.seconds).toFixed(2)}×` : formatSeconds(timing.seconds);
  return figureCard("Speed", value, known(plain) ? "of float32" : "per call", null,
    `${formatSeconds(timing.seconds)} per call`, known(plain) ? `${formatSeconds(plain)} in float32` : null,
    `on the ${formatCount(timing.threads, "thread")} of this machine`.replace("on the 1 thread of this machine", "on one thread"));
}

function summaryCards(report) {
  const { shares, memory, rows } = report;
  const quantized = rows.filter((row) => row.is_quantized).length;
  const smaller = memory.weights_high_precision / memory.weights;
  return element("div", { class: "cards" },
    figureCard("FLOPs quantized", formatShare(shares.flops ? shares.quantized_flops / shares.flops : null), "",
      shares.flops ? shares.quantized_flops / shares.flops : 0, `${quantized} of ${formatCount(rows.length, "GEMM")}`),
    figureCard("Parameters quantized", formatShare(shares.weight_bytes ? shares.quantized_weight_bytes / shares.weight_bytes : null), "",
      shares.weight_bytes ? shares.quantized_weight_bytes / shares.weight_bytes : 0, `${formatBytes(shares.quantized_weight_bytes)} of ${formatBytes(shares.weight_bytes)}`),
    outputCard(report),
    speedCard(report),
    figureCard("Weights", `${smaller.toFixed(2)}×`, "smaller", null, `${formatBytes(memory.weights)} are read per call`,
      `${formatBytes(memory.weights_high_precision)} in high precision`));
}

function findingsCard(report, findings, openRow) {
  const items = findings.map((finding) => {
    const index = report.rows.findIndex((row) => row.layer === finding.layer && row.kind === finding.kind && row.number === finding.number);
    return element("li", {},
      finding.layer && index >= 0 ? element("button", { type: "button", class: "mono", onclick: () => openRow(index) }, finding.layer) : null,
      element("span", {}, finding.text));
  });
  const nothing = report.steps ? "Nothing stands out." : "Nothing was measured: give batches to see what each layer loses.";
  return element("div", { class: "card" }, element("h3", {}, "Worth a look"),
    items.length ? element("ul", { class: "findings" }, items) : element("p", { class: "muted" }, nothing));
}

// A row per GEMM, which opens to everything that is known of it.
// Times are by layer and kernel: kernels of one layer and kind are told apart by their order.
function secondsByRow(report) {
  const found = new Map();
  if (!report.timing) return found;
  for (const row of report.rows) {
    if (!row.is_quantized) continue;
    const kernels = report.timing.kernels.filter((kernel) => kernel.layer === row.layer && kernel.kernel.includes(` gemm ${row.kind} `));
    const alike = report.rows.filter((other) => other.layer === row.layer && other.kind === row.kind).length;
    if (kernels.length) found.set(row, kernels.reduce((sum, kernel) => sum + kernel.seconds, 0) / alike);
  }
  return found;
}

function gemmColumns(report) {
  const seconds = secondsByRow(report);
  const total = report.shares.flops || 1;
  const error = (row) => row.measured ? row.measured.relative_error : null;
  const worst = Math.max(...report.rows.map((row) => Number(toNumber(error(row)) ?? 0)).filter(Number.isFinite), 1e-12);
  const withBar = (row) => known(error(row)) ? element("div", { class: "with" }, element("span", {}, formatShare(error(row))), meter(toNumber(error(row)) / worst)) : DASH;
  const snr = (row) => row.measured ? row.measured.snr_db : null;
  return [
    { name: "layer", of: (row) => row.layer, cell: (row) => row.layer || "(no layer)" },
    { name: "kind", of: (row) => row.kind, cell: (row) => row.kind || DASH, class: "wide" },
    { name: "M × N × K", of: (row) => row.flops, cell: (row) => row.sizes.every(Boolean) ? row.sizes.join(" × ") : DASH, class: "wide" },
    { name: "formats", of: (row) => `${row.lhs} ${row.rhs}`, cell: (row) => formatsText(row), class: "formats" },
    { name: "error", of: error, cell: withBar, class: "bar" },
    { name: "SNR", of: snr, cell: (row) => formatDecibels(snr(row)), class: "number wide" },
    { name: "saturated", of: (row) => worstShare(row, "saturated_share"), cell: (row) => formatShare(worstShare(row, "saturated_share")), class: "number wide" },
    { name: "flushed", of: (row) => worstShare(row, "flushed_share"), cell: (row) => formatShare(worstShare(row, "flushed_share")), class: "number wide" },
    { name: "time", of: (row) => seconds.get(row) ?? null, cell: (row) => formatSeconds(seconds.get(row)), class: "number wide" },
    { name: "FLOPs", of: (row) => row.flops, cell: (row) => formatShare(row.flops / total), class: "number wide" },
  ].filter((column) => ["layer", "kind", "M × N × K", "formats", "FLOPs"].includes(column.name) || report.rows.some((row) => known(column.of(row))));
}

function formatsText(row) {
  if (!row.is_quantized) return row.lhs || row.rhs ? `${row.lhs || row.rhs}` : "high precision";
  return row.lhs === row.rhs ? row.lhs : `${row.lhs} × ${row.rhs}`;
}

function compareValues(a, b) {
  if (!known(a) || !known(b)) return known(a) ? -1 : known(b) ? 1 : 0;
  return typeof a === "string" && typeof b === "string" ? a.localeCompare(b, "en", { numeric: true }) : toNumber(b) - toNumber(a);
}

class GemmTable {
  constructor(data) {
    this.data = data;
    this.report = data.report;
    this.columns = gemmColumns(this.report);
    this.lines = this.report.rows.map((row, index) => this.line(row, index));
    this.body = element("tbody", {}, this.lines);
    this.filter = element("input", { type: "search", placeholder: "Find layers, formats, kernels …", "aria-label": "Find GEMMs", oninput: () => this.find() });
    this.only = element("input", { type: "checkbox", onchange: () => this.find() });
    this.count = element("span", { class: "muted" });
    const heads = this.columns.map((column, index) => element("th", { class: column.class || false },
      element("button", { type: "button", title: "Sort", onclick: () => this.sort(index) }, column.name)));
    const tools = element("div", { class: "tools" }, this.filter, element("label", {}, this.only, "quantized only"), this.count);
    const table = element("div", { class: "card gemms" }, element("table", {}, element("thead", {}, element("tr", {}, heads)), this.body));
    this.element = element("div", {}, tools, table);
    this.sorted = null;
    this.find();
  }

  line(row, index) {
    const cells = this.columns.map((column) => element("td", { class: column.class || false }, column.cell(row)));
    const line = element("tr", {
      class: `row${row.is_quantized ? "" : " kept"}`, tabindex: "0", "data-index": index,
      onclick: () => this.toggle(index),
      onkeydown: (event) => {
        if (event.key === "Enter" || event.key === " ") {
          event.preventDefault();
          this.toggle(index);
        }
      },
    }, cells);
    return line;
  }

  sort(index) {
    const column = this.columns[index];
    this.closeAll();
    const direction = this.sorted === index ? -1 : 1;
    this.sorted = direction === 1 ? index : null;
    const { rows } = this.report;
    const order = this.lines.slice().sort((a, b) => direction * compareValues(column.of(rows[a.dataset.index]), column.of(rows[b.dataset.index])));
    this.body.replaceChildren(...order);
  }

  find() {
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    this.lines.forEach((line, index) => {
      const row = this.report.rows[index];
      const text = [row.layer, row.kind, row.lhs, row.rhs, row.kernel, row.reason, row.source].join(" ").toLowerCase();
      const hit = words.every((word) => text.includes(word)) && (row.is_quantized || !this.only.checked);
      if (!hit) this.close(line);
      line.hidden = !hit;
      shown += hit;
    });
    this.count.textContent = `${shown} of ${formatCount(this.lines.length, "GEMM")}`;
  }

  close(line) {
    if (!line.classList.contains("open")) return;
    line.classList.remove("open");
    line.setAttribute("aria-expanded", "false");
    dropCharts(line.nextElementSibling);
    line.nextElementSibling.remove();
  }

  closeAll() {
    this.lines.forEach((line) => this.close(line));
  }

  toggle(index) {
    const line = this.lines[index];
    if (line.classList.contains("open")) this.close(line);
    else {
      line.classList.add("open");
      line.setAttribute("aria-expanded", "true");
      const cell = element("td", { colspan: this.columns.length }, rowDetail(this.data, this.report.rows[index]));
      line.after(element("tr", { class: "detail" }, cell));
    }
  }

  // Opens a row from elsewhere in the page, and shows it.
  open(index) {
    const line = this.lines[index];
    if (line.hidden) {
      this.filter.value = "";
      this.only.checked = false;
      this.find();
    }
    if (!line.classList.contains("open")) this.toggle(index);
    line.scrollIntoView({ block: "start" });
  }
}

function rowDetail(data, row) {
  const measured = row.measured;
  const source = row.source ? element("span", {}, element("span", { class: "mono" }, row.source), row.code ? element("code", { class: "source" }, row.code) : null) : null;
  const parts = [
    facts([
      ["Kernel", row.kernel], ["Left operand", row.lhs], ["Right operand", row.rhs], ["Fused before", row.producer], ["Fused after", row.epilogue],
      ["Padding", row.padding], ["Parameter", row.weight], ["FLOPs", row.flops ? formatFlops(row.flops) : null],
      ["Calls measured", measured ? String(measured.calls) : null],
      ["Error of the result", measured && known(measured.relative_error) ? `${formatShare(measured.relative_error)} relative, ${formatNumber(measured.max_error)} at most` : null],
      ["Source", source, true],
    ]),
    row.reason ? element("p", { class: "reason" }, row.reason) : null,
    measured && measured.gradient ? gradientChips(measured.gradient) : null,
    measured ? measured.operands.filter((one) => one.scheme).map((one) => operandCard(data, one)) : null,
    layerStages(data, row.layer),
  ];
  return element("div", { class: "stack" }, parts.flat().filter(known));
}

function chips(pairs) {
  return element("div", { class: "chips" }, pairs.filter(([, value]) => known(value) && value !== DASH).map(([name, value, isBad]) =>
    element("span", { class: isBad ? "bad" : false }, `${name} `, element("b", {}, value))));
}

function gradientChips(gradient) {
  return element("div", {}, element("h3", {}, "Gradient, beside high precision"), chips([
    ["cosine", formatNumber(gradient.cosine, 6)], ["relative error", formatShare(gradient.relative_error)], ["norm", formatNumber(gradient.norm)],
    ["underflow", formatShare(gradient.underflow_share), gradient.underflow_share > 0.25],
  ]));
}

function operandCard(data, one) {
  const drawn = [codesChart(data, one), scalesChart(one), amaxChart(one)].filter(Boolean);
  return element("div", { class: "card operand" },
    element("h3", {}, one.role.replace("_", " "), " ", element("span", { class: "muted mono" }, one.scheme)),
    chips([
      ["SNR", formatDecibels(one.snr_db)], ["relative error", formatShare(one.relative_error)],
      ["saturated", formatShare(one.saturated_share), one.saturated_share >= 0.1], ["flushed to zero", formatShare(one.flushed_share), one.flushed_share >= 0.3],
      ["unused codes", formatShare(one.unused_codes_share)], ["amax", formatNumber(one.amax)], ["values", one.elements.toLocaleString("en")],
      ["NaN", one.nan_count ? one.nan_count.toLocaleString("en") : null, true], ["infinite", one.inf_count ? one.inf_count.toLocaleString("en") : null, true],
    ]),
    element("div", { class: "charts" }, drawn));
}

const HEIGHT_OF_CHART = 170;

// Codes in the order of the numbers they stand for.
function codesChart(data, one) {
  const values = data.codes[data.elements[one.scheme]];
  if (!values || values.length !== one.code_histogram.length) return null;
  const order = values.map((value, code) => ({ value: toNumber(value), count: one.code_histogram[code] }))
    .filter((entry) => Number.isFinite(entry.value) || entry.count).sort((a, b) => a.value - b.value);
  const total = one.code_histogram.reduce((sum, count) => sum + count, 0) || 1;
  return chart(HEIGHT_OF_CHART, () => barChart({
    labels: order.map((entry) => formatNumber(entry.value, 2)), values: order.map((entry) => entry.count / total), name: "of the values", axis: "value of the code",
    format: formatShare, tips: order.map((entry) => `${formatShare(entry.count / total)} (${entry.count.toLocaleString("en")})`),
  }), "How often each code occurs");
}

function scalesChart(one) {
  const bins = one.scale_histogram.map(([value, count]) => ({ value: toNumber(value), count })).sort((a, b) => a.value - b.value);
  if (bins.reduce((sum, bin) => sum + bin.count, 0) < 2) return null;
  const name = (value) => value > 0 && Number.isFinite(value) ? powerOfTwo(Math.round(Math.log2(value))) : formatNumber(value);
  return chart(HEIGHT_OF_CHART, () => barChart({
    labels: bins.map((bin) => name(bin.value)), values: bins.map((bin) => bin.count), name: "scales", axis: "scale, by powers of two", series: "series-3",
    format: (count) => count >= 1000 ? scaled(count, 1000, ["", "k", "M", "G"]).trim() : String(Math.round(count)),
    tips: bins.map((bin) => bin.count.toLocaleString("en")),
  }), "How large the scales are");
}

function amaxChart(one) {
  const values = one.amax_history.map(toNumber);
  if (values.length < 2) return null;
  return chart(HEIGHT_OF_CHART, () => {
    const source = columns({ x: values.map((_, index) => index + 1), y: values, tip: values.map((value) => formatNumber(value)) });
    const made = figure({ x_axis_label: "call", y_range: new Bokeh.DataRange1d({ start: 0 }) });
    made.line({ x: { field: "x" }, y: { field: "y" }, source, line_color: colour("series-2"), line_width: 2 });
    const points = made.scatter({ x: { field: "x" }, y: { field: "y" }, source, size: 6, fill_color: colour("series-2"), line_color: null });
    made.below[0].ticker = new Bokeh.BasicTicker({ min_interval: 1, num_minor_ticks: 0, desired_num_ticks: 5 });
    made.left[0].formatter = ticksBy((value) => formatNumber(value));
    made.left[0].ticker.desired_num_ticks = 4;
    hideGrid(made, 0);
    hover(made, [["call", "@x"], ["amax", "@tip"]], points, { mode: "vline" });
    return made;
  }, "Largest magnitude of each call");
}

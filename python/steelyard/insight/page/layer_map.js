// The model as a map: a row per kind of layer, a column per block, coloured by what is chosen.
const ALONE = "";
const WIDTH_OF_LABEL = 20;

function operand(row, role) {
  return row.measured ? row.measured.operands.find((one) => one.role === role && one.scheme) : undefined;
}

// How often values of the operands of a GEMM do something, at most.
function worstShare(row, name) {
  const shares = (row.measured ? row.measured.operands : []).filter((one) => one.scheme).map((one) => one[name]);
  return shares.length ? Math.max(...shares) : null;
}

// What each choice shows of a row; `log` where values differ by orders of magnitude, `low` where low values are bad. `least` is the
// least that colours span, so that layers that hardly differ look alike: a factor where `log` is set, otherwise a difference.
function metrics(report) {
  const alone = new Map((report.attribution ? report.attribution.rows : []).map((row) => [row.layer, errorAlone(row)]));
  const seconds = secondsByRow(report);
  return {
    error: { name: "Error of the result", of: (row) => row.measured ? row.measured.relative_error : null, format: formatShare, log: true, least: 3 },
    alone: { name: "Error of the model, this layer alone", of: (row) => row.kind === "fprop" ? alone.get(row.layer) ?? null : null, format: formatNumber, log: true, least: 3 },
    input: { name: "SNR of the input", of: (row) => operand(row, "input")?.snr_db ?? null, format: formatDecibels, low: true, least: 10 },
    weight: { name: "SNR of the weight", of: (row) => operand(row, "weight")?.snr_db ?? null, format: formatDecibels, low: true, least: 10 },
    gradient: { name: "SNR of the gradient", of: (row) => operand(row, "grad_output")?.snr_db ?? null, format: formatDecibels, low: true, least: 10 },
    saturated: { name: "Saturated", of: (row) => worstShare(row, "saturated_share"), format: formatShare, least: 0.1 },
    flushed: { name: "Flushed to zero", of: (row) => worstShare(row, "flushed_share"), format: formatShare, least: 0.1 },
    time: { name: "Time", of: (row) => seconds.get(row) ?? null, format: formatSeconds },
    flops: { name: "FLOPs", of: (row) => row.flops, format: formatFlops },
  };
}

// Cells: the first number in a layer's name is its column, the rest its row.
function cellsOf(rows) {
  const kinds = new Set(rows.map((row) => row.kind).filter(Boolean));
  const split = rows.map((row) => {
    const parts = row.layer.split(".");
    const at = parts.findIndex((part) => /^\d+$/.test(part));
    return { row, number: at < 0 ? "" : parts[at], before: at < 0 ? "" : parts.slice(0, at).join("."), rest: at < 0 ? row.layer || "(no layer)" : parts.slice(at + 1).join(".") };
  });
  const containers = new Set(split.filter((one) => one.number).map((one) => one.before));
  for (const one of split) {
    const place = one.number && containers.size > 1 ? `${one.before}.*${one.rest ? "." : ""}` : "";
    one.label = `${place}${one.rest || (place ? "" : `${one.before ? `${one.before}.` : ""}*`)}`;
    if (kinds.size > 1) one.label += one.row.kind ? ` · ${one.row.kind}` : "";
  }
  const numbers = [...new Set(split.map((one) => one.number).filter(Boolean))].sort((a, b) => a - b);
  return { cells: split, columns: split.some((one) => !one.number) ? [...numbers, ALONE] : numbers, labels: [...new Set(split.map((one) => one.label))] };
}

function colourScale(values, metric) {
  const usable = values.filter((value) => known(value) && Number.isFinite(toNumber(value)) && (!metric.log || value > 0));
  let low = Math.min(...usable), high = Math.max(...usable);
  if (metric.log) high = Math.max(high, low * metric.least);
  else if (metric.low) low = Math.min(low, high - metric.least);
  else high = Math.max(high, low + (metric.least || 0));
  const place = (value) => metric.log ? Math.log(value) : value;
  return {
    low, high,
    at: (value) => {
      if (!known(value)) return colour("none");
      value = toNumber(value);
      if (Number.isNaN(value)) return colour("bad");
      let share = high > low ? (place(Math.min(high, Math.max(low, value))) - place(low)) / (place(high) - place(low)) : 0;
      if (metric.low) share = 1 - share;
      return colour(RAMP[Math.min(RAMP.length - 1, Math.floor(share * RAMP.length))]);
    },
  };
}

function mapFigure(report, metric, openRow) {
  const { cells, columns: across, labels } = cellsOf(report.rows);
  const values = cells.map((cell) => metric.of(cell.row));
  const scale = colourScale(values, metric);
  const source = columns({
    x: cells.map((cell) => across.indexOf(cell.number || ALONE)), y: cells.map((cell) => cell.label), colour: values.map(scale.at),
    layer: cells.map((cell) => cell.row.layer || "(no layer)"), value: values.map((value) => metric.format(value)),
    formats: cells.map((cell) => cell.row.is_quantized ? `${cell.row.lhs} × ${cell.row.rhs}` : "high precision"),
  });
  const made = figure({ max_width: 170 + 80 * across.length, x_range: [-0.5, across.length - 0.5], y_range: new Bokeh.FactorRange({ factors: [...labels].reverse() }) });
  for (const grid of made.center) grid.grid_line_color = null;
  for (const axis of [...made.below, ...made.left]) Object.assign(axis, { axis_line_color: null, major_tick_line_color: null });
  const every = Math.ceil((across.length * WIDTH_OF_LABEL) / Math.max(200, Math.min(innerWidth - 160, 750)));
  made.below[0].ticker = new Bokeh.FixedTicker({ ticks: across.map((_, index) => index).filter((index) => index % every === 0) });
  made.below[0].formatter = ticksBy((place) => across[Math.round(place)] ?? "");
  const cell = made.rect({ x: { field: "x" }, y: { field: "y" }, width: 0.9, height: 0.84, source, fill_color: { field: "colour" }, line_color: null, border_radius: 3 });
  Object.assign(cell, { nonselection_glyph: null, hover_glyph: null });
  hover(made, [["layer", "@layer"], [metric.name, "@value"], ["formats", "@formats"]], cell);
  onTap(made, source, (index) => openRow(report.rows.indexOf(cells[index].row)));
  return made;
}

function mapLegend(report, metric) {
  const scale = colourScale(report.rows.map(metric.of), metric);
  const colours = metric.low ? [...RAMP].reverse() : RAMP;
  const bar = element("span", { class: "ramp" }, colours.map((name) => element("i", { style: `background: var(--${name})` })));
  return element("div", { class: "legend" }, metric.format(scale.low), bar, metric.format(scale.high),
    element("span", {}, element("i", { class: "swatch", style: "background: var(--none)" }), "not measured, or in high precision"),
    element("span", {}, "click a cell to open its GEMM"));
}

function layerMap(report, openRow) {
  const all = metrics(report);
  const known_ = Object.entries(all).filter(([, metric]) => report.rows.some((row) => known(metric.of(row)) && toNumber(metric.of(row)) > 0));
  const body = element("div", {});
  const show = (key) => {
    dropCharts(body);
    body.replaceChildren(chart(46 + cellsOf(report.rows).labels.length * 25, () => mapFigure(report, all[key], openRow)), element("div", { class: "legend-place" }, mapLegend(report, all[key])));
  };
  const first = known_[0][0];
  show(first);
  return element("div", { class: "card", id: "map" }, choices(Object.fromEntries(known_.map(([key, metric]) => [key, metric.name])), first, show), body);
}

// What a layer adds by itself; where it did not run alone, what is estimated.
function errorAlone(row) {
  return row.only_error ?? row.estimated_error;
}

function attributionCard(report) {
  const attribution = report.attribution;
  const worst = attribution.rows.filter((row) => known(errorAlone(row))).sort((a, b) => errorAlone(b) - errorAlone(a)).slice(0, 24);
  const count = attribution.rows.filter((row) => known(row.only_error)).length;
  const make = () => {
    const made = barChart({
      labels: worst.map((row) => row.layer), values: worst.map(errorAlone), name: "this layer alone", rotate: 0.9,
      tips: worst.map((row) => `${formatNumber(row.only_error)}; all but this layer: ${formatNumber(row.without_error)}; estimate: ${formatNumber(row.estimated_error)}`),
    });
    made.below[0].ticker = new Bokeh.FixedTicker({ ticks: worst.map((_, index) => index) });
    made.below[0].formatter = ticksBy((place) => shortLayer(worst[Math.round(place)]?.layer ?? ""));
    made.below[0].major_label_text_font_size = "9px";
    return made;
  };
  const agreement = known(attribution.estimate_agreement) ? ` An estimate from one backward ranks the layers with a correlation of ${formatNumber(attribution.estimate_agreement, 2)}.` : "";
  const some = count < attribution.rows.length ? ` Of ${formatCount(attribution.rows.length, "layer")}, ${count} ran alone; the others have the estimate.` : "";
  return element("div", { class: "card" }, element("h3", {}, "Which layers cause the error"),
    element("p", { class: "muted" }, `The model's error (${attribution.error === "kl_divergence" ? "KL divergence" : "relative"}) with one layer quantized and all others in high precision; ${formatNumber(attribution.baseline_error)} with all quantized.${agreement}${some}`),
    chart(250, make));
}

// The gradients of parameters that differ most from those of the model in float32.
function gradientsCard(report) {
  const known_ = report.gradients.filter((one) => known(one.cosine));
  if (!known_.length) return null;
  const rows = known_.slice().sort((a, b) => a.cosine - b.cosine).slice(0, 12).map((one) => element("tr", {},
    element("td", { class: "mono" }, one.parameter), element("td", { class: "number" }, toNumber(one.cosine).toFixed(4)),
    element("td", { class: "number" }, formatShare(one.relative_error))));
  const head = element("tr", {}, element("th", {}, "parameter"), element("th", { class: "number" }, "cosine"), element("th", { class: "number" }, "error"));
  return element("div", { class: "card", id: "gradients" }, element("h3", {}, "Gradients beside float32"),
    element("p", { class: "muted" }, `Of ${formatCount(report.gradients.length, "parameter")}, those whose gradients differ most from the model's own.`),
    element("table", {}, element("thead", {}, head), element("tbody", {}, rows)));
}

function shortLayer(layer) {
  return layer.length > 22 ? `…${layer.slice(-21)}` : layer;
}

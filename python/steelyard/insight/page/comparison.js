// Several nets beside each other.
const SERIES = ["series-1", "series-2", "series-3", "bad", "warn", "muted"];

function seriesColour(index) {
  return colour(SERIES[index % SERIES.length]);
}

function speedOf(net) {
  return net.seconds && net.seconds_high_precision ? net.seconds_high_precision / net.seconds : null;
}

function errorOf(data) {
  const byKl = data.nets.every((net) => known(net.kl_divergence));
  return { name: byKl ? "KL divergence of the output" : "relative error of the output", of: (net) => byKl ? net.kl_divergence : net.relative_error, format: byKl ? formatNumber : formatShare };
}

function comparedTable(data) {
  const columns_ = [
    ["output error", (net) => formatShare(net.relative_error)], ["KL", (net) => formatNumber(net.kl_divergence)],
    ["loss", (net) => known(net.loss_difference) ? `${net.loss_difference > 0 ? "+" : ""}${formatNumber(net.loss_difference)}` : DASH],
    ["FLOPs quantized", (net) => formatShare(net.flops_share)], ["bytes quantized", (net) => formatShare(net.bytes_share)],
    ["time per call", (net) => formatSeconds(net.seconds)], ["speed", (net) => speedOf(net) ? `${speedOf(net).toFixed(2)}×` : DASH],
    ["weights", (net) => formatBytes(net.weights)],
  ].filter(([, cell]) => data.nets.some((net) => cell(net) !== DASH));
  const head = element("tr", {}, element("th", {}, ""), columns_.map(([name]) => element("th", { class: "number" }, name)));
  const rows = data.nets.map((net, index) => element("tr", {},
    element("td", {}, element("i", { class: "swatch", style: `background: var(--${SERIES[index % SERIES.length]})` }), element("b", {}, net.name)),
    columns_.map(([, cell]) => element("td", { class: "number" }, cell(net)))));
  return element("div", { class: "card gemms" }, element("table", {}, element("thead", {}, head), element("tbody", {}, rows)));
}

// Error against speed: the best nets are at the bottom right.
function errorAgainstSpeed(data) {
  const error = errorOf(data);
  const nets = data.nets.map((net, index) => ({ net, index })).filter(({ net }) => known(speedOf(net)) && Number.isFinite(toNumber(error.of(net) ?? NaN)));
  if (!nets.length) return null;
  const make = () => {
    const speeds = nets.map(({ net }) => speedOf(net)), errors = nets.map(({ net }) => error.of(net));
    const source = columns({
      x: speeds, y: errors, name: nets.map(({ net }) => net.name), colour: nets.map(({ index }) => seriesColour(index)),
      speed: speeds.map((speed) => `${speed.toFixed(2)}×`), error: errors.map((value) => error.format(value)),
      weights: nets.map(({ net }) => formatBytes(net.weights)),
    });
    const room = 0.25 * (Math.max(...speeds, 1) - Math.min(...speeds, 1)) + 0.1;
    const made = figure({
      x_axis_label: "speed, float32 = 1", y_axis_label: error.name,
      x_range: [Math.min(...speeds, 1) - room / 2, Math.max(...speeds, 1) + room], y_range: new Bokeh.DataRange1d({ start: 0, range_padding: 0.25 }),
    });
    made.left[0].formatter = ticksBy(error.format);
    made.add_layout(new Bokeh.Span({ location: 1, dimension: "height", line_color: colour("muted"), line_dash: "dashed", line_width: 1 }));
    const points = made.scatter({ x: { field: "x" }, y: { field: "y" }, source, size: 14, fill_color: { field: "colour" }, line_color: null });
    made.add_layout(new Bokeh.LabelSet({
      x: { field: "x" }, y: { field: "y" }, text: { field: "name" }, source, y_offset: 9, text_align: "center", text_color: colour("text"), text_font_size: "12px", text_font: FONT,
    }));
    hover(made, [["", "@name"], ["speed", "@speed"], [error.name, "@error"], ["weights", "@weights"]], points);
    return made;
  };
  return element("div", { class: "card", id: "picture" }, chart(340, make, "To the right is faster, to the bottom is nearer to float32."));
}

function gemmKey(gemm) {
  return JSON.stringify([gemm.layer, gemm.kind, gemm.number]);
}

function gemmName(gemm) {
  return `${gemm.layer}${gemm.kind === "fprop" ? "" : ` ${gemm.kind}`}${gemm.number ? ` (${gemm.number + 1})` : ""}`;
}

function errorsByLayer(data) {
  const gemms = new Map();
  data.nets.forEach((net, index) => {
    for (const gemm of net.gemms) {
      if (!known(gemm.relative_error)) continue;
      if (!gemms.has(gemmKey(gemm))) gemms.set(gemmKey(gemm), { name: gemmName(gemm), errors: data.nets.map(() => null) });
      gemms.get(gemmKey(gemm)).errors[index] = toNumber(gemm.relative_error);
    }
  });
  return [...gemms.values()];
}

function layersFigure(data, gemms) {
  const made = figure({ x_axis_label: "GEMM, in the order of the program", y_axis_label: "error of the result", y_range: new Bokeh.DataRange1d({ start: 0 }) });
  made.left[0].formatter = ticksBy(formatShare);
  hideGrid(made, 0);
  data.nets.forEach((net, index) => {
    const places = gemms.map((_, place) => place).filter((place) => known(gemms[place].errors[index]));
    const source = columns({
      x: places.map((place) => place + 1), y: places.map((place) => gemms[place].errors[index]), layer: places.map((place) => gemms[place].name),
      net: places.map(() => net.name), error: places.map((place) => formatShare(gemms[place].errors[index])),
    });
    const points = made.scatter({ x: { field: "x" }, y: { field: "y" }, source, size: gemms.length > 80 ? 5 : 8, fill_color: seriesColour(index), fill_alpha: 0.8, line_color: null });
    hover(made, [["", "@net"], ["layer", "@layer"], ["error", "@error"]], points);
  });
  return made;
}

function differencesTable(data, gemms) {
  const spread = (gemm) => Math.max(...gemm.errors.filter(known)) - Math.min(...gemm.errors.filter(known));
  const order = gemms.filter((gemm) => gemm.errors.every(known)).sort((a, b) => spread(b) - spread(a)).slice(0, 100);
  const head = element("tr", {}, element("th", {}, "layer"), data.nets.map((net) => element("th", { class: "number" }, net.name)));
  const rows = order.map((gemm) => element("tr", {}, element("td", { class: "mono" }, gemm.name),
    gemm.errors.map((error) => element("td", { class: "number" }, formatShare(error)))));
  return element("div", { class: "card gemms" }, element("table", {}, element("thead", {}, head), element("tbody", {}, rows)));
}

openPage((page, data) => {
  const gemms = errorsByLayer(data);
  const legend = element("div", { class: "legend" }, data.nets.map((net, index) => element("span", {},
    element("i", { class: "swatch", style: `background: var(--${SERIES[index % SERIES.length]})` }), net.name)));
  const names = { figures: "Figures", ...(gemms.length ? { layers: "Layers", differences: "Differences" } : {}) };
  page.replaceChildren(...[
    pageHeader(data.model, "", `${formatCount(data.nets.length, "net")} of it, compared`),
    navigation(names),
    element("main", { class: "wrap" },
      section("figures", "Figures", "beside the model in float32", element("div", { class: "stack" }, [comparedTable(data), errorAgainstSpeed(data)].filter(known))),
      gemms.length ? section("layers", "Layers", "what each GEMM loses in each net", element("div", { class: "card" }, legend, chart(300, () => layersFigure(data, gemms)))) : null,
      gemms.length ? section("differences", "Differences", "the layers that differ most, first", differencesTable(data, gemms)) : null,
      element("footer", {}, "Made by Steelyard. This page loads nothing from anywhere.")),
  ]);
});

// Memory and time.
function memoryCards(report) {
  const { memory } = report;
  const most = Math.max(...memory.held.map((one) => one.bytes), 1);
  const names = { parameters: "parameters", quantized_parameters: "of those, quantized", quantized_weights: "quantized weights, beside them", workspace: "workspace of calls", state: "state", kept_for_backward: "kept for the backward", kept_by_torch: "what torch would keep" };
  const rows = memory.held.filter((one) => one.bytes).map((one) => element("tr", {},
    element("td", {}, names[one.purpose] || one.purpose), element("td", { class: "number" }, formatBytes(one.bytes)),
    element("td", { style: "width: 35%" }, meter(one.bytes / most))));
  const held = element("div", { class: "card" }, element("h3", {}, "What the net holds"), element("table", {}, element("tbody", {}, rows)));
  if (!memory.live_bytes.length) return held;
  const peak = memory.live_bytes.reduce((best, bytes, index) => bytes > memory.live_bytes[best] ? index : best, 0);
  const over = element("div", { class: "card" }, element("h3", {}, "Live values over a call"),
    element("p", { class: "muted" }, `At most ${formatBytes(memory.live_bytes[peak])}, at step ${peak + 1}: ${memory.ops[peak]}${memory.layers[peak] ? ` of ${memory.layers[peak]}` : ""}.`),
    chart(230, () => memoryFigure(memory)));
  return element("div", { class: "halves" }, over, held);
}

function memoryFigure(memory) {
  const source = columns({
    x: memory.live_bytes.map((_, index) => index + 1), y: memory.live_bytes, op: memory.ops, layer: memory.layers.map((layer) => layer || DASH),
    bytes: memory.live_bytes.map(formatBytes),
  });
  const made = figure({ x_axis_label: "step of the program", y_range: new Bokeh.DataRange1d({ start: 0 }) });
  made.varea_step({ x: { field: "x" }, y1: 0, y2: { field: "y" }, step_mode: "center", source, fill_color: colour("series-1"), fill_alpha: 0.25 });
  const line = made.step({ x: { field: "x" }, y: { field: "y" }, mode: "center", source, line_color: colour("series-1"), line_width: 1.4 });
  made.left[0].formatter = ticksBy(formatBytes);
  hideGrid(made, 0);
  hover(made, [["step", "@x: @op"], ["layer", "@layer"], ["live", "@bytes"]], line, { mode: "vline" });
  return made;
}

const FAMILIES = [[" gemm ", "GEMMs"], ["quantize", "quantizing"], ["attention", "attention"], ["torch ", "ops of torch"]];

function family(kernel) {
  const found = FAMILIES.find(([word]) => kernel.includes(word));
  return found ? found[1] : "other kernels";
}

function timeCards(report) {
  const { timing } = report;
  const sums = new Map();
  for (const kernel of timing.kernels) sums.set(family(kernel.kernel), (sums.get(family(kernel.kernel)) || 0) + kernel.seconds);
  const inside = [...sums.values()].reduce((sum, seconds) => sum + seconds, 0);
  const parts = [...sums].sort((a, b) => b[1] - a[1]);
  if (timing.seconds > inside) parts.push(["between the steps", timing.seconds - inside]);
  const whole = [["the net, one call", timing.seconds], ...(known(timing.seconds_high_precision) ? [["the model in float32", timing.seconds_high_precision]] : [])];
  const bars = (entries, most) => element("table", {}, element("tbody", {}, entries.map(([name, seconds]) => element("tr", {},
    element("td", {}, name), element("td", { class: "number" }, formatSeconds(seconds)), element("td", { style: "width: 45%" }, meter(seconds / most))))));
  const longest = timing.kernels.slice().sort((a, b) => b.seconds - a.seconds).slice(0, 14);
  const rows = longest.map((kernel) => element("tr", {},
    element("td", {}, element("div", { class: "mono" }, kernel.kernel), kernel.layer ? element("div", { class: "muted mono" }, kernel.layer) : null),
    element("td", { class: "number" }, kernel.calls > 1 ? `${kernel.calls} ×` : ""), element("td", { class: "number" }, formatSeconds(kernel.seconds))));
  return element("div", { class: "halves" },
    element("div", { class: "stack" },
      element("div", { class: "card" }, element("h3", {}, "A call"), bars(whole, Math.max(...whole.map(([, seconds]) => seconds))),
        element("p", { class: "muted" }, `The shortest of ${timing.runs}, in turns, ${formatCount(timing.threads, "thread")}.`)),
      element("div", { class: "card" }, element("h3", {}, "By what runs"), bars(parts, Math.max(inside, timing.seconds)),
        element("p", { class: "muted" }, `Of each step, the median of ${timing.runs} calls whose steps were timed.`)),
      element("div", { class: "card" }, element("h3", {}, "Step by step"), chart(170, () => stepsFigure(timing.kernels)))),
    element("div", { class: "card" }, element("h3", {}, "Longest steps"), element("table", {}, element("tbody", {}, rows))));
}

function stepsFigure(kernels) {
  const source = columns({
    x: kernels.map((_, index) => index + 1), top: kernels.map((kernel) => kernel.seconds), kernel: kernels.map((kernel) => kernel.kernel),
    layer: kernels.map((kernel) => kernel.layer || DASH), time: kernels.map((kernel) => formatSeconds(kernel.seconds)),
  });
  const made = figure({ x_axis_label: "step, in the order of the program", y_range: new Bokeh.DataRange1d({ start: 0 }) });
  const bars = made.vbar({ x: { field: "x" }, top: { field: "top" }, width: kernels.length > 60 ? 1 : 0.84, source, fill_color: colour("series-1"), line_color: null });
  made.left[0].formatter = ticksBy(formatSeconds);
  made.left[0].ticker.desired_num_ticks = 4;
  hideGrid(made, 0);
  hover(made, [["step", "@x: @kernel"], ["layer", "@layer"], ["time", "@time"]], bars, { mode: "vline" });
  return made;
}

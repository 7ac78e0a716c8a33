// Figures, drawn by Bokeh in the colours of the page.
const RAMP = [0, 1, 2, 3, 4, 5, 6, 7, 8].map((step) => `ramp-${step}`);
const charts = new Map();

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// An element that holds a figure; `make` is called again when the colours of the page change. The place of the figure has its height from
// the beginning, so that nothing moves when it is drawn.
function chart(height, make, caption) {
  const place = element("div", { style: `height: ${height}px` });
  const holder = element("div", { class: "chart" }, caption ? element("div", { class: "caption" }, caption) : null, place);
  charts.set(place, { make: () => Object.assign(make(), { height }), view: null });
  whenNear(place, () => draw(place));
  return holder;
}

async function draw(place) {
  const entry = charts.get(place);
  if (!entry || !place.isConnected) return;
  if (entry.view) entry.view.remove();
  place.replaceChildren();
  entry.view = await Bokeh.Plotting.show(entry.make(), place);
}

function redrawCharts() {
  for (const [place, entry] of charts) {
    if (!place.isConnected) charts.delete(place);
    else if (entry.view) draw(place);
  }
}

function dropCharts(holder) {
  for (const [place, entry] of charts) {
    if (!holder.contains(place)) continue;
    if (entry.view) entry.view.remove();
    charts.delete(place);
  }
}

function figure(options) {
  const made = Bokeh.Plotting.figure({
    tools: [], toolbar_location: null, sizing_mode: "stretch_width", min_border: 4,
    background_fill_alpha: 0, border_fill_alpha: 0, outline_line_color: null, ...options,
  });
  const text = colour("muted"), line = colour("line");
  for (const axis of [...made.below, ...made.left]) {
    Object.assign(axis, {
      axis_line_color: line, major_tick_line_color: line, minor_tick_line_color: null, major_tick_in: 0, major_tick_out: 4,
      major_label_text_color: text, major_label_text_font_size: "11px", major_label_text_font: FONT,
      axis_label_text_color: text, axis_label_text_font_size: "11px", axis_label_text_font: FONT, axis_label_text_font_style: "normal",
      axis_label_standoff: 4,
    });
  }
  for (const grid of made.center) Object.assign(grid, { grid_line_color: line, grid_line_alpha: 0.7 });
  return made;
}

const FONT = "system-ui, sans-serif";

function hideGrid(made, dimension) {
  for (const grid of made.center) if (grid.dimension === dimension) grid.grid_line_color = null;
}

function ticksBy(format) {
  // Bokeh's own formatter of code in text would need `eval`, which the page forbids.
  const ticks = new Bokeh.BasicTickFormatter();
  ticks.doFormat = (values) => values.map(format);
  return ticks;
}

function hover(made, tooltips, renderer, options = {}) {
  made.add_tools(new Bokeh.HoverTool({ tooltips, renderers: [renderer], ...options }));
}

function onTap(made, source, run) {
  const tool = new Bokeh.TapTool();
  made.add_tools(tool);
  made.toolbar.active_tap = tool;
  source.selected.properties.indices.change.connect(() => {
    const [first] = source.selected.indices;
    if (first !== undefined) {
      source.selected.indices = [];
      run(first);
    }
  });
}

function columns(data) {
  return new Bokeh.ColumnDataSource({ data });
}

// Bars at the places of some labels; a label is drawn for as many as there is room for.
function barChart({ labels, values, tips, name, format = formatNumber, axis = "", valueAxis = "", rotate = 0, log = false, series = "series-1" }) {
  const places = labels.map((_, index) => index);
  const source = columns({ x: places, top: values, label: labels, tip: tips || values.map((value) => format(value)) });
  const positive = values.filter((value) => value > 0);
  const low = log && positive.length ? Math.min(...positive) / 2 : 0;
  const made = figure({
    x_range: [-0.7, Math.max(0, labels.length - 1) + 0.7], x_axis_label: axis || null, y_axis_label: valueAxis || null,
    y_axis_type: log ? "log" : "linear", y_range: log && positive.length ? [low, Math.max(...positive) * 1.5] : new Bokeh.DataRange1d({ start: 0 }),
  });
  const bars = made.vbar({ x: { field: "x" }, top: { field: "top" }, bottom: low, width: labels.length > 60 ? 1 : 0.84, source, fill_color: colour(series), line_color: null });
  const every = Math.ceil(labels.length / 7);
  const [axisBelow] = made.below;
  axisBelow.ticker = new Bokeh.FixedTicker({ ticks: places.filter((place) => labels.length < 12 || place % every === 0) });
  axisBelow.formatter = ticksBy((place) => labels[Math.round(place)] ?? "");
  if (rotate) axisBelow.major_label_orientation = rotate;
  made.left[0].formatter = ticksBy(format);
  made.left[0].ticker.desired_num_ticks = 4;
  hideGrid(made, 0);
  hover(made, [["", "@label"], [name, "@tip"]], bars, { mode: "vline" });
  return made;
}

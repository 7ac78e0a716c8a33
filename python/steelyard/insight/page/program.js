// The IR: of one layer at every stage, and of two stages side by side.
const TOKEN = /("(?:[^"\\]|\\.)*")|(%[\w#]+(?::\d+)?)|(@[\w$.]+|\bscaled\.\w+)|(![\w.]+<[^>]*>|#\w+)/g;

// A program of more lines is laid out as far as it is in view.
const LONG = 2500;

// The text of a line with its strings, values, symbols and types told apart.
function coloured(text) {
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(TOKEN)) {
    if (match.index > end) parts.push(text.slice(end, match.index));
    const name = match[1] ? "u" : match[3] ? "b" : match[4] ? "em" : null;
    parts.push(name ? element(name, {}, match[0]) : match[0]);
    end = match.index + match[0].length;
  }
  parts.push(text.slice(end));
  return element("span", {}, parts);
}

// The name by which the IR shows a layer: one that shares a graph is shown by that of another.
function printedLayer(program, layer) {
  const shared = program.shared.find((one) => one.layer === layer);
  return shared ? shared.printed : layer;
}

function plainLine(text) {
  return text.trim().replace(/%[\w#]+(?::\d+)?/g, "%");
}

function linesByLayer(stage) {
  const found = new Map();
  stage.layers.forEach((layer, index) => {
    if (!found.has(layer)) found.set(layer, []);
    found.get(layer).push(index);
  });
  return found;
}

// The lines of two stages that have no equal in the other. Lines are compared within their layer, whatever their values are called.
function changes(before, after) {
  const gone = new Set(), added = new Set();
  const left = linesByLayer(before), right = linesByLayer(after);
  for (const layer of new Set([...left.keys(), ...right.keys()])) {
    const a = left.get(layer) || [], b = right.get(layer) || [];
    const kept = commonLines(a.map((index) => plainLine(before.lines[index])), b.map((index) => plainLine(after.lines[index])));
    a.forEach((index, place) => kept.left.has(place) || gone.add(index));
    b.forEach((index, place) => kept.right.has(place) || added.add(index));
  }
  return { gone, added };
}

// The longest common subsequence of two lists of lines; for very long ones, equal lines in any order.
function commonLines(a, b) {
  const left = new Set(), right = new Set();
  if (a.length * b.length > 4e6) {
    const places = new Map();
    b.forEach((line, index) => places.has(line) ? places.get(line).push(index) : places.set(line, [index]));
    a.forEach((line, index) => {
      const match = (places.get(line) || []).shift();
      if (match !== undefined) {
        left.add(index);
        right.add(match);
      }
    });
    return { left, right };
  }
  const width = b.length + 1;
  const lengths = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      lengths[i * width + j] = a[i] === b[j] ? lengths[(i + 1) * width + j + 1] + 1 : Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1]);
    }
  }
  for (let i = 0, j = 0; i < a.length && j < b.length;) {
    if (a[i] === b[j]) {
      left.add(i);
      right.add(j);
      i += 1;
      j += 1;
    } else if (lengths[(i + 1) * width + j] >= lengths[i * width + j + 1]) i += 1;
    else j += 1;
  }
  return { left, right };
}

function irLine(number, text, classes) {
  return element("div", { class: ["op", ...classes].join(" ") }, element("i", {}, String(number)), coloured(text));
}

// Every stage of one layer, side by side; a line that the stage before did not have is marked.
function layerStages(data, layer) {
  const { program } = data.report;
  const number = program.layers.indexOf(printedLayer(program, layer));
  if (!layer || number < 0) return null;
  const stages = element("div", { class: "stages" }, program.stages.map((stage, place) => {
    const added = place ? changes(program.stages[place - 1], stage).added : new Set();
    const own = stage.layers.flatMap((one, index) => one === number ? [index] : []);
    const lines = own.map((index) => irLine(index + 1, stage.lines[index].trim(), added.has(index) ? ["new"] : []));
    const none = element("div", { class: "op elided" }, element("i", {}, ""), element("span", {}, "nothing of this layer is left by itself"));
    return element("div", {}, element("h4", {}, `${place + 1}. ${stage.name}`), element("div", { class: "ir" }, lines.length ? lines : none));
  }));
  return element("div", {},
    element("div", { class: "with-button" }, element("h3", {}, "What became of it, stage by stage"),
      element("button", { type: "button", class: "plain", onclick: () => data.showLayer(layer) }, "Show in the whole program")),
    stages);
}

// Shows the first line of a layer, or the first that changes. Lines that were never shown have no exact height, so that the second attempt
// is nearer.
function scrollToFirst(pane, attempts) {
  const first = pane.querySelector(".mark") || pane.querySelector(".gone, .new");
  if (!first || !attempts) return;
  pane.scrollTop += first.getBoundingClientRect().top - pane.getBoundingClientRect().top - 60;
  requestAnimationFrame(() => scrollToFirst(pane, attempts - 1));
}

class ProgramView {
  constructor(data) {
    this.program = data.report.program;
    const names = this.program.stages.map((stage) => stage.name);
    const quantized = Math.max(1, names.indexOf("quantized"));
    this.left = this.stageChoice(names, quantized - 1);
    this.right = this.stageChoice(names, quantized);
    const layers = [...new Set([...this.program.layers, ...this.program.shared.map((one) => one.layer)])].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    this.layer = element("select", { "aria-label": "Layer", onchange: () => this.show() },
      element("option", { value: "" }, "no layer"), layers.map((layer) => element("option", { value: layer }, layer)));
    this.onlyLayer = element("input", { type: "checkbox", onchange: () => this.show() });
    this.shared = element("span", { class: "muted" });
    this.panes = [element("div", { class: "ir", tabindex: "0" }), element("div", { class: "ir", tabindex: "0" })];
    this.counts = [element("span", {}), element("span", {})];
    this.element = element("div", { class: "card", id: "program" },
      element("div", { class: "tools" }, element("label", {}, "Highlight", this.layer), element("label", {}, this.onlyLayer, "only this layer"), this.shared),
      element("div", { class: "panes" },
        element("div", {}, element("div", { class: "pane-head" }, this.left, this.counts[0]), this.panes[0]),
        element("div", {}, element("div", { class: "pane-head" }, this.right, this.counts[1]), this.panes[1])));
    this.isShown = false;
    whenNear(this.element, () => this.isShown || this.show());
  }

  stageChoice(names, chosen) {
    return element("select", { "aria-label": "Stage", onchange: () => this.show() },
      names.map((name, index) => element("option", { value: index, selected: index === chosen }, name)));
  }

  show() {
    this.isShown = true;
    const stages = [this.left, this.right].map((choice) => this.program.stages[choice.value]);
    const { gone, added } = changes(...stages);
    const printed = printedLayer(this.program, this.layer.value);
    const number = this.layer.value ? this.program.layers.indexOf(printed) : null;
    this.shared.textContent = printed === this.layer.value ? "" : `runs the program that is printed for ${printed}`;
    stages.forEach((stage, side) => {
      const marked = side ? added : gone;
      const lines = [];
      stage.lines.forEach((text, index) => {
        const isOwn = stage.layers[index] === number;
        if (this.onlyLayer.checked && number !== null && !isOwn) return;
        lines.push(irLine(index + 1, text, [marked.has(index) ? (side ? "new" : "gone") : "", isOwn ? "mark" : ""].filter(Boolean)));
      });
      this.panes[side].classList.toggle("long", lines.length > LONG);
      this.panes[side].replaceChildren(...lines);
      this.counts[side].textContent = `${formatCount(stage.lines.length, "line")}, ${marked.size} ${side ? "new" : "gone"}`;
      scrollToFirst(this.panes[side], 2);
    });
  }

  // Shows a layer of the program from elsewhere in the page.
  open(layer) {
    this.layer.value = layer;
    this.show();
    this.element.closest("section").scrollIntoView({ block: "start" });
  }
}

// The page of one net.
openPage((page, data) => {
  const { report } = data;
  const table = new GemmTable(data);
  const program = new ProgramView(data);
  const openRow = (index) => table.open(index);
  data.showLayer = (layer) => program.open(layer);
  const place = report.target === "cpu" ? "on the CPU" : `for ${report.target}`;
  const about = report.steps ? `${formatCount(report.steps, "call")} measured` : "compiled, not measured";
  const names = { overview: "Overview", layers: "Layers", gemms: "GEMMs", ir: "IR", memory: "Memory", ...(report.timing ? { time: "Time" } : {}) };
  page.replaceChildren(
    pageHeader(report.model, report.recipe, `${place} · ${about} · Steelyard ${report.steelyard}`),
    navigation(names),
    element("main", { class: "wrap" },
      section("overview", "Overview", "what low precision does to the whole model", summaryCards(report)),
      section("layers", "Layers", "the model as a map: blocks from left to right, their layers from top to bottom",
        element("div", { class: "columns" },
          element("div", { class: "stack" }, layerMap(report, openRow), report.attribution && report.attribution.rows.length ? attributionCard(report) : null,
            gradientsCard(report)),
          findingsCard(report, data.findings, openRow))),
      section("gemms", "GEMMs", "one row each; open one for its codes, scales, kernel, source and IR", table.element),
      section("ir", "IR", "two stages of the compiler side by side: lines that go are red, lines that come are green", program.element),
      section("memory", "Memory", "what is held between calls, and what lives during one", memoryCards(report)),
      report.timing ? section("time", "Time", "where a call spends it", timeCards(report)) : null,
      report.notes.length ? element("section", {}, element("div", { class: "card" }, element("h3", {}, "Notes"), report.notes.map((note) => element("p", { class: "muted" }, note)))) : null,
      element("footer", {}, `Made by Steelyard ${report.steelyard}. This page loads nothing from anywhere.`)));
});

// Elements. What comes from a model only ever becomes the text of a node, or the value of an attribute that runs nothing.
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "style") made.style.cssText = value;
    else if (value !== false && known(value)) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat().filter(known));
  return made;
}

function section(id, title, about, ...children) {
  const head = element("div", { class: "head" }, element("h2", {}, title), element("p", {}, about));
  return element("section", { id }, head, ...children);
}

function meter(share) {
  const width = Math.max(0, Math.min(1, share)) * 100;
  return element("div", { class: "meter" }, element("i", { style: `width: ${width}%` }));
}

function figureCard(name, value, unit, share, ...more) {
  return element("div", { class: "card figure" },
    element("div", { class: "name" }, name),
    element("div", { class: "value" }, value, unit ? element("small", {}, unit) : null),
    known(share) ? meter(share) : null,
    more.filter(Boolean).map((line) => element("div", { class: "more" }, line)));
}

// Buttons of which one is pressed.
function choices(names, chosen, choose) {
  const buttons = Object.entries(names).map(([key, name]) => element("button", {
    type: "button",
    "data-choice": key,
    "aria-pressed": String(key === chosen),
    onclick: () => {
      for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.choice === key));
      choose(key);
    },
  }, name));
  return element("div", { class: "choices", role: "group" }, buttons);
}

function facts(pairs) {
  const shown = pairs.filter(([, value]) => known(value) && value !== "" && value !== DASH);
  return element("dl", { class: "facts" }, shown.map(([name, value, isFull]) =>
    element("div", { class: isFull ? "full" : false }, element("dt", {}, name), element("dd", {}, value))));
}

// Runs once, when an element comes near the window.
function whenNear(target, run) {
  const observer = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    run();
  }, { rootMargin: "300px" });
  observer.observe(target);
}

function logo() {
  const space = "http://www.w3.org/2000/svg";
  const image = document.createElementNS(space, "svg");
  image.setAttribute("viewBox", "0 0 42 42");
  image.setAttribute("class", "logo");
  image.setAttribute("aria-hidden", "true");
  // A beam on its hook, with a load on the short arm and a weight on the long one.
  for (const line of ["M14 4v9", "M4 16.5 38 11", "M7.5 16v7", "M2.5 23h10v11h-10z", "M33 12v4", "M30.3 16h5.4l1.3 6h-8z"]) {
    const path = document.createElementNS(space, "path");
    for (const [key, value] of Object.entries({ d: line, fill: "none", stroke: "currentColor", "stroke-width": "2.4", "stroke-linejoin": "round", "stroke-linecap": "round" })) {
      path.setAttribute(key, value);
    }
    image.append(path);
  }
  return image;
}

function isDark() {
  return document.documentElement.dataset.theme === "dark";
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  redrawCharts();
}

function themeButton() {
  return element("button", {
    class: "theme", type: "button", title: "Light or dark", "aria-label": "Light or dark",
    onclick: () => setTheme(isDark() ? "light" : "dark"),
  }, "◐");
}

function pageHeader(title, pill, about) {
  return element("header", {}, element("div", { class: "wrap" },
    logo(),
    element("div", { class: "title" },
      element("h1", {}, title, pill ? element("span", { class: "pill" }, pill) : null),
      element("p", { class: "muted" }, about)),
    themeButton()));
}

function navigation(names) {
  const links = Object.entries(names).map(([id, name]) => element("a", { href: `#${id}` }, name));
  const update = () => {
    const sections = links.map((link) => document.getElementById(link.hash.slice(1)));
    const above = sections.filter((one) => one && one.getBoundingClientRect().top < 140);
    const here = above.length ? above[above.length - 1] : sections[0];
    for (const link of links) link.classList.toggle("here", Boolean(here) && link.hash === `#${here.id}`);
  };
  addEventListener("scroll", update, { passive: true });
  requestAnimationFrame(update);
  return element("nav", {}, element("div", { class: "wrap" }, links));
}

async function readData() {
  const bytes = Uint8Array.from(atob(document.getElementById("data").textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function openPage(show) {
  document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => setTheme(event.matches ? "dark" : "light"));
  const page = document.getElementById("page");
  readData().then((data) => {
    show(page, data);
    document.body.dataset.ready = "true";
  }).catch((error) => {
    page.replaceChildren(element("p", { class: "waiting" }, `The page cannot be shown: ${error.message}`));
    throw error;
  });
}

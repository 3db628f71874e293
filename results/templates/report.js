"use strict";
// What a browser adds to the page: a reader over the plot, zoom, filters, copy buttons. Without it
// the page is whole.
(() => {
  const make = (name, text, className) => {
    const element = document.createElement(name);
    element.textContent = text;
    if (className) element.className = className;
    return element;
  };

  const copied = (button, text) => {
    const done = () => {
      button.textContent = "copied";
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    };
    const byHand = () => {
      const area = document.body.appendChild(make("textarea", text));
      area.select();
      if (document.execCommand("copy")) done();
      area.remove();
    };
    if (navigator.clipboard) navigator.clipboard.writeText(text).then(done, byHand);
    else byHand();
  };
  for (const code of document.querySelectorAll("code.command")) {
    const button = make("button", "copy", "tool");
    button.type = "button";
    button.addEventListener("click", () => copied(button, code.textContent));
    code.after(" ", button);
  }

  const FILTERED_ROWS = 8;
  for (const table of document.querySelectorAll("table.filter")) {
    const rows = [...table.tBodies[0].rows];
    if (rows.length < FILTERED_ROWS) continue;
    const input = make("input", "", "tool");
    input.type = "search";
    input.placeholder = `filter ${rows.length} rows`;
    input.setAttribute("aria-label", "filter the rows of this table");
    input.addEventListener("input", () => {
      const wanted = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let lead = null;
      for (const row of rows) {
        if (row.className === "detail" && lead) { row.hidden = lead.hidden; continue; }
        const next = row.nextElementSibling;
        const more = next && next.className === "detail" ? next.textContent : "";
        const text = (row.textContent + " " + more).toLowerCase();
        row.hidden = !wanted.every((word) => text.includes(word));
        lead = row;
      }
    });
    table.parentElement.before(input);
  }

  const opened = () => {
    let element = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (; element; element = element.parentElement) {
      if (element.tagName === "DETAILS") element.open = true;
    }
  };
  addEventListener("hashchange", opened);
  opened();

  const figure = document.querySelector("figure.time");
  const held = document.getElementById("plot-data");
  const svg = figure && figure.querySelector("svg");
  if (!svg || !held) return;
  const data = JSON.parse(held.textContent);
  const tools = make("div", "", "tools");
  const reading = make("output", "Point at the plot to read it.", "reading");
  const cursor = make("div", "", "cursor");
  const layer = make("div", "", "layer");
  cursor.hidden = true;
  svg.replaceWith(layer);
  layer.append(svg, cursor);
  // Time alone is stretched: words and marks keep their shape, the plot its height.
  const shapes = [...svg.querySelectorAll("text, use")]
    .filter((each) => Number(each.getAttribute("x")))
    .map((each) => [each, Number(each.getAttribute("x")), each.getAttribute("transform") || ""]);
  // What stands left of the plot stays in sight: else a stretched one has no axis.
  const view = svg.viewBox.baseVal;
  const drawn = (name, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  };
  const axis = drawn("svg", { viewBox: `0 0 ${view.width} ${view.height}`, "aria-hidden": "true" });
  const edge = data.left * view.width;
  axis.append(drawn("rect", { class: "m-axis", width: edge, height: view.height }));
  for (const [shape, x] of shapes) {
    if (shape.tagName === "text" && x < edge) axis.append(shape.cloneNode(true));
  }
  const kept = make("div", "", "axis");
  kept.append(axis);
  kept.hidden = true;
  figure.prepend(kept);
  let factor = 1;
  const stretch = (next) => {
    if (factor === 1) {
      const whole = svg.getBoundingClientRect();
      svg.style.height = `${whole.height}px`;
      kept.style.width = `${whole.width}px`;
    }
    kept.hidden = next === 1;
    if (next === 1) svg.style.height = "";
    svg.setAttribute("preserveAspectRatio", next === 1 ? "xMidYMid" : "none");
    svg.classList.toggle("stretched", next !== 1);
    layer.style.width = `${100 * next}%`;
    for (const [shape, x, own] of shapes) {
      const upright = next === 1 ? "" : `translate(${x} 0) scale(${1 / next} 1) translate(${-x} 0) `;
      shape.setAttribute("transform", upright + own);
    }
  };
  const zoom = (to, share) => {
    const at = share === undefined ? 0.5 : share;
    const pointed = figure.scrollLeft + at * figure.clientWidth;
    const next = Math.min(16, Math.max(1, to));
    stretch(next);
    figure.scrollLeft = pointed * next / factor - at * figure.clientWidth;
    factor = next;
  };
  let pageWidth = innerWidth;
  addEventListener("resize", () => {
    // Not where a phone shows or hides its bars.
    if (innerWidth === pageWidth) return;
    pageWidth = innerWidth;
    zoom(1);
  });
  for (const [label, name, to] of [["\u2212", "zoom out", () => factor / 2],
    ["+", "zoom in", () => factor * 2], ["whole", "show the whole run", () => 1]]) {
    const button = make("button", label, "tool");
    button.type = "button";
    button.setAttribute("aria-label", name);
    button.addEventListener("click", () => zoom(to()));
    tools.append(button);
  }
  tools.append(reading);
  figure.before(tools);
  figure.addEventListener("dblclick", (event) => {
    const box = figure.getBoundingClientRect();
    zoom(factor * 2, (event.clientX - box.left) / box.width);
  });
  // A window that the page names, as a band over the plot, with as much again on either side.
  const band = make("div", "", "band");
  band.hidden = true;
  layer.append(band);
  const share = (at) => data.left
    + (Math.min(data.end, Math.max(data.start, at)) - data.start) / (data.end - data.start)
    * (data.right - data.left);
  for (const link of document.querySelectorAll("a.window")) {
    link.addEventListener("click", () => {
      const [from, to] = [share(Number(link.dataset.from)), share(Number(link.dataset.to))];
      band.style.left = `${100 * from}%`;
      band.style.width = `${100 * (to - from)}%`;
      band.hidden = false;
      zoom(1);
      zoom(Math.pow(2, Math.floor(Math.log2(1 / Math.max(1 / 16, 3 * (to - from))))));
      figure.scrollLeft = (from + to) / 2 * layer.clientWidth - figure.clientWidth / 2;
    });
  }
  const number = (value) => value === null ? "\u2013" : value >= 100 ? value.toFixed(0)
    : String(Number(value.toPrecision(3)));
  layer.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const share = (event.clientX - box.left) / box.width;
    const inside = (share - data.left) / (data.right - data.left);
    cursor.hidden = inside < 0 || inside > 1;
    if (cursor.hidden) return;
    cursor.style.left = `${100 * share}%`;
    const at = data.start + inside * (data.end - data.start);
    const place = Math.floor((at - data.first) / data.step);
    const faults = data.faults.filter(([, from, to]) => from <= at && at <= to);
    const parts = [`${number(at * data.per_s)} ${data.unit}`];
    for (const [name, values, unit] of data.lines) {
      if (place >= 0 && place < values.length) parts.push(`${name} ${number(values[place])}${unit}`);
    }
    parts.push(...faults.map(([name]) => name));
    reading.textContent = parts.join(" \u00b7 ");
  });
})();

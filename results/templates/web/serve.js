"use strict";
// What keys add; without a script every page is whole.
(() => {
  const rows = [...document.querySelectorAll("table.list tbody tr")];
  const shown = () => rows.filter((row) => !row.hidden);
  let at = null;
  const go = (step) => {
    const every = shown();
    if (!every.length) return;
    const next = at && every.includes(at) ? every.indexOf(at) + step : step > 0 ? 0 : every.length - 1;
    if (at) at.classList.remove("at");
    at = every[Math.max(0, Math.min(every.length - 1, next))];
    at.classList.add("at");
    const link = at.querySelector("a");
    if (link) link.focus({ preventScroll: true });
    at.scrollIntoView({ block: "nearest" });
  };

  const FILTERED_ROWS = 8;
  for (const table of document.querySelectorAll("table.filter")) {
    const own = [...table.tBodies[0].rows];
    if (own.length < FILTERED_ROWS) continue;
    const input = document.createElement("input");
    input.type = "search";
    input.className = "tool filter";
    input.placeholder = `filter ${own.length} rows`;
    input.setAttribute("aria-label", "filter the rows of this table");
    const texts = own.map((row) => row.textContent.toLowerCase());
    input.addEventListener("input", () => {
      const wanted = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      own.forEach((row, place) => { row.hidden = !wanted.every((word) => texts[place].includes(word)); });
    });
    table.parentElement.before(input);
  }

  const PLACES = { r: "/runs", c: "/campaigns", m: "/compare", t: "/trend", f: "/findings" };
  let prefix = "";
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea, select");
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (typing) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const before = prefix;
    prefix = event.key === "g" ? "g" : "";
    if (before === "g" && PLACES[event.key]) { location.href = PLACES[event.key]; return; }
    if (event.key === "j") go(1);
    else if (event.key === "k") go(-1);
    else if (event.key === "/") {
      const search = document.querySelector("#q, #where, input.filter");
      if (search) { event.preventDefault(); search.focus(); search.select(); }
      else location.href = "/runs";
    }
  });
})();

// What differs between two graphs, next to both of them: a row that is clicked is shown in each.
//
// It stands in one script with viewer.js, and uses its functions. As there, what is the user's reaches the page as text.

const SHORT = 24; // cells of at most so many characters are not broken into lines

/** Show `data`, that is `headings`, `sections` and the graphs `a` and `b`, in the element `host`. */
export function mountDiff(host, data, css) {
  const shadow = host.shadowRoot ?? host.attachShadow({ mode: "open" });
  const hosts = [data.a, data.b].map((_, side) => element("div", { class: "graphs", "aria-label": `graphs ${"AB"[side]}` }));
  const root = element("div", { class: "viewer diff", "data-theme": themeOf(host) });
  shadow.replaceChildren(element("style", {}, css), root);
  const shown = (row) => {
    for (const other of root.querySelectorAll("tr.chosen")) other.classList.remove("chosen");
    row.element.classList.add("chosen");
    [row.a, row.b].forEach((nodes, side) => (nodes.length ? viewers[side].choose(nodes) : viewers[side].clear()));
  };
  const list = element("nav", { class: "differences scroll", "aria-label": "differences" },
    ...data.headings.map((line) => element("p", {}, line)), ...data.sections.map((section) => sectionOf(section, shown)));
  root.append(list, element("div", { class: "both" }, ...hosts));
  const viewers = [data.a, data.b].map((graphs, side) => mount(hosts[side], graphs, css));
}

function sectionOf(section, shown) {
  if (!section.rows.length) return element("p", {}, section.title);
  const rows = section.rows.map((row) => {
    const cells = row.cells.map((cell) => element("td", { class: cell.length <= SHORT ? "short" : null }, cell));
    if (!row.a.length && !row.b.length) return element("tr", {}, ...cells);
    const choose = () => shown({ ...row, element: made });
    const key = (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      choose();
    };
    const made = element("tr", { class: "entry", tabindex: 0, role: "button", click: choose, keydown: key }, ...cells);
    return made;
  });
  const head = element("tr", {}, ...section.columns.map((column) => element("th", {}, column)));
  return element("details", section.folded ? {} : { open: "open" }, element("summary", {}, section.title),
    element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)));
}

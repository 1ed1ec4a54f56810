// The viewer of `Graphs.json()`, schema 1: forward | saved for backward | backward.
//
// No dependency and no network. Names, paths and lines of source are the user's: they reach the page as text nodes and
// as values of attributes that hold text, never as markup. Colours are those of viewer.css.

const CHARACTER = 6.7; // width of one at 11 px, monospace
const ROW = 20; // height of a row of the program, in px
const LONGEST = 30; // an edge over more ranks than that makes no room for itself among the boxes
const STACKED = 3; // as many equal modules are one stack
const VS_CODE_THEMES = {
  "vscode-light": "light", "vscode-high-contrast-light": "light", "vscode-dark": "dark", "vscode-high-contrast": "dark",
};
const DETAILED = 150; // up to so many operations all of them are drawn at first

/** Show `data` in the element `host`, in a shadow tree of its own; returns what scripts can do with the viewer. */
export function mount(host, data, css) {
  if (data.schema !== 1) throw new Error(`this viewer reads schema 1, not ${data.schema}`);
  const shadow = host.shadowRoot ?? host.attachShadow({ mode: "open" });
  shadow.replaceChildren(element("style", {}, css));
  return new Viewer(shadow, host, new Model(data));
}

function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function shape(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined)); // strings become text nodes
  return made;
}

export function bytesName(bytes) {
  if (bytes === null || bytes === undefined) return "?";
  if (bytes < 1024) return `${bytes} B`;
  let size = bytes / 1024, unit = 0;
  while (size >= 1023.95 && unit < 3) { size /= 1024; unit += 1; }
  return `${size.toFixed(1)} ${["KiB", "MiB", "GiB", "TiB"][unit]}`;
}

const clip = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

// ---------------------------------------------------------------------------------------------------------- the model

/** The data with what follows from it: users of nodes, which node stands for which, modules around each. */
class Model {
  constructor(data) {
    this.data = data;
    this.nodes = data.nodes;
    this.users = data.nodes.map(() => []);
    data.nodes.forEach((node, i) => node.inputs.forEach((j) => this.users[j].push(i)));
    // An item of a tuple is drawn with the operation that computes the tuple.
    this.shown = data.nodes.map((node, i) => i);
    data.nodes.forEach((node, i) => { if (node.operator === "getitem") this.shown[i] = this.shown[node.inputs[0]]; });
    this.isOperation = data.nodes.map((node, i) => node.class !== "input" && this.shown[i] === i);
    this.savedOf = new Map(); // node of forward or placeholder of backward -> row of the saved values
    data.saved.forEach((row, r) => {
      this.savedOf.set(row.node, r);
      if (row.placeholder !== null) this.savedOf.set(row.placeholder, r);
    });
    const lines = new Map(); // the same line may be in several functions: a generator is one of its own
    this.lineOf = data.sources.map(({ file, line }, s) => {
      const place = `${file}:${line}`;
      if (!lines.has(place)) lines.set(place, s);
      return lines.get(place);
    });
    this.hasModules = data.nodes.some((node) => node.module);
    this.operations = this.isOperation.filter(Boolean).length;
    this.measured = data.totals.measured_peak_bytes; // of the backend's kernels, if they are known
  }

  around(i) {
    const parts = this.nodes[i].module.split(".");
    const paths = parts.map((_, k) => parts.slice(0, k + 1).join("."));
    return paths.filter((path) => path in this.data.modules || path === this.nodes[i].module).filter(Boolean);
  }

  lineKey(i) {
    return `line:${this.lineOf[this.nodes[i].source]}`;
  }

  source(i) {
    const index = this.nodes[i].source;
    return index === null ? null : this.data.sources[index];
  }

  /** The text in which a search looks. */
  text(i) {
    const node = this.nodes[i], source = this.source(i);
    const place = source ? `${source.file}:${source.line} ${source.code} ${source.function}` : "";
    return `${node.name} ${node.target} ${node.type} ${node.label} ${node.module} ${place}`.toLowerCase();
  }

  savedBytes(nodes) {
    const rows = nodes.map((i) => this.data.saved[this.savedOf.get(i)]).filter((row) => row?.kind === "activation");
    return [...new Map(rows.map((row) => [row.storage, row.bytes ?? 0])).values()].reduce((a, b) => a + b, 0);
  }
}

/**
 * What is drawn of one graph at one level: operations, and groups of operations that are closed.
 * Returns `items`, `edges` between them as [from, to, bytes], and `of`: node -> index of its item.
 */
function itemsOf(model, graph, level, open) {
  const members = new Map();
  model.nodes.forEach((node, i) => {
    if (node.graph !== graph || node.class === "input") return;
    const key = keyOf(model, model.shown[i], level, open);
    if (!members.has(key)) members.set(key, []);
    members.get(key).push(i);
  });
  if (level === "module") stackEqual(model, members, open);
  const items = [], of = new Map();
  for (const [key, nodes] of members) {
    nodes.forEach((i) => of.set(i, items.length));
    items.push(described(model, key, nodes));
  }
  const edges = new Map();
  for (const [i, to] of of) {
    for (const j of model.nodes[i].inputs) {
      const from = of.get(j);
      if (from === undefined) addChip(model, items[to], j);
      else if (from !== to) {
        const key = from * items.length + to, edge = edges.get(key) ?? [from, to, 0];
        edge[2] += (model.nodes[j].tensors[0]?.bytes ?? 0);
        edges.set(key, edge);
      }
    }
  }
  items.forEach(measure);
  return { items, edges: [...edges.values()], of };
}

function keyOf(model, i, level, open) {
  if (level === "line" && model.nodes[i].source !== null) {
    const key = model.lineKey(i);
    if (!open.has(key)) return key;
  }
  if (level === "module") {
    const closed = model.around(i).find((path) => !open.has(`module:${path}`));
    if (closed) return `module:${closed}`;
  }
  return `node:${i}`;
}

/** Merge neighbouring groups that are the same module again, such as the layers of a transformer. */
function stackEqual(model, members, open) {
  const alike = new Map();
  for (const [key, nodes] of members) {
    if (!key.startsWith("module:") || !/\d/.test(key)) continue;
    const kind = `stack:${key.slice(7).replace(/\d+/g, "#")}`;
    const work = nodes.map((i) => `${model.nodes[i].operator}${model.nodes[i].type}`).join();
    const id = `${kind}|${work}`;
    if (!open.has(kind)) alike.set(id, [...(alike.get(id) ?? []), key]);
  }
  for (const [id, keys] of alike) {
    if (keys.length < STACKED) continue;
    const nodes = keys.flatMap((key) => members.get(key)).sort((a, b) => a - b);
    // Two kinds of layers that take turns must not make stacks that read each other.
    const stack = `${id.split("|")[0]}|${keys[0]}|${keys[keys.length - 1]}|${keys.length}`;
    const ordered = [...members].flatMap(([key, value]) =>
      key === keys[0] ? [[stack, nodes]] : keys.includes(key) ? [] : [[key, value]]);
    members.clear();
    ordered.forEach(([key, value]) => members.set(key, value));
  }
}

function described(model, key, nodes) {
  const operations = nodes.filter((i) => model.isOperation[i]), first = model.nodes[operations[0] ?? nodes[0]];
  const isGroup = !key.startsWith("node:") && operations.length > 1;
  const item = {
    key, nodes, isGroup, chips: [], size: operations.length, stack: 1, class: isGroup ? "group" : first.class,
    saved: first.graph === "forward" ? model.savedBytes(nodes) : 0,
    again: operations.filter((i) => model.nodes[i].role === "recomputed").length,
    colour: isGroup ? {} : { region: first.region, kernel: first.kernels[0] ?? null },
    title: first.operator, sub: nodes.length > 1 ? "" : first.type,
  };
  if (!isGroup) {
    const results = nodes.filter((i) => !model.isOperation[i]).map((i) => model.nodes[i].type);
    if (results.length) item.sub = results.join(" ");
  } else {
    const [kind, ...rest] = key.split(":"), path = rest.join(":");
    if (kind === "line") {
      const source = model.data.sources[Number(path)];
      item.title = source.code || `${source.file}:${source.line}`;
      item.sub = `${source.file.split("/").pop()}:${source.line} · ${count(item.size, "operation")}`;
    } else if (kind === "module") {
      item.title = path;
      item.sub = `${model.data.modules[path] ?? "module"} · ${count(item.size, "operation")}`;
    } else {
      const [, first, last, times] = path.split("|").map((part) => part.replace(/^module:/, ""));
      item.stack = Number(times);
      item.title = `${first} … ${last}`;
      const name = model.data.modules[first] ?? "module";
      item.sub = `${times} × ${name} · ${count(item.size / times, "operation")} each`;
    }
  }
  item.title = clip(item.title, 34);
  item.sub = clip(item.sub, 38);
  return item;
}

function addChip(model, item, input) {
  const node = model.nodes[input], row = model.data.saved[model.savedOf.get(input)];
  if (item.chips.some((chip) => chip.input === input)) return;
  const kind = node.role === "saved" && row?.kind === "activation" ? "saved " : "";
  item.chips.push({ input, text: clip(`${kind}${node.label || (kind && row.name) || node.name} ${node.type}`, 36), saved: Boolean(row) });
}

/** The lines of text in a box, and its size. */
function measure(item) {
  const most = item.isGroup ? 0 : 3, lines = item.chips.slice(0, most);
  const left = item.chips.length - lines.length;
  item.lines = lines.map((chip) => ({ text: `← ${chip.text}`, saved: chip.saved }));
  if (left) item.lines.push({ text: item.isGroup ? `← ${count(left, "input")}` : `← ${left} more`, saved: false });
  if (item.saved) item.lines.push({ text: `saved ${bytesName(item.saved)}`, saved: true, bold: true });
  if (item.again && item.isGroup) item.lines.push({ text: `${item.again} recomputed`, again: true });
  const longest = Math.max(item.title.length * 1.1 + (item.isGroup ? 2 : 0), item.sub.length, ...item.lines.map((l) => l.text.length));
  item.width = Math.max(70, Math.ceil(longest * CHARACTER) + 18);
  item.height = 21 + (item.sub ? 14 : 0) + item.lines.length * 13 + (item.lines.length ? 3 : 0);
}

// --------------------------------------------------------------------------------------------------------- the layout

/** Places for boxes in layers, each below all that it reads. Fills `x`, `y` (the centres) and returns width and height. */
export function layout(items, edges) {
  const forward = edges.filter(([a, b]) => a < b); // a group may also read what comes after its first operation
  const points = items.map((item) => ({ item, width: item.width, height: item.height, up: [], down: [] }));
  const rank = ranks(items.length, forward);
  points.forEach((point, i) => { point.rank = rank[i]; });
  const routes = new Map(forward.map((edge) => [edge, route(points, edge)]));
  const layers = [];
  for (const point of points) (layers[point.rank] ??= []).push(point);
  for (let i = 0; i < layers.length; i++) layers[i] ??= [];
  for (const layer of layers) layer.forEach((point, i) => { point.place = i; });
  for (let sweep = 0; sweep < 8; sweep++) reorder(layers, sweep % 2 === 0);
  for (const layer of layers) settle(layer, layer.map((point, i) => i * 100));
  for (let sweep = 0; sweep < 12; sweep++) {
    const order = sweep % 2 ? [...layers].reverse() : layers;
    for (const layer of order) settle(layer, layer.map((point) => wanted(point, sweep)));
  }
  let y = 14;
  for (const layer of layers) {
    const height = Math.max(0, ...layer.map((point) => point.height));
    for (const point of layer) point.y = y + height / 2;
    y += height + 26;
  }
  const left = points.reduce((least, p) => Math.min(least, p.x - p.width / 2), Infinity) - 14;
  const right = points.reduce((most, p) => Math.max(most, p.x + p.width / 2), -Infinity) + 14;
  for (const point of points) point.x -= left;
  items.forEach((item, i) => { item.x = points[i].x; item.y = points[i].y; });
  const paths = edges.map((edge) => (routes.get(edge) ?? [points[edge[0]], points[edge[1]]]).map((p) => [p.x, p.y]));
  return { width: items.length ? right - left : 0, height: y, paths };
}

function ranks(size, edges) {
  const before = Array.from({ length: size }, () => []), after = Array.from({ length: size }, () => []);
  for (const [a, b] of edges) { before[b].push(a); after[a].push(b); }
  const rank = new Array(size).fill(0), loose = new Array(size).fill(false);
  for (let i = 0; i < size; i++) {
    for (const j of before[i]) rank[i] = Math.max(rank[i], rank[j] + 1);
    loose[i] = rank[i] < 3 && before[i].every((j) => loose[j]);
  }
  for (let i = size - 1; i >= 0; i--) { // what needs only inputs stands next to its reader
    if (loose[i] && after[i].length) rank[i] = Math.min(...after[i].map((j) => rank[j])) - 1;
  }
  return rank;
}

/** The points that an edge passes: one in each layer between its ends. */
function route(points, [a, b]) {
  const from = points[a], to = points[b], way = [from];
  if (to.rank - from.rank > LONGEST) return [from, to];
  for (let rank = from.rank + 1; rank < to.rank; rank++) {
    const point = { item: null, width: 6, height: 0, rank, up: [], down: [] };
    points.push(point);
    way.push(point);
  }
  way.push(to);
  for (let i = 1; i < way.length; i++) { way[i - 1].down.push(way[i]); way[i].up.push(way[i - 1]); }
  return way;
}

function reorder(layers, isDown) {
  for (const layer of isDown ? layers : [...layers].reverse()) {
    for (const point of layer) {
      const near = isDown ? point.up : point.down;
      point.mean = near.length ? near.reduce((sum, p) => sum + p.place, 0) / near.length : point.place;
    }
    layer.sort((p, q) => p.mean - q.mean || p.place - q.place);
    layer.forEach((point, i) => { point.place = i; });
  }
}

function wanted(point, sweep) {
  const near = sweep === 0 ? point.up : [...point.up, ...point.down];
  if (!near.length) return point.x;
  return near.reduce((sum, p) => sum + p.x, 0) / near.length;
}

/** Each point as near to where it wants to be as the order and the widths allow: adjacent violators are pooled. */
function settle(layer, wishes) {
  const blocks = [];
  let offset = 0;
  layer.forEach((point, i) => {
    if (i) offset += (layer[i - 1].width + point.width) / 2 + (point.item && layer[i - 1].item ? 18 : 10);
    point.offset = offset;
    const weight = point.item ? 1 : 2;
    blocks.push({ sum: (wishes[i] - offset) * weight, weight, points: [point] });
    while (blocks.length > 1) {
      const last = blocks[blocks.length - 1], before = blocks[blocks.length - 2];
      if (before.sum / before.weight <= last.sum / last.weight) break;
      before.sum += last.sum; before.weight += last.weight; before.points.push(...last.points);
      blocks.pop();
    }
  });
  for (const block of blocks) for (const point of block.points) point.x = block.sum / block.weight + point.offset;
}

// -------------------------------------------------------------------------------------------------------- the drawing

/** One graph in a box that scrolls; only what is in sight is in the page. */
class Pane {
  constructor(viewer, graph) {
    this.viewer = viewer;
    this.graph = graph;
    this.scale = null;
    this.svg = shape("svg", { role: "presentation" });
    this.scroll = element("div", {
      class: "scroll", tabindex: 0, role: "listbox", "aria-label": `${graph} graph`, scroll: () => this.later(),
      keydown: (event) => this.key(event), wheel: (event) => this.wheel(event), click: () => viewer.clear(),
    }, this.svg);
    this.title = element("span", { class: "grow" });
    const zoom = (text, name, factor) =>
      element("button", { type: "button", "aria-label": `${name} ${graph}`, title: name, click: () => this.zoom(factor) }, text);
    this.root = element("section", { class: "column", "aria-label": graph },
      element("h3", {}, this.title, zoom("−", "zoom out", 0.8), zoom("+", "zoom in", 1.25)), this.scroll);
    new ResizeObserver(() => this.later()).observe(this.scroll);
  }

  arrange() {
    const { model, level, open } = this.viewer;
    Object.assign(this, itemsOf(model, this.graph, level, open));
    this.size = layout(this.items, this.edges);
    this.title.textContent = `${this.graph}: ${this.items.length === 1 ? "1 box" : `${this.items.length} boxes`}`;
    this.root.dataset.items = this.items.length;
    this.later();
  }

  later() {
    if (!this.waiting) this.waiting = requestAnimationFrame(() => { this.waiting = null; this.draw(); });
  }

  draw() {
    if (!this.items || !this.scroll.clientWidth) return;
    this.scale ??= Math.min(1, Math.max(0.6, (this.scroll.clientWidth - 14) / (this.size.width || 1)));
    const { width, height } = this.size;
    this.svg.setAttribute("width", Math.max(1, width * this.scale));
    this.svg.setAttribute("height", Math.max(1, height * this.scale));
    this.svg.setAttribute("viewBox", `0 0 ${Math.max(1, width)} ${Math.max(1, height)}`);
    const top = (this.scroll.scrollTop - 400) / this.scale;
    const bottom = (this.scroll.scrollTop + this.scroll.clientHeight + 400) / this.scale;
    this.svg.replaceChildren(...this.picture(top, bottom));
  }

  /** Everything between two heights, as shapes. */
  picture(top, bottom) {
    const colours = this.viewer.colours, marked = this.viewer.marks(this), shapes = [hatching(colours)];
    this.edges.forEach((edge, e) => {
      const path = this.size.paths[e], heights = path.map(([, y]) => y);
      if (Math.max(...heights) < top || Math.min(...heights) > bottom) return;
      shapes.push(this.edge(edge, path, colours, marked));
    });
    this.items.forEach((item, k) => {
      if (item.y + item.height / 2 >= top && item.y - item.height / 2 <= bottom) shapes.push(this.box(item, k, colours, marked));
    });
    return shapes;
  }

  edge([from, to], path, colours, marked) {
    const start = this.items[from], end = this.items[to], points = path.map((p) => [...p]);
    points[0][1] += start.height / 2;
    points[points.length - 1][1] -= end.height / 2;
    let d = `M${points[0][0].toFixed(1)} ${points[0][1].toFixed(1)}`;
    for (let i = 1; i < points.length; i++) {
      const [x0, y0] = points[i - 1], [x1, y1] = points[i], middle = (y0 + y1) / 2;
      d += `C${x0.toFixed(1)} ${middle.toFixed(1)} ${x1.toFixed(1)} ${middle.toFixed(1)} ${x1.toFixed(1)} ${y1.toFixed(1)}`;
    }
    const isChosen = marked && (marked.get(from) === "chosen" || marked.get(to) === "chosen");
    return shape("path", {
      d, fill: "none", stroke: colours("edge"), "stroke-width": 1.2, "marker-end": "url(#arrow)",
      "stroke-dasharray": points.length === 2 && to - from > LONGEST ? "3 3" : null,
      class: marked ? (isChosen ? "chosen" : "dim") : null,
    });
  }

  box(item, k, colours, marked) {
    const { width, height } = item, mark = marked ? marked.get(k) ?? "dim" : "";
    const [fillColour, line] = this.viewer.paint(item);
    const box = shape("g", {
      class: `node ${mark}`, "data-node": item.nodes[0], id: `${this.graph}-${k}`, role: "option", "aria-selected": mark === "chosen",
      "aria-label": label(item), transform: `translate(${(item.x - width / 2).toFixed(1)} ${(item.y - height / 2).toFixed(1)})`,
      click: (event) => { event.stopPropagation(); this.viewer.choose(item.nodes); },
      dblclick: () => this.viewer.toggle(item),
    });
    const frame = { width, height, rx: 6, fill: fillColour, stroke: line, "stroke-width": item.isGroup ? 1.8 : 1.2 };
    if (item.stack > 1) for (const shift of [8, 4]) box.append(shape("rect", { ...frame, x: shift, y: -shift }));
    box.append(shape("rect", { ...frame, class: "box" }));
    if (item.again && !item.isGroup) box.append(shape("rect", { width, height, rx: 6, fill: "url(#again)", stroke: colours("again"), "stroke-width": 1.4 }));
    const text = (words, y, more) => box.append(shape("text", {
      x: width / 2, y, "text-anchor": "middle", "font-size": 11, fill: colours("quiet"),
      "font-family": "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace", ...more }, words));
    text(`${item.isGroup ? "▸ " : ""}${item.title}`, 15, { "font-size": 12, "font-weight": 600, fill: colours("text") });
    if (item.sub) text(item.sub, 29, {});
    item.lines.forEach((l, i) => text(l.text, (item.sub ? 43 : 30) + i * 13, {
      x: 9, "text-anchor": "start", "font-size": 10.5, "font-weight": l.bold ? 700 : 400,
      fill: colours(l.saved ? "saved" : l.again ? "again" : "quiet") }));
    if (item.saved) box.append(shape("rect", { x: 1, y: height - 3, width: width - 2, height: 3, fill: colours("saved") }));
    return box;
  }

  zoom(factor) {
    const middle = (this.scroll.scrollTop + this.scroll.clientHeight / 2) / this.scale;
    this.scale = Math.min(3, Math.max(0.1, this.scale * factor));
    this.draw();
    this.scroll.scrollTop = middle * this.scale - this.scroll.clientHeight / 2;
  }

  wheel(event) {
    if (!event.ctrlKey) return;
    event.preventDefault();
    this.zoom(Math.exp(-event.deltaY * 0.002));
  }

  /** Arrow keys walk through the boxes in the order of the program; Enter opens a group or closes it again. */
  key(event) {
    const moves = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity };
    if (event.key in moves) {
      const now = this.current() ?? (moves[event.key] > 0 ? -1 : this.items.length);
      const next = Math.min(this.items.length - 1, Math.max(0, now + moves[event.key]));
      if (this.items[next]) this.viewer.choose(this.items[next].nodes, this);
    } else if (event.key === "Enter" && this.current() !== null) this.viewer.toggle(this.items[this.current()]);
    else return;
    event.preventDefault();
  }

  current() {
    const marked = this.viewer.marks(this);
    const found = marked ? [...marked].find(([, mark]) => mark === "chosen") : null;
    return found ? found[0] : null;
  }

  reveal(k) {
    const item = this.items[k], box = this.scroll;
    this.draw();
    const x = item.x * this.scale, y = item.y * this.scale;
    if (y < box.scrollTop + 40 || y > box.scrollTop + box.clientHeight - 40) box.scrollTop = y - box.clientHeight / 2;
    if (x < box.scrollLeft + 40 || x > box.scrollLeft + box.clientWidth - 40) box.scrollLeft = x - box.clientWidth / 2;
    box.setAttribute("aria-activedescendant", `${this.graph}-${k}`);
    this.draw();
  }
}

function hatching(colours) {
  const stripes = shape("pattern", { id: "again", width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    shape("rect", { width: 2, height: 7, fill: colours("again"), "fill-opacity": 0.22 }));
  const head = shape("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, markerUnits: "userSpaceOnUse", orient: "auto" },
    shape("path", { d: "M0 0L8 4L0 8z", fill: colours("edge") }));
  return shape("defs", {}, stripes, head);
}

function label(item) {
  const parts = [item.title, item.sub, ...item.lines.map((line) => line.text.replace("←", "reads"))];
  if (item.isGroup) parts.push("closed group");
  if (item.again && !item.isGroup) parts.push("recomputed");
  return parts.filter(Boolean).join(", ");
}

// --------------------------------------------------------------------------------------------------------- the viewer

class Viewer {
  constructor(shadow, host, model) {
    this.model = model;
    this.host = host;
    this.open = new Set();
    this.level = model.operations <= DETAILED ? "operation" : model.hasModules ? "module" : "line";
    this.colouring = "class";
    this.page = "graph";
    this.chosen = null; // {nodes, near, rows}
    this.root = element("div", { class: "viewer", "data-theme": themeOf(host), keydown: (event) => this.key(event) });
    shadow.append(this.root);
    this.panes = ["forward", "backward"].filter((graph) => model.nodes.some((n) => n.graph === graph)).map((g) => new Pane(this, g));
    this.main = element("main");
    this.details = element("div", { "aria-live": "polite" });
    this.root.append(this.header(), this.main, element("footer", {}, this.details));
    this.clear();
    this.show();
  }

  header() {
    const { data } = this.model, totals = data.totals;
    const sum = (graph) => this.model.nodes.filter((n, i) => n.graph === graph && this.model.isOperation[i]).length;
    const facts = [[sum("forward"), "operations forward"], [sum("backward"), "backward"], [bytesName(totals.saved_bytes), "saved"],
      [totals.recomputed, "recomputed"], [bytesName(totals.peak_bytes), "at the peak"], ...(data.kernels ? [[data.kernels.length, "kernels"]] : []),
      ...(this.model.measured === null ? [] : [[bytesName(this.model.measured), "measured at the peak"]])];
    const line = element("span", { class: "totals" }, ...facts.flatMap(([number, name], i) =>
      [i ? " · " : null, element("b", {}, String(number)), ` ${name}`]));
    this.found = element("span", { class: "quiet", role: "status" });
    this.search = element("input", { type: "search", placeholder: "search (/)", size: 12, "aria-label": "search operations, shapes, lines, modules",
      input: () => this.find(), keydown: (event) => { if (event.key === "Enter") this.next(event.shiftKey ? -1 : 1); } });
    const levels = [["module", "Modules"], ["line", "Lines"], ["operation", "Operations"]];
    const colourings = [["class", "Class"], ...(data.regions.length ? [["region", "Region"]] : []), ...(data.kernels ? [["kernel", "Kernel"]] : [])];
    const button = (text, action, name) => element("button", { type: "button", click: action, "aria-label": name, title: name }, text);
    return element("header", {},
      element("h2", {}, `${data.name}: ${data.backend}, ${data.partition}`), line, element("span", { class: "break" }),
      this.choice("page", "view", [["graph", "Graph"], ["program", "Program"]]),
      this.choice("level", "level", levels.filter(([level]) => level !== "module" || this.model.hasModules)),
      colourings.length > 1 ? this.choice("colouring", "colours", colourings) : null, this.search, this.found, element("span", { class: "grow" }),
      button("SVG", () => this.download("svg"), "save as SVG"), button("PNG", () => this.download("png"), "save as PNG"),
      button("◐", () => this.theme(), "light or dark"));
  }

  choice(field, name, options) {
    const group = element("span", { class: "group", role: "group", "aria-label": name });
    const update = () => [...group.children].forEach((b, i) => b.setAttribute("aria-pressed", this[field] === options[i][0]));
    for (const [value, text] of options) {
      group.append(element("button", { type: "button", click: () => { this[field] = value; if (field === "level") this.open.clear(); update(); this.show(); } }, text));
    }
    update();
    return group;
  }

  /** Colours by their names in viewer.css. */
  get colours() {
    this.style ??= getComputedStyle(this.root);
    return (name) => this.style.getPropertyValue(`--${name}`).trim();
  }

  paint(item) {
    const colours = this.colours;
    if (this.colouring === "class" || item.isGroup) return [colours(item.class), colours(`${item.class}-line`)];
    const number = item.colour[this.colouring];
    if (number === null) return [colours("view"), colours("view-line")];
    const hue = (number * 137) % 360, isDark = this.root.dataset.theme === "dark";
    return [`hsl(${hue} 60% ${isDark ? 22 : 90}%)`, `hsl(${hue} 55% ${isDark ? 62 : 42}%)`];
  }

  show() {
    this.style = null;
    if (this.page === "program") {
      this.main.replaceChildren(this.program());
      return;
    }
    this.panes.forEach((pane) => pane.arrange());
    if (this.main.firstChild !== this.panes[0].root) { // else they would lose focus and place
      const columns = this.panes.map((pane) => pane.root);
      if (this.model.data.saved.length) columns.splice(1, 0, (this.column ??= this.values()));
      this.main.replaceChildren(...columns);
    }
    if (this.chosen) this.choose(this.chosen.nodes);
  }

  /** The column of saved values: activations first, the largest on top. */
  values() {
    const { data } = this.model, order = (row) => [row.kind === "activation" ? 0 : 1, -(row.bytes ?? 0)];
    const rows = data.saved.map((row, r) => [row, r]).sort(([a], [b]) => order(a)[0] - order(b)[0] || order(a)[1] - order(b)[1]);
    const most = Math.max(1, ...data.saved.map((row) => row.bytes ?? 0)), storages = new Set();
    this.rows = rows.map(([row, r]) => {
      const isFree = row.kind !== "activation", node = this.model.nodes[row.node], source = this.model.source(row.node);
      const isShared = storages.has(row.storage);
      storages.add(row.storage);
      const where = isFree ? row.kind : row.reason || (source ? `${source.file.split("/").pop()}:${source.line}` : "");
      const made = element("button", { type: "button", class: "value", "data-row": r, "aria-pressed": "false", click: () => this.chooseRow(r) },
        element("span", { class: "line" }, element("code", {}, node.label || row.name), element("span", {}, isShared ? "(shared)" : bytesName(row.bytes))),
        element("span", { class: "line quiet" }, element("span", {}, node.type), element("span", {}, where)),
        element("span", { class: isFree ? "bar free" : "bar" }));
      made.lastChild.style.width = `${Math.max(1, (100 * (isShared ? 0 : row.bytes ?? 0)) / most)}%`;
      return made;
    });
    return element("section", { class: "column values", "aria-label": "saved for backward" },
      element("h3", {}, `saved: ${bytesName(data.totals.saved_bytes)}, ${count(rows.length, "value")}`), element("div", { class: "scroll" }, ...this.rows));
  }

  // What is chosen, and what stands in relation to it.

  choose(nodes, from = null) {
    const { model } = this, near = new Set(), rows = new Set();
    for (const i of nodes) {
      [...model.nodes[i].inputs, ...model.users[i]].forEach((j) => near.add(j));
      for (const j of [i, ...model.nodes[i].inputs]) {
        if (!model.savedOf.has(j)) continue;
        const r = model.savedOf.get(j), row = model.data.saved[r];
        if (j !== i && model.nodes[i].graph === "forward") continue;
        rows.add(r);
        [row.node, row.placeholder, ...row.readers].forEach((k) => { if (k !== null) near.add(k); });
      }
    }
    this.chosen = { nodes, near, rows };
    this.mark(from);
    this.describe(nodes);
  }

  chooseRow(r) {
    const row = this.model.data.saved[r];
    this.chosen = { nodes: [row.node], near: new Set([row.placeholder, ...row.readers].filter((i) => i !== null)), rows: new Set([r]) };
    this.mark(null);
    this.describe([row.node]);
  }

  clear() {
    this.chosen = null;
    this.details.replaceChildren(element("div", { class: "quiet" },
      "Click an operation or a saved value; double-click or Enter opens a group, Escape closes what is open. Arrow keys walk, / searches, Ctrl and the wheel zoom."),
      element("div", { class: "legend" }, ...this.legend()));
    this.mark(null);
  }

  legend() {
    const classes = new Set(this.model.nodes.map((node) => node.class).filter((name) => name !== "input"));
    return [...classes].map((name) => {
      const box = element("i");
      box.style.background = `var(--${name})`;
      box.style.borderColor = `var(--${name}-line)`;
      return element("span", {}, box, name);
    });
  }

  /** Box -> "chosen" or "near", for a pane; null if nothing is chosen. */
  marks(pane) {
    if (!this.chosen && !this.hits) return null;
    const marks = new Map(), { model } = this;
    const boxes = (i) => (model.nodes[i].class === "input" ? model.users[i] : [i]).map((j) => pane.of.get(j)).filter((k) => k !== undefined);
    for (const i of this.chosen ? [] : this.hits) boxes(i).forEach((k) => marks.set(k, "near"));
    if (this.chosen) {
      for (const i of this.chosen.near) if (pane.of.has(i)) marks.set(pane.of.get(i), "near");
      for (const i of this.chosen.nodes) boxes(i).forEach((k) => marks.set(k, "chosen"));
    }
    return marks;
  }

  mark(from) {
    for (const row of this.rows ?? []) {
      const isIn = this.chosen?.rows.has(Number(row.dataset.row)) ?? false;
      row.setAttribute("aria-pressed", isIn);
      row.classList.toggle("dim", Boolean(this.chosen) && !isIn);
      if (isIn && from?.graph) row.scrollIntoView({ block: "nearest" });
    }
    if (this.page === "program") return void this.table?.();
    for (const pane of this.panes) {
      if (!pane.items) continue;
      const marks = this.marks(pane), wanted = marks && ([...marks].find(([, m]) => m === "chosen") ?? [...marks].sort((a, b) => a[0] - b[0])[0]);
      if (wanted && this.chosen) pane.reveal(wanted[0]);
      else pane.draw();
    }
  }

  toggle(item) {
    if (item.isGroup) {
      const [kind] = item.key.split("|"); // a stack opens to its modules
      this.open.add(kind);
      this.show();
    }
  }

  /** Close the innermost open group around what is chosen; without that, everything. */
  close() {
    const i = this.chosen?.nodes[0];
    const keys = i === undefined ? [] : [this.model.lineKey(i), ...this.model.around(i).map((p) => `module:${p}`),
      ...this.model.around(i).map((p) => `stack:${p.replace(/\d+/g, "#")}`)].filter((key) => this.open.has(key));
    if (keys.length) this.open.delete(keys.pop());
    else if (this.chosen || this.hits) { this.hits = null; this.search.value = ""; this.found.textContent = ""; this.clear(); return; }
    else this.open.clear();
    this.show();
  }

  key(event) {
    if (event.key === "Escape") this.close();
    else if (event.key === "/" && event.composedPath()[0] !== this.search) { event.preventDefault(); this.search.focus(); }
  }

  // Search.

  find() {
    const words = this.search.value.trim().toLowerCase().split(/\s+/).filter(Boolean), { model } = this;
    this.hits = words.length ? model.nodes.map((_, i) => i).filter((i) => words.every((word) => model.text(i).includes(word))) : null;
    this.at = -1;
    this.found.textContent = this.hits ? `${count(this.hits.length, "hit")}` : "";
    this.clear();
  }

  /** Go to another hit; the groups around it open. */
  next(step) {
    if (!this.hits?.length) return;
    this.at = (this.at + step + this.hits.length) % this.hits.length;
    const i = this.hits[this.at], before = this.open.size;
    if (this.level === "line") this.open.add(this.model.lineKey(i));
    if (this.level === "module") this.model.around(i).forEach((path) => { this.open.add(`module:${path}`); this.open.add(`stack:${path.replace(/\d+/g, "#")}`); });
    this.found.textContent = `${this.at + 1} of ${this.hits.length}`;
    this.chosen = { nodes: [i], near: new Set(), rows: new Set() };
    if (this.open.size > before) this.show();
    else this.choose([i]);
  }

  // Details of what is chosen.

  describe(nodes) {
    const { model } = this, operations = nodes.filter((i) => model.isOperation[i]);
    const rows = operations.length > 1 ? this.ofGroup(nodes, operations) : this.ofNode(operations[0] ?? nodes[0]);
    this.details.replaceChildren(element("dl", {}, ...rows.filter(([, text]) => text).flatMap(([name, text, style]) =>
      [element("dt", {}, name), element("dd", { class: style ?? "mono" }, text)])));
  }

  ofNode(i) {
    const { model } = this, node = model.nodes[i], source = model.source(i), row = model.data.saved[model.savedOf.get(i)];
    const names = (list) => clip(list.map((j) => model.nodes[j].name).join(", "), 300);
    const region = node.region === null ? null : model.data.regions[node.region];
    const kernels = node.kernels.map((k) => ({ number: k, ...model.data.kernels[k] }));
    const cost = node.cost && [`${bytesName(node.cost.nbytes)} moved`, node.cost.flops ? `${node.cost.flops} FLOP` : "",
      node.cost.seconds === null ? "" : `about ${(node.cost.seconds * 1e6).toPrecision(3)} us`].filter(Boolean).join(", ");
    return [
      [node.name, node.target ? `${node.target} = ${node.expression}` : `${node.role}${node.label ? ` ${node.label}` : ""}`],
      ["type", `${node.type}  ${bytesName(node.tensors.reduce((sum, t) => sum + (t.bytes ?? 0), 0))}`],
      ["source", source && `${source.file}:${source.line}  ${source.code}`],
      ["module", node.module && `${node.module}${model.data.modules[node.module] ? ` (${model.data.modules[node.module]})` : ""}`],
      ["saved", row && `${row.kind}, ${bytesName(row.bytes)}${row.reason ? `: ${row.reason}` : ""}`, "kept"],
      ["recomputed", cost, "again"],
      ["region", region && `${node.region} of ${region.backend}, ${count(region.nodes.length, "operation")}${region.failure ? `; failed: ${region.failure}` : ""}`],
      ["in no region", node.outside.join("; ")],
      [kernels.length > 1 ? "kernels" : "kernel", kernels.map((k) =>
        [`${k.number} ${k.name} (${k.language})`, count(k.nodes.length, "operation"), k.seconds === null ? "" : `${(k.seconds * 1e6).toPrecision(3)} us`,
          k.peak_bytes === null ? "" : `${bytesName(k.peak_bytes)} held`, k.why && `alone: ${k.why}`].filter(Boolean).join(", ")).join("; ")],
      ["read by", names(model.users[i])],
    ];
  }

  ofGroup(nodes, operations) {
    const { model } = this, tally = new Map();
    for (const i of operations) tally.set(model.nodes[i].operator, (tally.get(model.nodes[i].operator) ?? 0) + 1);
    const lines = new Set(nodes.map((i) => model.source(i)).filter(Boolean).map((s) => `${s.file.split("/").pop()}:${s.line}  ${s.code}`));
    const again = operations.filter((i) => model.nodes[i].role === "recomputed").length;
    return [
      ["operations", `${operations.length}: ${[...tally].sort((a, b) => b[1] - a[1]).map(([name, n]) => (n > 1 ? `${n} × ${name}` : name)).join(", ")}`],
      ["modules", clip([...new Set(nodes.map((i) => model.nodes[i].module).filter(Boolean))].join(", "), 300)],
      ["saved", model.nodes[nodes[0]].graph === "forward" ? bytesName(model.savedBytes(nodes)) : "", "kept"],
      ["recomputed", again ? count(again, "operation") : "", "again"],
      ["source", clip([...lines].join("   "), 500)],
    ];
  }

  // The program in its order, with what is alive at each step.

  program() {
    const { model } = this, { memory, totals } = model.data, peak = Math.max(1, totals.peak_bytes);
    const steps = model.nodes.map((_, i) => i).filter((i) => model.nodes[i].class !== "input");
    const head = ["step", "name", "operator", "type", "bytes", "source", "alive: saved, all"];
    const space = element("div", { class: "rows", role: "table", "aria-rowcount": steps.length + 1, "aria-label": "program and memory" });
    const box = element("div", { class: "scroll", tabindex: 0 }, space);
    space.style.height = `${(steps.length + 1) * ROW}px`;
    const cells = (texts, role) => texts.map((text) => (typeof text === "string" ? element("span", { role }, text) : text));
    const line = (k) => {
      const i = steps[k], node = model.nodes[i], source = model.source(i), live = memory.live[i], saved = Math.min(live, memory.saved[i]);
      const bar = element("span", { class: "live", role: "cell" }, element("i"), element("i"), element("span", { class: "quiet" }, ` ${bytesName(live)}`));
      [[saved, "saved"], [live - saved, "live"]].forEach(([bytes, colour], k) => {
        bar.children[k].style.width = `${(170 * bytes) / peak}px`;
        bar.children[k].style.background = `var(--${colour})`;
      });
      const mark = this.chosen?.nodes.includes(i) ? " chosen" : "";
      const row = element("div", { class: `row mono${mark}`, role: "row", "aria-rowindex": k + 2, click: () => this.choose([i]) },
        ...cells([String(i), `${node.name}`, node.operator, node.type,
          node.tensors.length ? bytesName(node.tensors.reduce((sum, t) => sum + (t.bytes ?? 0), 0)) : "",
          source ? `${source.line}: ${source.code}` : "", bar], "cell"));
      row.style.top = `${(k + 1) * ROW}px`;
      if (node.role === "recomputed") row.children[1].className = "again";
      if (model.savedOf.has(i)) row.children[1].className = "kept";
      return row;
    };
    this.table = () => {
      const first = Math.max(0, Math.floor(box.scrollTop / ROW) - 10), last = Math.min(steps.length, first + Math.ceil(box.clientHeight / ROW) + 20);
      const rows = [element("div", { class: "row head", role: "row", "aria-rowindex": 1 }, ...cells(head, "columnheader"))];
      for (let k = first; k < last; k++) rows.push(line(k));
      space.replaceChildren(...rows);
    };
    box.addEventListener("scroll", this.table);
    new ResizeObserver(this.table).observe(box);
    const step = memory.live.indexOf(totals.peak_bytes), where = step >= 0 ? ` in step ${step}, ${model.nodes[step].name}` : "";
    const measured = model.measured === null ? "" : `${bytesName(model.measured)} with ${model.data.backend}'s kernels, as measured (line); `;
    return element("section", { class: "column", "aria-label": "program" },
      element("h3", {}, `forward, then backward; ${bytesName(totals.peak_bytes)} alive at most${where}, node by node; ${measured}inputs do not count`),
      this.curve((i) => { box.scrollTop = steps.findIndex((j) => j >= i) * ROW - box.clientHeight / 2; this.choose([i]); }), box);
  }

  /** What is alive at each step, drawn; a click goes to the step. */
  curve(go) {
    const { memory, totals, kernels } = this.model.data, width = 1000, height = 70, last = Math.max(1, memory.live.length - 1);
    const most = Math.max(1, totals.peak_bytes, this.model.measured ?? 0);
    const point = (bytes, i) => `${((width * i) / last).toFixed(1)} ${(height * (1 - bytes / most)).toFixed(1)}`;
    const area = (bytes) => `M0 ${height}${bytes.map((b, i) => `L${point(b, i)}`).join("")}L${width} ${height}Z`;
    // What is held at a kernel is drawn at its last operation.
    const held = (kernels ?? []).filter((k) => k.peak_bytes !== null && k.nodes.length)
      .map((k) => [k.peak_bytes, Math.max(...k.nodes)]).sort((a, b) => a[1] - b[1]).map(([bytes, i]) => point(bytes, i));
    const between = (width * this.model.nodes.findIndex((node) => node.graph === "backward")) / last, colours = this.colours;
    const drawn = shape("svg", { class: "curve", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img",
      "aria-label": `memory alive, at most ${bytesName(totals.peak_bytes)}` },
      shape("path", { d: area(memory.live), fill: colours("live") }), shape("path", { d: area(memory.saved), fill: colours("saved") }),
      held.length ? shape("path", { class: "measured", d: `M${held.join("L")}`, fill: "none", stroke: colours("text"), "stroke-width": 1.5,
        "vector-effect": "non-scaling-stroke" }) : null,
      between > 0 ? shape("path", { d: `M${between} 0V${height}`, stroke: colours("text"), "stroke-dasharray": "4 3" }) : null);
    drawn.addEventListener("click", (event) => {
      const frame = drawn.getBoundingClientRect();
      go(Math.round((last * (event.clientX - frame.left)) / frame.width));
    });
    return drawn;
  }

  // Pictures.

  /** The whole of both graphs as one SVG; it needs no stylesheet. */
  picture() {
    const gap = 40, panes = this.panes, width = panes.reduce((sum, p) => sum + p.size.width + gap, 0);
    const height = Math.max(...panes.map((p) => p.size.height)) + 40, colours = this.colours;
    const image = shape("svg", { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}` },
      shape("rect", { width, height, fill: colours("page") }));
    let x = gap / 2;
    for (const pane of panes) {
      const heading = { x, y: 24, "font-size": 14, "font-family": "sans-serif", fill: colours("text") };
      image.append(shape("text", heading, `${this.model.data.name}: ${pane.graph}`),
        shape("g", { transform: `translate(${x} 36)` }, ...pane.picture(-Infinity, Infinity)));
      x += pane.size.width + gap;
    }
    return new XMLSerializer().serializeToString(image);
  }

  async image(kind) {
    const svg = this.picture(), picture = new Image();
    if (kind === "svg") return new Blob([svg], { type: "image/svg+xml" });
    picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`; // VS Code lets no blob be an image
    await picture.decode();
    const scale = Math.min(2, 16000 / Math.max(picture.width, picture.height)); // browsers draw no larger canvas
    const canvas = element("canvas", { width: Math.ceil(picture.width * scale), height: Math.ceil(picture.height * scale) });
    canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
    return await new Promise((resolve) => canvas.toBlob(resolve));
  }

  async download(kind) {
    const address = URL.createObjectURL(await this.image(kind)), link = element("a", { href: address, download: `graphs.${kind}` });
    this.root.append(link); // VS Code saves what it sees a click on
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  }

  theme() {
    this.root.dataset.theme = this.root.dataset.theme === "dark" ? "light" : "dark";
    this.show();
  }
}

/** The theme of the notebook or the page around; else what the user prefers. */
function themeOf(host) {
  const { jpThemeLight, vscodeThemeKind } = document.body.dataset; // of JupyterLab and nbconvert; of VS Code
  const said = { true: "light", false: "dark" }[jpThemeLight] ?? VS_CODE_THEMES[vscodeThemeKind]
    ?? { dark: "dark", default: "light", light: "light" }[document.documentElement.getAttribute("theme")]; // Colab
  return host.dataset.theme ?? said ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

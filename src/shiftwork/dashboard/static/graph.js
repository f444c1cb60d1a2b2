// Draws a DAG: layers by the longest path from a root, few crossings, the critical path marked.

import { h } from "./dom.js";

const WIDTH = 190;
const HEIGHT = 46;
const GAP_X = 56;
const GAP_Y = 18;
const SWEEPS = 6;
const DONE = new Set(["completed", "cancelled"]);

// nodes: {id, title, status, type, parents: [id]}
export function layout(nodes) {
  const known = new Map(nodes.map((node) => [node.id, node]));
  const parents = new Map(nodes.map((node) => [node.id, node.parents.filter((id) => known.has(id))]));
  const children = new Map(nodes.map((node) => [node.id, []]));
  for (const [id, above] of parents) for (const parent of above) children.get(parent).push(id);
  const order = sorted(nodes, parents, children);
  const layer = new Map();
  for (const id of order) layer.set(id, Math.max(0, ...parents.get(id).map((parent) => layer.get(parent) + 1)));
  const layers = [];
  for (const id of order) (layers[layer.get(id)] ??= []).push(id);
  untangle(layers, parents, children);
  const tallest = Math.max(1, ...layers.map((ids) => ids.length));
  const places = new Map();
  layers.forEach((ids, column) => {
    const top = ((tallest - ids.length) * (HEIGHT + GAP_Y)) / 2;
    ids.forEach((id, row) => places.set(id, { x: column * (WIDTH + GAP_X), y: top + row * (HEIGHT + GAP_Y) }));
  });
  const size = { width: layers.length * (WIDTH + GAP_X) - GAP_X, height: tallest * (HEIGHT + GAP_Y) - GAP_Y };
  return { places, parents, order, size, critical: critical(order, parents, known) };
}

function sorted(nodes, parents, children) {
  const open = new Map([...parents].map(([id, above]) => [id, above.length]));
  const ready = nodes.filter((node) => !open.get(node.id)).map((node) => node.id);
  const order = [];
  for (let id = ready.shift(); id !== undefined; id = ready.shift()) {
    order.push(id);
    for (const child of children.get(id)) {
      open.set(child, open.get(child) - 1);
      if (!open.get(child)) ready.push(child);
    }
  }
  return order;
}

function untangle(layers, parents, children) {
  const place = new Map();
  const note = (ids) => ids.forEach((id, row) => place.set(id, row / Math.max(1, ids.length - 1)));
  layers.forEach(note);
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const down = sweep % 2 === 0;
    const ways = down ? parents : children;
    for (const ids of down ? layers : [...layers].reverse()) {
      const middle = new Map(ids.map((id) => [id, mean(ways.get(id).map((other) => place.get(other)), place.get(id))]));
      ids.sort((a, b) => middle.get(a) - middle.get(b));
      note(ids);
    }
  }
}

function mean(values, otherwise) {
  return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : otherwise;
}

// The longest chain of unfinished tasks, which determines the end.
function critical(order, parents, known) {
  const length = new Map();
  const before = new Map();
  let last = null;
  for (const id of order) {
    const own = DONE.has(known.get(id).status) ? 0 : 1;
    let best = null;
    for (const parent of parents.get(id)) if (best === null || length.get(parent) > length.get(best)) best = parent;
    length.set(id, own + (best === null ? 0 : length.get(best)));
    before.set(id, best);
    if (own && (last === null || length.get(id) > length.get(last))) last = id;
  }
  const path = new Set();
  for (let id = last; id !== null && id !== undefined; id = before.get(id)) if (!DONE.has(known.get(id).status)) path.add(id);
  return path;
}

export function draw(nodes, { selected = null, choose }) {
  const { places, parents, size, critical: path } = layout(nodes);
  const edges = [];
  for (const [id, above] of parents) {
    for (const parent of above) {
      const marked = path.has(id) && path.has(parent);
      edges.push(h("path", { class: marked ? "edge critical" : "edge", d: curve(places.get(parent), places.get(id)) }));
    }
  }
  const boxes = nodes.filter((node) => places.has(node.id)).map((node) => box(node, places.get(node.id), path.has(node.id), node.id === selected, choose));
  const pad = 12;
  return h(
    "svg",
    {
      class: "graph",
      viewBox: `${-pad} ${-pad} ${size.width + 2 * pad} ${size.height + 2 * pad}`,
      width: size.width + 2 * pad,
      height: size.height + 2 * pad,
      role: "group",
      "aria-label": `${nodes.length} tasks and their dependencies`,
    },
    h("g", {}, edges),
    h("g", {}, boxes),
  );
}

function curve(from, there) {
  const [x1, y1, x2, y2] = [from.x + WIDTH, from.y + HEIGHT / 2, there.x, there.y + HEIGHT / 2];
  const bend = Math.max(24, (x2 - x1) / 2);
  return `M${x1},${y1} C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}`;
}

function box(node, place, critical, selected, choose) {
  const name = node.title || node.type;
  const words = ["node", `is-${node.status}`, critical && "critical", selected && "selected"].filter(Boolean).join(" ");
  const pick = (event) => {
    if (event.type === "keydown" && event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    choose(node.id);
  };
  return h(
    "g",
    { class: words, "data-key": node.id, transform: `translate(${place.x} ${place.y})`, tabindex: "0", role: "button", "aria-label": `${name}, ${node.status}`, onclick: pick, onkeydown: pick },
    h("title", {}, `${name} – ${node.status}`),
    h("rect", { class: "box", width: WIDTH, height: HEIGHT, rx: 8 }),
    h("rect", { class: "mark", width: 5, height: HEIGHT - 16, x: 7, y: 8, rx: 2.5 }),
    h("text", { class: "name", x: 20, y: 20 }, cut(name, 21)),
    h("text", { class: "state", x: 20, y: 36 }, cut(`${node.status.replaceAll("_", " ")}${node.agent ? ` · ${node.agent}` : ""}`, 25)),
  );
}

function cut(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

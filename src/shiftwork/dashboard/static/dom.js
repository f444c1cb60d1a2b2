// Elements from data. Text is always inserted as text, so that agents' output never becomes markup.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "g", "path", "rect", "line", "circle", "text", "title", "defs", "marker", "polyline"]);

export function h(tag, attributes, ...children) {
  const node = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  node.handlers = {};
  for (const [name, value] of Object.entries(attributes ?? {})) set(node, name, value);
  append(node, children);
  return node;
}

function set(node, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name.startsWith("on")) {
    node[name] = value;
    node.handlers[name] = value;
  } else if (name === "style") {
    for (const [key, each] of Object.entries(value)) node.style.setProperty(key, each);
  } else if (name === "value") {
    node.value = value;
    node.given = value;
  } else if (name === "checked" || name === "selected" || name === "open") {
    node[name] = true;
    node.setAttribute(name, "");
  } else {
    node.setAttribute(name, value === true ? "" : String(value));
  }
}

function append(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

// Update a displayed tree to match a new one. Focus, scroll positions, open details and unfinished input survive.
export function patch(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || key(old) !== key(fresh)) {
    old.replaceWith(fresh);
    return fresh;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return old;
  }
  patchAttributes(old, fresh);
  if (old.dataset?.kept === undefined) patchChildren(old, fresh);
  return old;
}

function patchAttributes(old, fresh) {
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (name !== "style" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  // Through the object model, since the page's policy forbids inline styles.
  if (old.style && old.style.cssText !== fresh.style.cssText) old.style.cssText = fresh.style.cssText;
  for (const name of Object.keys(old.handlers ?? {})) if (!(name in fresh.handlers)) old[name] = null;
  for (const [name, handler] of Object.entries(fresh.handlers ?? {})) old[name] = handler;
  old.handlers = fresh.handlers;
  if (old.type === "checkbox") old.checked = fresh.checked; // a checkbox that was clicked no longer follows its attribute
  if (fresh.given !== undefined && old.given !== fresh.given && old !== document.activeElement) old.value = fresh.value;
  if (fresh.given !== undefined) old.given = fresh.given;
}

function patchChildren(old, fresh) {
  const keyed = new Map([...old.childNodes].filter(key).map((node) => [key(node), node]));
  let place = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const same = key(wanted) ? keyed.get(key(wanted)) : place && !key(place) ? place : null;
    if (same) {
      if (same !== place) old.insertBefore(same, place);
      place = patch(same, wanted).nextSibling;
    } else {
      old.insertBefore(wanted, place);
    }
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

function key(node) {
  return node.dataset?.key;
}

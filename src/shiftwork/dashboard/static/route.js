// The address: the path names the page, the query its filters, so that every view can be shared as a link.

let changed = () => {};

export function onChange(listener) {
  changed = listener;
  addEventListener("popstate", () => listener());
}

export function query() {
  return Object.fromEntries(new URLSearchParams(location.search));
}

// A path of the dashboard that keeps the workspace.
export function to(path, filters = {}) {
  const words = new URLSearchParams();
  const workspace = new URLSearchParams(location.search).get("workspace");
  for (const [name, value] of Object.entries({ ...filters, ...(workspace ? { workspace } : {}) })) {
    if (value !== null && value !== undefined && value !== "") words.set(name, value);
  }
  return words.size ? `${path}?${words}` : path;
}

export function go(address, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", address);
  changed();
}

export function setFilters(filters) {
  go(to(location.pathname, { ...query(), ...filters }), { replace: true });
}

// Links are real links: they can be opened in a new tab and copied, and Back works.
export function follow(event) {
  const link = event.target.closest?.("a[data-inside]");
  if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
  event.preventDefault();
  go(link.getAttribute("href"));
}

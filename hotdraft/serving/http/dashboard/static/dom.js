// Small things around the DOM. Whatever a client may have written goes in as text, never as markup.

export const byId = (id) => document.getElementById(id);

export function element(tag, { text, title, label, key, className, onClick, ...attributes } = {}, ...children) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  if (title) made.title = title;
  if (label) made.dataset.label = label;
  if (key) made.dataset.key = key;
  if (onClick) made.addEventListener("click", onClick);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function svg(tag, attributes = {}, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

export function setText(id, text) {
  const target = byId(id);
  if (target.textContent !== text) target.textContent = text;
}

// Says what is wrong, or with null that nothing is any more.
export function setProblem(id, problem) {
  const target = byId(id);
  target.hidden = problem === null;
  if (problem !== null) setText(id, problem);
}

// Replaces the children, and gives the focus back to the child with the same key if one of them had it.
export function replaceKeepingFocus(parent, children) {
  const key = parent.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  parent.replaceChildren(...children);
  if (key) [...parent.querySelectorAll("[data-key]")].find((child) => child.dataset.key === key)?.focus();
}

export const number = (value, digits = 3) => (value === undefined || value === null ? "–" : value.toFixed(digits));
export const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(3)}`;
export const versionName = (version) => (version ? `v${version}` : "base");

export function clock(seconds, withSeconds = true) {
  const time = new Date(seconds * 1000);
  const style = { hour: "2-digit", minute: "2-digit", ...(withSeconds && { second: "2-digit" }), hour12: false };
  const text = time.toLocaleTimeString([], style);
  if (time.toDateString() === new Date().toDateString()) return text;
  return `${time.toLocaleDateString([], { day: "numeric", month: "short" })} ${text}`;
}

export function duration(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${Math.round(seconds / 86400)} d`;
}

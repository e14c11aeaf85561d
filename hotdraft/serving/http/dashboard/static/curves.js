// The three charts over the served history, and which domains are shown.

import { LineChart } from "./chart.js";
import { byId, clock, element, number, replaceKeepingFocus, versionName } from "./dom.js";

const COLOURS = 7; // as many as the style sheet tells apart; then they come again, dashed
const SHOWN_AT_FIRST = 6;
const IDLE_INTERVALS = 3; // without a point for so long, nothing was served in between

const chosen = new Map(); // domain → whether it is shown, once somebody said so
let history = { points: [], swaps: [], interval_seconds: 5 };
let axis = "time";

const formatX = (x, span) => (axis === "time" ? clock(x, span < 1800) : Math.round(x).toString());
const pointAt = (x) => history.points.findLast((point) => point[axis] === x);
const prefix = (point) => `${clock(point.time)} · request ${point.request} · ${versionName(point.draft_version)}`;

function described(x, words) {
  const point = pointAt(x);
  return point ? `${prefix(point)} · ${words(point)}` : "";
}

const empty = "No traffic yet. The first point comes when the first request is served.";
const undrafted = "Nothing yet. The first point comes when a request is served that the draft was asked for.";
const acceptance = new LineChart(byId("acceptance-chart"), {
  label: "Acceptance rate over time with swaps; arrow keys read the points",
  formatX,
  formatY: (y) => y.toFixed(1),
  describe: (x) =>
    described(x, (point) => `acceptance ${number(point.acceptance_rate)}, ${number(point.mean_acceptance_length, 2)} tokens a round`),
  empty: undrafted,
  top: 1,
});
const byDomain = new LineChart(byId("domain-chart"), {
  label: "Acceptance rate by domain; arrow keys read the points",
  formatX,
  formatY: (y) => y.toFixed(1),
  describe: (x) =>
    described(x, (point) => {
      const rates = Object.entries(point.domains).filter(([domain]) => isShown(domain));
      return rates.map(([domain, rate]) => `${domain} ${number(rate)}`).join(", ") || "no domain shown was served";
    }),
  empty: undrafted,
  top: 1,
});
const speed = new LineChart(byId("speed-chart"), {
  label: "Tokens per second; arrow keys read the points",
  formatX,
  formatY: (y) => (y >= 1000 ? `${y / 1000}k` : `${+y.toFixed(2)}`),
  describe: (x) => described(x, (point) => `${number(point.tokens_per_second, 1)} tokens/s`),
  empty,
});

// In how many points each domain was served.
function domains() {
  const counts = new Map();
  for (const point of history.points)
    for (const domain of Object.keys(point.domains)) counts.set(domain, (counts.get(domain) ?? 0) + 1);
  return counts;
}

let names = []; // keeps its order, so that a domain keeps its colour
let frequent = new Set();
const isShown = (domain) => chosen.get(domain) ?? frequent.has(domain);
const colour = (index) => `c${index % COLOURS}${index >= COLOURS ? " dashed" : ""}`;

// Points between which the server was idle are of different runs; how rare a domain is does not part its line.
function line(className, value) {
  let run = 0;
  let before = -Infinity;
  const points = history.points.map((point) => {
    if (point.time - before > IDLE_INTERVALS * history.interval_seconds) run += 1;
    before = point.time;
    return { x: point[axis], y: value(point), run };
  });
  return { className, points: points.filter((point) => point.y !== undefined) };
}

function draw() {
  const start = history.points[0]?.[axis] ?? 0;
  const marks = history.swaps
    .filter((swap) => swap[axis] >= start)
    .map((swap) => ({
      x: swap[axis],
      label: `${swap.reason === "rollback" ? "↩ " : ""}${versionName(swap.version)}`,
      title: `${clock(swap.time)}, after request ${swap.request}: ${versionName(swap.version)} drafts (${swap.reason})`,
    }));
  acceptance.update({ series: [line("main", (point) => point.acceptance_rate)], marks });
  speed.update({ series: [line("main", (point) => point.tokens_per_second)], marks });
  const series = names.flatMap((name, index) =>
    isShown(name) ? [line(colour(index), (point) => point.domains[name])] : [],
  );
  byDomain.update({ series, marks });
}

function drawLegend() {
  const buttons = names.map((name, index) => {
    const swatch = element("span", { className: `swatch ${colour(index)}` });
    const toggle = () => {
      chosen.set(name, !isShown(name));
      drawLegend();
      draw();
    };
    const pressed = String(isShown(name));
    return element("button", { key: `domain ${name}`, "aria-pressed": pressed, onClick: toggle }, swatch, name);
  });
  replaceKeepingFocus(byId("domain-legend"), buttons);
}

export function showHistory(next) {
  history = next;
  const counts = domains();
  names = [...names.filter((name) => counts.has(name)), ...[...counts.keys()].filter((name) => !names.includes(name))];
  const ranked = [...names].sort((a, b) => counts.get(b) - counts.get(a));
  frequent = new Set(ranked.slice(0, SHOWN_AT_FIRST));
  drawLegend();
  draw();
}

export function setUpCurves() {
  byId("axis").addEventListener("change", (event) => {
    axis = event.target.value;
    draw();
  });
}

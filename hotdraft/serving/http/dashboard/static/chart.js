// A line chart in SVG with vertical marks, a crosshair for pointer and arrow keys, and its values in words.

import { element, svg } from "./dom.js";

const MARGIN = { top: 20, right: 14, bottom: 24, left: 42 };
const LABEL_WIDTH = 34;

// 0, and steps of 1, 2 or 5 times a power of ten up to the first at or above `top`.
function ticks(top, count) {
  const rough = top / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  return Array.from({ length: Math.ceil(top / step - 1e-9) + 1 }, (_, index) => index * step);
}

export class LineChart {
  // `describe(x)` says in words what stands at x; `formatX(x, span)` and `formatY(y)` label the axes.
  constructor(container, { label, formatX, formatY, describe, empty, top = 0 }) {
    Object.assign(this, { label, formatX, formatY, describe, top });
    this.data = { series: [], marks: [] };
    this.svg = svg("svg", { role: "img", tabindex: "0", "aria-label": label });
    this.readout = element("output", { className: "readout" });
    this.empty = element("p", { className: "empty", text: empty });
    container.append(this.svg, this.readout, this.empty);
    this.svg.addEventListener("pointermove", (event) => this.#point(event));
    this.svg.addEventListener("pointerdown", (event) => this.#point(event));
    this.svg.addEventListener("pointerleave", () => this.#select(null));
    this.svg.addEventListener("blur", () => this.#select(null));
    this.svg.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.#draw()).observe(container);
  }

  // series: [{className, points: [{x, y, run}]}] with x rising, a line for each run; marks: [{x, label, title}]
  update(data) {
    this.data = data;
    this.#draw();
  }

  #draw() {
    const { series, marks } = this.data;
    const points = series.flatMap((line) => line.points);
    const isEmpty = points.length === 0;
    this.empty.hidden = !isEmpty;
    this.svg.classList.toggle("hidden", isEmpty);
    this.readout.hidden = isEmpty;
    const width = this.svg.clientWidth;
    const height = this.svg.clientHeight;
    if (isEmpty || !width) return;

    this.xs = [...new Set(points.map((point) => point.x))].sort((a, b) => a - b);
    const first = Math.min(this.xs[0], ...marks.map((mark) => mark.x));
    const last = Math.max(this.xs.at(-1), ...marks.map((mark) => mark.x));
    const pad = last > first ? (last - first) * 0.015 : 1;
    const levels = ticks(Math.max(this.top, ...points.map((point) => point.y)) || 1, Math.floor(height / 36));
    const inner = { width: width - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom };
    this.toX = (x) => MARGIN.left + ((x - first + pad) / (last - first + 2 * pad)) * inner.width;
    const toY = (y) => MARGIN.top + inner.height * (1 - y / levels.at(-1));

    const parts = [];
    for (const level of levels) {
      parts.push(svg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: toY(level), y2: toY(level) }));
      parts.push(svg("text", { class: "tick end", x: MARGIN.left - 8, y: toY(level) + 4 }, this.formatY(level)));
    }
    const steps = last > first ? Math.max(1, Math.min(6, Math.floor(inner.width / 110))) : 0;
    for (let step = 0; step <= steps; step++) {
      const x = steps ? first + ((last - first) * step) / steps : first;
      const anchor = steps && step === 0 ? "start" : steps && step === steps ? "end" : "middle";
      parts.push(svg("text", { class: `tick ${anchor}`, x: this.toX(x), y: height - 6 }, this.formatX(x, last - first)));
    }
    parts.push(...this.#marks(marks, height));
    for (const line of series) parts.push(...this.#line(line, toY));
    this.crosshair = svg("line", { class: "crosshair", y1: MARGIN.top, y2: height - MARGIN.bottom });
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren(...parts, this.crosshair);
    this.#select(this.selected ?? null);
  }

  #marks(marks, height) {
    let free = -Infinity; // where the next label has room
    return marks.flatMap((mark) => {
      const x = this.toX(mark.x);
      const line = svg("line", { class: "mark", x1: x, x2: x, y1: MARGIN.top - 4, y2: height - MARGIN.bottom });
      line.append(svg("title", {}, mark.title));
      if (x - LABEL_WIDTH / 2 < free) return [line];
      free = x + LABEL_WIDTH / 2;
      return [line, svg("text", { class: "mark-label middle", x, y: MARGIN.top - 8 }, mark.label)];
    });
  }

  // A point alone in its run is a dot.
  #line({ className, points }, toY) {
    const runs = [];
    for (const point of points) {
      const run = runs.at(-1);
      if (run?.at(-1).run === point.run) run.push(point);
      else runs.push([point]);
    }
    return runs.map((run) => {
      const places = run.map((point) => `${this.toX(point.x).toFixed(1)},${toY(point.y).toFixed(1)}`);
      if (run.length > 1) return svg("polyline", { class: `line ${className}`, points: places.join(" ") });
      const [cx, cy] = places[0].split(",");
      return svg("circle", { class: `dot ${className}`, cx, cy, r: 2.5 });
    });
  }

  #point(event) {
    if (!this.toX) return;
    const at = event.clientX - this.svg.getBoundingClientRect().left;
    const distance = (x) => Math.abs(this.toX(x) - at);
    this.#select(this.xs.reduce((best, x) => (distance(x) < distance(best) ? x : best)));
  }

  #key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
    if (!(event.key in steps) || !this.xs?.length) return;
    event.preventDefault();
    const at = this.selected == null ? this.xs.length : this.xs.indexOf(this.selected);
    this.#select(this.xs[Math.max(0, Math.min(this.xs.length - 1, at + steps[event.key]))]);
  }

  #select(x) {
    this.selected = x !== null && this.xs?.includes(x) ? x : null;
    if (!this.crosshair) return;
    const shown = this.selected !== null;
    this.crosshair.classList.toggle("shown", shown);
    if (shown) for (const end of ["x1", "x2"]) this.crosshair.setAttribute(end, this.toX(x));
    const words = this.describe(shown ? x : this.xs.at(-1));
    if (this.readout.textContent !== words) this.readout.textContent = words;
  }
}

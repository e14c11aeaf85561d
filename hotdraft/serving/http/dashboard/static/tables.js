// The versions and the jobs as tables, drawn anew only when something changed.

import { byId, clock, duration, element, number, replaceKeepingFocus, setText, signed, versionName } from "./dom.js";

const cell = (label, text, more = {}) => element("td", { label, text, ...more });
const chip = (word) => element("span", { className: `chip is-${word}`, text: word.replace("_", " ") });
const SHOWN = 8; // rows, until all are asked for
const drawn = new Map();
const whole = new Set(); // tables that are shown whole

function draw(id, items, row) {
  const table = byId(id);
  table.hidden = items.length === 0;
  byId(`${id}-empty`).hidden = items.length > 0;
  const shown = whole.has(id) ? items : items.slice(0, SHOWN);
  const more = byId(`${id}-more`);
  more.hidden = shown.length === items.length;
  setText(more.id, `Show all ${items.length}`);
  more.onclick = () => {
    whole.add(id);
    draw(id, items, row);
  };
  const content = JSON.stringify(shown);
  if (drawn.get(id) === content) return;
  drawn.set(id, content);
  replaceKeepingFocus(table.tBodies[0], shown.map(row));
}

function gainCell({ gain, gain_low: low, gain_high: high }) {
  const text = gain === undefined ? "" : signed(Number(gain));
  const made = cell("Gain", text, { className: "number", title: "expected acceptance gained over its parent on held-out requests" });
  if (text && low !== undefined && high !== undefined)
    made.append(element("span", { className: "range", text: ` (${signed(Number(low))} to ${signed(Number(high))})` }));
  return made;
}

// What the gate or the watchdog said, what a person said, and what the watchdog found while that stood.
const why = (tags) => [tags.reason, tags.by_hand && `by hand: ${tags.by_hand}`, tags.watchdog].filter(Boolean).join(" · ");

export function showVersions({ adapters, champion, pinned }, { onPromote }) {
  const rollback = byId("rollback");
  byId("unpin").hidden = !pinned;
  byId("unpin").disabled = false;
  byId("pinned").hidden = !pinned;
  setText("pinned", `${champion ? versionName(champion) : "No adapter"} is pinned by hand: the watchdog warns, jobs publish, and neither moves the champion.`);
  rollback.disabled = !champion;
  rollback.dataset.version = champion;
  draw("versions", adapters, ({ version, status, tags, created_at, pinned }) => {
    const actions = element("td", { className: "actions" });
    if (version !== champion)
      actions.append(
        element("button", { text: "Promote…", key: `promote ${version}`, "aria-label": `Promote version ${version}`, onClick: () => onPromote(version) }),
      );
    const state = cell("Status");
    state.append(chip(status), pinned ? " pinned" : "");
    const parent = tags.parent === undefined ? "" : versionName(Number(tags.parent));
    return element(
      "tr",
      { className: version === champion ? "current" : "" },
      element("th", { scope: "row", text: versionName(version) }),
      state,
      cell("Parent", parent),
      gainCell(tags),
      cell("Made", clock(created_at, false)),
      cell("Reason", why(tags), { className: "why" }),
      actions,
    );
  });
}

// How far the training of a job is; the gate comes after, when 0 seconds are left, whether or not all steps were taken.
function progressBar({ step, steps, loss, seconds_left: left }) {
  const judged = left === 0;
  const rest = judged ? "being judged" : left && `about ${duration(left)} left`;
  const words = [judged ? `${step} steps` : `step ${step} of ${steps}`, loss !== null && `loss ${number(loss)}`, rest];
  const label = words.filter(Boolean).join(" · ");
  return element("div", { text: label }, element("progress", { value: judged ? steps : step, max: steps, "aria-label": label }));
}

export const isUnderWay = ({ state }) => ["running", "cancelling"].includes(state);

export function showJobs({ jobs }, { onLog, onCancel }) {
  draw("jobs", jobs, (job) => {
    const actions = element("td", { className: "actions" });
    if (job.state === "running")
      actions.append(
        element("button", { text: "Cancel…", key: `cancel ${job.id}`, "aria-label": `Cancel job ${job.id}`, onClick: () => onCancel(job) }),
      );
    actions.append(
      element("button", { text: "Log", key: `log ${job.id}`, "aria-label": `Log of job ${job.id}`, onClick: () => onLog(job) }),
    );
    const state = cell("State");
    state.append(chip(job.state));
    const reason = cell("Reason", job.reason ?? "", { className: "why" });
    if (job.progress && isUnderWay(job)) reason.append(progressBar(job.progress));
    const took = job.ended_at ? duration(job.ended_at - job.started_at) : "";
    return element(
      "tr",
      {},
      state,
      cell("Started", clock(job.started_at)),
      cell("Took", took),
      cell("By", job.origin),
      cell("Version", job.version ? versionName(job.version) : ""),
      reason,
      actions,
    );
  });
}

// The page: asks the server every few seconds and shows what it says, or that it says nothing.

import { setUpActions, showLog } from "./actions.js";
import { ask, Refused, setUpKeyDialog, Unreachable } from "./api.js";
import { setUpCurves, showHistory } from "./curves.js";
import { byId, clock, duration, number, setProblem, setText, versionName } from "./dom.js";
import { isUnderWay, showJobs, showVersions } from "./tables.js";

const STATUS_MS = 2000;
const REST_MS = 4000;
const TRAINER = {
  waiting: "ended, is started again soon",
  stopped: "ended",
  absent: "the server runs without one",
};

let kInUse = ""; // by the newest point of the curves
let jobRuns = false;

const last = (list) => list[list.length - 1];
const baseName = (path) => path.split("/").at(-1);

function nextJob({ loop_enabled, next_job }) {
  if (!loop_enabled) return "the loop is switched off";
  return next_job ? `next job: ${next_job}`.replace(": waiting:", " waits:") : "learns what is served";
}

function showStatus(now) {
  setText("model", [now.model, `target ${baseName(now.target)}`, now.draft && `draft ${baseName(now.draft)}`].filter(Boolean).join(" · "));
  document.title = `${now.model} · hotdraft`;
  setText("draft-version", now.draft ? versionName(now.draft_version) : "none");
  setText("draft-note", now.draft ? (now.draft_version ? "adapter served" : "no adapter yet") : now.k === "auto" ? "guesses from text alone" : "plain decoding");
  setText("requests", `${now.num_running} / ${now.num_slots}`);
  setText("requests-note", now.num_waiting ? `slots in use, ${now.num_waiting} waiting` : "slots in use, none waiting");
  setText("k", `${now.k_override ?? now.k}`);
  setText("k-note", (now.k_override === null ? "as configured" : "set by hand") + kInUse);
  setText("trainer", now.trainer);
  setText("trainer-note", jobRuns ? "a job is running" : now.trainer === "running" ? nextJob(now) : TRAINER[now.trainer]);
  const loop = byId("loop");
  loop.disabled = false;
  loop.setAttribute("aria-checked", String(now.loop_enabled));
  byId("start-job").disabled = !now.draft;
  setText("connection", `up ${duration(now.uptime_seconds)}`);
  byId("connection").className = "chip is-running";
}

function showNow(now) {
  showHistory(now);
  const point = last(now.points);
  const drafted = now.points.findLast((each) => each.acceptance_rate !== undefined);
  setText("acceptance", number(drafted?.acceptance_rate));
  const nothing = point ? "no draft was asked" : "no traffic yet";
  setText("acceptance-note", drafted ? `${number(drafted.mean_acceptance_length, 2)} tokens a round` : nothing);
  const costed = now.points.findLast((each) => each.speedup !== undefined);
  setText("speedup", costed ? `${number(costed.speedup, 2)}×` : "–");
  setText("speedup-note", "over k = 0, by measured costs of rounds");
  const mixed = now.points.findLast((each) => each.mean_k !== undefined);
  kInUse = mixed ? `; ${number(mixed.mean_k, 1)} in use, ${Math.round(100 * mixed.plain_share)} % of rounds plain` : "";
  const idle = point && now.time - point.time > 2 * now.interval_seconds;
  setText("speed", point ? (idle ? "0" : number(point.tokens_per_second, 1)) : "–");
  setText("speed-note", point ? (idle ? `idle since ${clock(point.time)}` : `last ${duration(now.interval_seconds)}`) : "no traffic yet");
}

function showK({ k_override, configured_k, max_k }) {
  const select = byId("k-select");
  const auto = max_k > 0 || configured_k === "auto" ? ["auto"] : [];
  const values = ["", ...auto, ...Array.from({ length: max_k + 1 }, (_, k) => `${k}`)];
  const configured = `as configured (${configured_k})`;
  if (select.options.length !== values.length || select.options[0].text !== configured)  // a restart may have another
    select.replaceChildren(...values.map((value) => new Option(value || configured, value)));
  select.disabled = max_k === 0 && configured_k !== "auto";
  if (document.activeElement !== select) select.value = k_override === null ? "" : `${k_override}`;
}

function showAllJobs(answer) {
  jobRuns = answer.jobs.some(isUnderWay);
  showJobs(answer, handlers);
}

function showUnreachable(error) {
  setText("connection", "no connection");
  byId("connection").className = "chip is-failed";
  for (const id of ["loop", "k-select", "start-job", "rollback", "unpin"]) byId(id).disabled = true;
  setProblem("problem", `${error.message} What is shown is from before; the page goes on by itself when the server is back.`);
}

// Asks for `path` and shows the answer. A refusal is told in `problemId`, and taken back when it is over.
function part(path, show, problemId) {
  let told = false;
  return async () => {
    try {
      show(await ask(path));
      if (told) setProblem(problemId, null);
      told = false;
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      setProblem(problemId, error.message);
      told = true;
    }
  };
}

const handlers = setUpActions(() => refreshAll());
const statusPart = part("status", showStatus, "problem");
const rest = [
  part("history", showNow, "problem"),
  part("adapters", (answer) => showVersions(answer, handlers), "versions-problem"),
  part("k", showK, "controls-problem"),
  part("jobs", showAllJobs, "jobs-problem"),
  showLog,
];
let unreachable = false;

async function run(parts) {
  try {
    await Promise.all(parts.map((each) => each()));
    if (unreachable) setProblem("problem", null);
    unreachable = false;
  } catch (error) {
    if (!(error instanceof Unreachable)) throw error;
    unreachable = true;
    showUnreachable(error);
  }
}

const refreshAll = () => run([statusPart, ...rest]);

// One question after the other, never two at once; a page that nobody sees asks nothing.
function repeat(parts, pause) {
  const turn = async () => {
    try {
      if (!document.hidden) await run(parts);
    } finally {
      setTimeout(turn, pause);
    }
  };
  turn();
}

setUpKeyDialog(refreshAll);
setUpCurves();
repeat([statusPart], STATUS_MS);
repeat(rest, REST_MS);
document.addEventListener("visibilitychange", () => !document.hidden && refreshAll());

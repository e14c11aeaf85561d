// What an operator can do from the page: each asks the server, says what it answered, and looks again.

import { ask, Refused } from "./api.js";
import { byId, setProblem, setText, versionName } from "./dom.js";

const TOLD_MS = 15000; // how long a refusal stands

// A question with a yes and a no; gives the reason typed, or null for no.
function confirmed({ title, text, yes, withReason = false }) {
  const dialog = byId("confirm");
  setText("confirm-title", title);
  setText("confirm-text", text);
  setText("confirm-yes", yes);
  byId("reason-label").hidden = !withReason;
  byId("reason").value = dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes" ? byId("reason").value.trim() : null), { once: true });
  });
}

// Does it, and shows for a while where it belongs why it was not done.
async function attempt(problemId, action, refresh) {
  try {
    await action();
    setProblem(problemId, null);
  } catch (error) {
    const words = error instanceof Refused && error.status === 409 ? `Not now: ${error.message}` : error.message;
    setProblem(problemId, words);
    setTimeout(() => byId(problemId).textContent === words && setProblem(problemId, null), TOLD_MS);
  }
  await refresh();
}

const reasoned = (reason) => ({ method: "POST", body: reason ? { reason } : {} });

export function setUpActions(refresh) {
  byId("rollback").addEventListener("click", async () => {
    const version = Number(byId("rollback").dataset.version);
    const reason = await confirmed({
      title: `Roll back ${versionName(version)}?`,
      text: "The champion before it serves again, swapped in within a second or two, and stays until it is unpinned. No request is dropped.",
      yes: "Roll back",
      withReason: true,
    });
    if (reason !== null) await attempt("versions-problem", () => ask("adapters/rollback", reasoned(reason)), refresh);
  });
  byId("unpin").addEventListener("click", () => attempt("versions-problem", () => ask("adapters/unpin", { method: "POST" }), refresh));
  byId("start-job").addEventListener("click", () => attempt("jobs-problem", () => ask("jobs", { method: "POST" }), refresh));
  byId("confirm-no").addEventListener("click", () => byId("confirm").close());
  byId("log-close").addEventListener("click", () => (byId("log").hidden = true));
  byId("loop").addEventListener("click", () => {
    const enabled = byId("loop").getAttribute("aria-checked") !== "true";
    return attempt("controls-problem", () => ask("loop", { method: "PUT", body: { enabled } }), refresh);
  });
  const select = byId("k-select");
  select.addEventListener("change", () => {
    const k = select.value === "" ? null : select.value === "auto" ? "auto" : Number(select.value);
    return attempt("controls-problem", () => ask("k", { method: "PUT", body: { k } }), refresh);
  });

  return {
    async onPromote(version) {
      const reason = await confirmed({
        title: `Promote ${versionName(version)}?`,
        text: "It becomes the champion, swapped in within a second or two, and stays until it is unpinned. No request is dropped.",
        yes: "Promote",
        withReason: true,
      });
      if (reason !== null)
        await attempt("versions-problem", () => ask(`adapters/${version}/promote`, reasoned(reason)), refresh);
    },
    async onCancel({ id }) {
      const answer = await confirmed({
        title: "Cancel the job?",
        text: `Job ${id} ends at its next step, without a verdict. What it learned is lost.`,
        yes: "Cancel the job",
      });
      if (answer !== null)
        await attempt("jobs-problem", () => ask(`jobs/${encodeURIComponent(id)}`, { method: "DELETE" }), refresh);
    },
    async onLog({ id }) {
      byId("log").dataset.job = id;
      byId("log").hidden = false;
      await showLog();
      byId("log-text").focus();
    },
  };
}

// The end of the log that is open, if one is; it is followed while its reader is at the bottom.
export async function showLog() {
  const panel = byId("log");
  if (panel.hidden) return;
  const id = panel.dataset.job;
  setText("log-title", `Log of job ${id}`);
  const text = byId("log-text");
  const atBottom = text.scrollTop + text.clientHeight >= text.scrollHeight - 4;
  try {
    const { log_tail } = await ask(`jobs/${encodeURIComponent(id)}`);
    if (panel.dataset.job === id) setText("log-text", log_tail || "It has not said anything yet.");
  } catch (error) {
    setText("log-text", error.message);
  }
  if (atBottom) text.scrollTop = text.scrollHeight;
}

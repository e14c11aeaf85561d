// Asking the server. A key, where it wants one, is kept for this tab and sent as a bearer token.

import { byId, setText } from "./dom.js";

const KEY = "hotdraft-api-key";
const PATIENCE_MS = 15000;

export class Unreachable extends Error {}
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export async function ask(path, { method = "GET", body } = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { Accept: "application/json" };
  if (key) headers.Authorization = `Bearer ${key}`;
  if (method !== "GET") headers["Content-Type"] = "application/json"; // which no page of another site can send
  let response;
  try {
    response = await fetch(`admin/${path}`, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.timeout(PATIENCE_MS),
      cache: "no-store",
    });
  } catch (error) {
    throw new Unreachable(error.name === "TimeoutError" ? "The server does not answer." : "The server cannot be reached.");
  }
  const answer = await response.json().catch(() => null);
  byId("give-key").hidden = response.status !== 401;
  if (response.ok && answer !== null) return answer;
  if (response.status === 401) {
    setText("connection", "no access");
    byId("connection").className = "chip is-failed";
    if (!declined) openKeyDialog();
  }
  throw new Refused(response.status, answer?.error?.message ?? `The server answered ${response.status}.`);
}

let declined = false; // then it opens by its button only

function openKeyDialog() {
  const dialog = byId("key-dialog");
  if (dialog.open) return;
  const refused = sessionStorage.getItem(KEY) !== null;
  setText("key-text", `${refused ? "The key given was refused." : "An admin key, if the server has any."} It is kept for this tab only.`);
  byId("key").value = dialog.returnValue = "";
  dialog.showModal();
}

export function setUpKeyDialog(onKey) {
  const dialog = byId("key-dialog");
  dialog.querySelector("form").addEventListener("submit", () => {
    sessionStorage.setItem(KEY, byId("key").value.trim());
    declined = false;
    onKey();
  });
  byId("key-no").addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => (declined = dialog.returnValue !== "yes"));
  byId("give-key").addEventListener("click", openKeyDialog);
}

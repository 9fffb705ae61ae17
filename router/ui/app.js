// The frame: the current view, the theme, the admin key, and whether the gateway answers.

import * as api from "./api.js";
import { card, h, head, say } from "./dom.js";
import * as comparisons from "./comparisons.js";
import * as fleet from "./fleet.js";
import * as overview from "./overview.js";
import * as plans from "./plans.js";
import * as playground from "./playground.js";
import * as request from "./request.js";
import * as requests from "./requests.js";

const VIEWS = { fleet, overview, requests, playground, comparisons, plans };
const main = document.getElementById("main");
const notice = document.getElementById("notice");
let leave = new AbortController();
let about = null;

// --- views -----------------------------------------------------------------------------------------
/** `#/requests/ID?policy=slo` as {name, rest, query}. */
function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/");
  return { name: Object.hasOwn(VIEWS, name) ? name : "fleet", rest: decoded(rest.join("/")), query: new URLSearchParams(query ?? "") };
}
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // typed by hand
  }
}

async function go({ focus = true } = {}) {
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  const { name, rest, query } = place();
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.getAttribute("href") === `#/${name}`) {
      link.setAttribute("aria-current", "page");
      const { parentElement: nav } = link; // a narrow window does not show all links
      nav.scrollLeft = link.offsetLeft - nav.offsetLeft + link.offsetWidth - nav.clientWidth;
    } else link.removeAttribute("aria-current");
  }
  const view = name === "requests" && rest ? request : VIEWS[name];
  main.replaceChildren();
  document.title = `${name[0].toUpperCase()}${name.slice(1)} · Headway`;
  try {
    about = await api.about(); // anew: the gateway may have another fleet by now
    say(document.getElementById("version"), `Headway ${about.version}`);
    if (signal.aborted) return;
    const shown = view.show(main, { about, rest, query, signal });
    if (focus) main.querySelector("h1")?.focus({ preventScroll: true });
    scrollTo(0, 0);
    await shown;
  } catch (error) {
    if (signal.aborted || error.status === 401) return;
    if (!(error instanceof api.ApiError)) throw error;
    if (error.status === 0) {
      setTimeout(() => signal.aborted || go({ focus: false }), 2000);
      main.replaceChildren(h("p", { class: "empty" }, "The gateway does not answer; trying again."));
    } else main.replaceChildren(head("Something went wrong"), h("p", { class: "error", role: "alert" }, error.message));
  }
}

addEventListener("hashchange", () => go());
// What a view that was left had asked for is no error.
addEventListener("unhandledrejection", (event) => { if (event.reason?.name === "AbortError") event.preventDefault(); });
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});

// --- the admin key ----------------------------------------------------------------------------------
/** Ask for the admin key in the view's place. */
function gate() {
  if (document.getElementById("gate")) return;
  leave.abort();
  leave = new AbortController();
  const wrong = h("p", { class: "error", role: "alert" });
  if (api.keys.admin) {
    say(wrong, "That is not the admin key.");
    api.keys.admin = "";
  }
  const key = h("input", { type: "password", name: "key", autocomplete: "off", required: true, spellcheck: "false" });
  const form = h("form", {
    id: "gate",
    onsubmit: async (event) => {
      event.preventDefault();
      say(wrong, "");
      api.keys.admin = key.value.trim();
      try {
        await api.admin("fleet");
        go();
      } catch (error) {
        if (error.status === 401) api.keys.admin = "";
        say(wrong, error.status === 401 ? "That is not the admin key." : error.message);
        key.select();
      }
    },
  }, h("label", null, "Admin key", key), wrong, h("div", { class: "actions" }, h("button", { class: "main" }, "Open")));
  const where = about?.admin_key_needed === false
    ? "No admin key is set, so this part is open only to a browser on the gateway's machine."
    : "This part needs the admin key. The key stays in this tab until it is closed.";
  main.replaceChildren(h("div", { class: "gate" }, head("Admin key", where), card(null, form)));
  key.focus();
}
addEventListener("locked", gate);

const forget = document.getElementById("forget");
const showForget = () => { forget.hidden = !(api.keys.admin || api.keys.client); };
addEventListener("keys", showForget);
forget.addEventListener("click", () => { api.keys.forget(); go(); });
showForget();

// --- whether it answers -----------------------------------------------------------------------------
let again = null;
addEventListener("reachable", ({ detail: answers }) => {
  clearTimeout(again);
  if (!answers) again = setTimeout(() => api.about().catch(() => {}), 2000);
  say(notice, answers ? "" : "The gateway does not answer; trying again.");
});

// --- theme ------------------------------------------------------------------------------------------
const THEMES = ["system", "light", "dark"];
const dark = matchMedia("(prefers-color-scheme: dark)");
const themeButton = document.getElementById("theme");
const chosenTheme = () => localStorage.getItem("headway.theme") ?? "system";
function useTheme() {
  const chosen = chosenTheme();
  document.documentElement.dataset.theme = chosen === "system" ? (dark.matches ? "dark" : "light") : chosen;
  say(themeButton, `Theme: ${chosen}`);
}
themeButton.addEventListener("click", () => {
  localStorage.setItem("headway.theme", THEMES[(THEMES.indexOf(chosenTheme()) + 1) % THEMES.length]);
  useTheme();
});
dark.addEventListener("change", useTheme);
useTheme();

go({ focus: false });

// Results of a command, such as comparisons: from the gateway's directory of reports, or from a local file.

import { admin, tried } from "./api.js";
import { card, h, head, say } from "./dom.js";
import { moment } from "./format.js";

/**
 * One view of results. `title` and `about` are its head, `place` its name in the address. `command` writes `file`, whose
 * `mark` is its `version`. `save` is a file to offer beside: {file, text, label}. `view(result, name, picture)` makes the nodes;
 * `picture` is the address of the result's `drawing`, or null.
 */
export async function showResults(main, { rest, signal }, { title, about, list: listTitle, own, place, command, file, mark, version, save, drawing, view }) {
  const error = h("p", { class: "error", role: "alert" });
  const list = h("div", null, h("p", { class: "empty" }, "Looking …"));
  const shown = h("div", { id: "report" });
  const input = h("input", { type: "file", accept: ".json,application/json", onchange: () => input.files[0] && fromFile(input.files[0]) });
  const drop = h("div", {
    class: "drop",
    ondragover: (event) => { event.preventDefault(); drop.classList.add("over"); },
    ondragleave: () => drop.classList.remove("over"),
    ondrop: (event) => { event.preventDefault(); drop.classList.remove("over"); if (event.dataTransfer.files[0]) fromFile(event.dataTransfer.files[0]); },
  }, field_(input));

  function open(text, name, picture = null) {
    say(error, "");
    shown.replaceChildren();
    let result;
    try {
      result = JSON.parse(text);
    } catch {
      return say(error, `${name} is not valid JSON.`);
    }
    if (!result || typeof result !== "object" || !(mark in result)) return say(error, `${name} is not a report of ${command}.`);
    if (result[mark] !== version) return say(error, `${name} is a report of version ${result[mark]}; this page reads version ${version}.`);
    shown.replaceChildren(...view(result, name, picture));
    const heading = shown.querySelector("h2");
    heading.focus();
    heading.scrollIntoView({ block: "start" });
  }
  const fromFile = async (chosen) => {
    open(await chosen.text(), chosen.name);
    input.value = ""; // so that the same file can be chosen again after a change
  };

  const fetched = (name, file) => admin(`reports/${encodeURIComponent(name)}/${file}`, signal, "blob");
  const fromGateway = (name) => tried(error, async () => {
    const text = await (await fetched(name, file)).text();
    open(text, name, drawing && await picture(name));
    history.replaceState(null, "", `#/${place}/${encodeURIComponent(name)}`);
  });
  /** The drawing's address, which is gone with the view; null without one. */
  async function picture(name) {
    try {
      const address = URL.createObjectURL(await fetched(name, drawing));
      signal.addEventListener("abort", () => URL.revokeObjectURL(address));
      return address;
    } catch (failure) {
      if (failure.status !== 404) throw failure;
      return null;
    }
  }
  const keep = (name) => tried(error, async () => {
    const link = h("a", { href: URL.createObjectURL(await fetched(name, save.file)), download: `${name}-${save.file}` });
    link.click();
    URL.revokeObjectURL(link.href);
  });

  main.append(
    head(title, about),
    h("div", { class: "grid" }, card(listTitle, list), card(own, drop)), error, shown);
  const { configured, reports } = await admin("reports", signal);
  const found = reports.filter(({ files }) => files.includes(file));
  list.replaceChildren(found.length
    ? h("ul", { class: "reports" }, found.map(({ name, modified_at, files }) => h("li", null,
        h("button", { type: "button", onclick: () => fromGateway(name) }, name), " ", h("span", { class: "soft small" }, moment(modified_at)),
        files.includes(save.file) && [" ", h("button", { type: "button", class: "quiet", "aria-label": save.label(name), onclick: () => keep(name) }, save.text)])))
    : h("p", { class: "empty" }, configured
        ? ["The directory has no report yet. Write one: ", h("code", null, `${command} … --out DIR/NAME`), "."]
        : ["Name a directory as ", h("code", null, "ui.reports"), ` in the fleet file to open its ${place} here.`]));
  if (rest) await fromGateway(rest);

  function field_(input) {
    return h("label", null, `Choose a ${file}, or drop it here. The page reads it and sends it nowhere.`, input);
  }
}

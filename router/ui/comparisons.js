// Comparisons of policies (`headway compare`): from the gateway's directory of reports, or from a local file.

import { admin, adminFile, ApiError } from "./api.js";
import { card, h, head, say } from "./dom.js";
import { moment } from "./format.js";
import { reportView, VERSION } from "./report_view.js";

export async function show(main, { rest, signal }) {
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

  function open(text, name) {
    say(error, "");
    shown.replaceChildren();
    let report;
    try {
      report = JSON.parse(text);
    } catch {
      return say(error, `${name} is not valid JSON.`);
    }
    if (!report || typeof report !== "object" || !("headway_report" in report)) return say(error, `${name} is not a report of headway compare.`);
    if (report.headway_report !== VERSION) return say(error, `${name} is a report of version ${report.headway_report}; this page reads version ${VERSION}.`);
    shown.replaceChildren(...reportView(report, name));
    const title = shown.querySelector("h2");
    title.focus();
    title.scrollIntoView({ block: "start" });
  }
  const fromFile = async (file) => {
    open(await file.text(), file.name);
    input.value = ""; // so that the same file can be chosen again after a change
  };

  async function fromGateway(name) {
    say(error, "");
    try {
      const blob = await adminFile(`reports/${encodeURIComponent(name)}/report.json`, signal);
      open(await blob.text(), name);
      history.replaceState(null, "", `#/comparisons/${encodeURIComponent(name)}`);
    } catch (failure) {
      if (!(failure instanceof ApiError)) throw failure;
      say(error, failure.message);
    }
  }
  async function save(name, file) {
    const link = h("a", { href: URL.createObjectURL(await adminFile(`reports/${encodeURIComponent(name)}/${file}`, signal)), download: `${name}-${file}` });
    link.click();
    URL.revokeObjectURL(link.href);
  }

  main.append(
    head("Comparisons", "Policies side by side on the same workload, with 95 % intervals over the seeds."),
    h("div", { class: "grid" }, card("Reports on this gateway", list), card("A report of your own", drop)), error, shown);
  const { configured, reports } = await admin("reports", signal);
  list.replaceChildren(reports.length
    ? h("ul", { class: "reports" }, reports.map(({ name, modified_at, files }) => h("li", null,
        h("button", { type: "button", onclick: () => fromGateway(name) }, name), " ", h("span", { class: "soft small" }, moment(modified_at)),
        files.includes("report.html") && [" ", h("button", { type: "button", class: "quiet", "aria-label": `Save ${name} as a page`, onclick: () => save(name, "report.html") }, "Save as a page")])))
    : h("p", { class: "empty" }, configured
        ? ["The directory has no report yet. Write one: ", h("code", null, "headway compare … --out DIR/NAME"), "."]
        : ["Name a directory as ", h("code", null, "ui.reports"), " in the fleet file to open its comparisons here."]));
  if (rest) await fromGateway(rest);
}

function field_(input) {
  return h("label", null, "Choose a report.json, or drop it here. The page reads it and sends it nowhere.", input);
}

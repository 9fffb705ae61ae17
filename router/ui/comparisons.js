// Comparisons of policies (`headway compare`).

import { reportView, VERSION } from "./report_view.js";
import { showResults } from "./results.js";

export const show = (main, context) => showResults(main, context, {
  title: "Comparisons",
  about: "Policies side by side on the same workload, with 95 % intervals over the seeds.",
  list: "Reports on this gateway",
  own: "A report of your own",
  place: "comparisons",
  command: "headway compare",
  file: "report.json",
  mark: "headway_report",
  version: VERSION,
  save: { file: "report.html", text: "Save as a page", label: (name) => `Save ${name} as a page` },
  view: reportView,
});

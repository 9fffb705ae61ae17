// Plans of a cluster (`headway plan`).

import { planView, VERSION } from "./plan_view.js";
import { showResults } from "./results.js";

export const show = (main, context) => showResults(main, context, {
  title: "Plans",
  about: "Which model runs on which GPUs: placements ranked by simulation, with 95 % intervals of another draw of the requests.",
  list: "Plans on this gateway",
  own: "A plan of your own",
  place: "plans",
  command: "headway plan",
  file: "plan.json",
  mark: "headway_plan",
  version: VERSION,
  save: { file: "plan.svg", text: "Save the drawing", label: (name) => `Save the drawing of ${name}` },
  drawing: "plan.svg",
  view: planView,
});

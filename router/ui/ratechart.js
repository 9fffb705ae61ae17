// Curves of several policies over the rate, with their intervals.

import { s } from "./dom.js";
import { below, frame, line, nothing, rules, steps } from "./figure.js";
import { number } from "./format.js";

// Ten colours and seven dashes: neighbours differ in both, and 70 series in one of them.
const DASHES = ["", "7 3", "2 3", "9 3 2 3", "4 2", "12 4", "1 2"];

/** `series`: [{name, points: [[rate, {mean, half_width} | null]]}]; `target`: [value, what it means]. */
export function ratechart(title, series, { form, top, bottom = 0, target }) {
  const looks = series.map((each, at) => ({ ...each, k: (at % 10) + 1, dash: DASHES[at % DASHES.length] }));
  const rates = [...new Set(series.flatMap((each) => each.points.map(([rate]) => rate)))].sort((one, other) => one - other);
  const mean = (each, rate) => each.points.find((point) => point[0] === rate)?.[1]?.mean ?? null;
  return frame(title, target ? `Dashed: ${target[1]}.` : null, (svg, area) => {
    const means = series.flatMap((each) => rates.map((rate) => mean(each, rate))).filter((value) => value !== null);
    if (!means.length) return nothing(svg, area, "Not measured");
    const ticks = steps(top ?? Math.max(...means, target?.[0] ?? 0) * 1.03, bottom);
    const [lowest, highest] = [ticks[0], ticks[ticks.length - 1]];
    const y = (value) => area.bottom - ((Math.max(lowest, Math.min(value, highest)) - lowest) / (highest - lowest)) * (area.bottom - area.top);
    const [least, most] = [rates[0], rates[rates.length - 1]];
    const x = (rate) => (most === least ? (area.left + area.right) / 2 : area.left + 16 + ((rate - least) / (most - least)) * (area.right - area.left - 32));
    rules(svg, area, ticks, y, form);
    below(svg, area, rates.map((rate) => [x(rate), `${number(rate)} /s`]));
    if (target) {
      svg.append(s("line", { class: "target", x1: area.left, x2: area.right, y1: y(target[0]), y2: y(target[0]) }));
    }
    for (const each of looks) {
      const known = rates.filter((rate) => mean(each, rate) !== null);
      for (const rate of known) {
        const { half_width: half } = each.points.find((point) => point[0] === rate)[1];
        const at = y(mean(each, rate));
        if (half) svg.append(s("line", { class: `k${each.k}`, stroke: "currentColor", "stroke-opacity": 0.55, x1: x(rate), x2: x(rate), y1: y(mean(each, rate) - half), y2: y(mean(each, rate) + half) }));
        svg.append(s("circle", { class: `k${each.k}`, fill: "currentColor", cx: x(rate), cy: at, r: 3 }));
      }
      if (known.length > 1) line(svg, known.map((rate) => [x(rate), y(mean(each, rate))]), each.k, { dash: each.dash || undefined });
    }
    const at = (rate) => looks.map((each) => [each.name, form(mean(each, rate)), each.k]);
    return {
      stops: rates.map(x),
      tell: (index) => [`${number(rates[index])} requests/s`, at(rates[index])],
      table: [[{ name: "Requests /s" }, ...looks.map(({ name }) => ({ name, num: true }))], rates.map((rate) => [number(rate), ...at(rate).map(([, value]) => value)])],
      summary: `At ${number(most)} requests a second: ${at(most).map(([name, value]) => `${name} ${value}`).join(", ")}.`,
      legend: looks.map(({ name, k, dash }) => [name, k, dash]),
    };
  }, 240);
}

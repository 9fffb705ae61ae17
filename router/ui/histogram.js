// A histogram of times on a logarithmic scale, with its quantiles marked.

import { s } from "./dom.js";
import { below, frame, nothing, rules, steps } from "./figure.js";
import { count, percent, seconds, short } from "./format.js";

const DECADES = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000];

/** `update({histogram: [{low_s, high_s, count}], p50, p95, p99})`. */
export function histogram(title, k) {
  return frame(title, null, (svg, area, data) => {
    const bars = data?.histogram ?? [];
    if (!bars.length) return nothing(svg, area, "Nothing measured in this window");
    const low = Math.log(bars[0].low_s);
    const high = Math.log(bars[bars.length - 1].high_s);
    const room = Math.max(high - low, Math.log(4));
    const start = (low + high - room) / 2;
    const x = (value) => area.left + ((Math.log(value) - start) / room) * (area.right - area.left);
    const ticks = steps(Math.max(...bars.map((bar) => bar.count)));
    const y = (value) => area.bottom - (value / ticks[ticks.length - 1]) * (area.bottom - area.top - 14);
    rules(svg, area, ticks, y, short);
    for (const bar of bars) {
      svg.append(s("rect", { class: `k${k}`, fill: "currentColor", "fill-opacity": 0.75, x: x(bar.low_s) + 0.5, width: Math.max(1, x(bar.high_s) - x(bar.low_s) - 1), y: y(bar.count), height: area.bottom - y(bar.count) }));
    }
    let free = -Infinity;
    for (const name of ["p50", "p95", "p99"]) {
      const at = x(data[name]);
      svg.append(s("line", { class: "target", x1: at, x2: at, y1: area.top + 4, y2: area.bottom }));
      if (at - 10 > free) {
        svg.append(s("text", { class: "over-text", x: at, y: area.top, "text-anchor": "middle" }, name));
        free = at + 12;
      }
    }
    below(svg, area, DECADES.filter((value) => x(value) >= area.left && x(value) <= area.right).map((value) => [x(value), seconds(value).replace(".0 ms", " ms").replace(/\.0+ s/, " s")]));
    const total = bars.reduce((sum, bar) => sum + bar.count, 0);
    const range = (bar) => `${seconds(bar.low_s)} to ${seconds(bar.high_s)}`;
    return {
      stops: bars.map((bar) => x(Math.sqrt(bar.low_s * bar.high_s))),
      tell: (at) => [range(bars[at]), [["requests", count(bars[at].count), k], ["share", percent(bars[at].count / total)]]],
      table: [[{ name: "Between" }, { name: "Requests", num: true }, { name: "Share", num: true }], bars.map((bar) => [range(bar), count(bar.count), percent(bar.count / total)])],
      summary: `p50 ${seconds(data.p50)}, p95 ${seconds(data.p95)}, p99 ${seconds(data.p99)}.`,
    };
  }, 170);
}

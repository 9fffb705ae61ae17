// Charts over time: lines, and stacked bars.

import { s } from "./dom.js";
import { below, frame, line, nothing, rules, steps } from "./figure.js";
import { moment, tick } from "./format.js";

/** Lines. `update(buckets)` draws them anew; `series`: [{name, k, of: bucket => number|null}], `band`: two of those
 *  functions, filled between; `form` writes a value, `top` fixes the scale's end, `target`: [value, name]. */
export function lines(title, { note, series, band, form, top, bottom, target }) {
  return frame(title, note, (svg, area, buckets) => {
    const values = (buckets ?? []).flatMap((bucket) => [...series.map((each) => each.of(bucket)), ...(band ?? []).map((of) => of(bucket))]).filter((value) => value !== null && value !== undefined);
    if (!values.length) return nothing(svg, area, "Nothing to show in this window");
    const [x, y] = axes(svg, area, buckets, steps(top ?? Math.max(...values, target?.[0] ?? 0) * 1.02, bottom ?? 0), form);
    if (target) {
      svg.append(s("line", { class: "target", x1: area.left, x2: area.right, y1: y(target[0]), y2: y(target[0]) }),
        s("text", { x: area.left + 4, y: y(target[0]) - 5 }, target[1]));
    }
    if (band) shade(svg, buckets, x, y, band);
    for (const each of series) {
      line(svg, buckets.map((bucket, at) => { const value = each.of(bucket) ?? null; return [x(at), value === null ? null : y(value)]; }), each.k);
    }
    return readout(buckets, x, [...series, ...(band ? [{ name: "10–90 %", of: (bucket) => [band[0](bucket), band[1](bucket)], form: (pair) => pair[0] === null ? "—" : `${form(pair[0])} to ${form(pair[1])}` }] : [])], form, [...series.map(({ name, k }) => [name, k, ""]), ...(band ? [["10–90 %", 6]] : [])]);
  });
}

/** Bars of parts on top of each other; `series` as for lines, a count each. */
export function stacks(title, { note, series, form }) {
  return frame(title, note, (svg, area, buckets) => {
    const totals = (buckets ?? []).map((bucket) => series.reduce((sum, each) => sum + (each.of(bucket) ?? 0), 0));
    const highest = Math.max(0, ...totals);
    if (!highest) return nothing(svg, area, "None in this window");
    const [x, y] = axes(svg, area, buckets, steps(highest), form);
    const step = (area.right - area.left) / buckets.length;
    buckets.forEach((bucket, at) => {
      let base = 0;
      for (const each of series) {
        const value = each.of(bucket) ?? 0;
        if (!value) continue;
        svg.append(s("rect", { class: `k${each.k}`, fill: "currentColor", x: x(at) - step / 2 + Math.min(1, step / 8), width: Math.max(1, step - Math.min(2, step / 4)), y: y(base + value), height: Math.max(0.5, y(base) - y(base + value)) }));
        base += value;
      }
    });
    return readout(buckets, x, series, form, series.map(({ name, k }) => [name, k]));
  });
}

/** Draw both axes; returns where a bucket and where a value stands. */
function axes(svg, area, buckets, ticks, form) {
  const low = ticks[0];
  const y = (value) => {
    const share = (value - low) / (ticks[ticks.length - 1] - low);
    return area.bottom - Math.max(-0.02, Math.min(1.02, share)) * (area.bottom - area.top);
  };
  const x = (at) => area.left + ((at + 0.5) * (area.right - area.left)) / buckets.length;
  rules(svg, area, ticks, y, form);
  const span = buckets.length * (buckets[1] ? buckets[1].start - buckets[0].start : buckets[0].seconds);
  const every = Math.max(1, Math.ceil(buckets.length / 6));
  const half = (x(1) - x(0)) / 2;
  below(svg, area, buckets.flatMap((bucket, at) => (at % every ? [] : [[x(at) - half, tick(bucket.start, span)]])));
  return [x, y];
}

function shade(svg, buckets, x, y, [low, high]) {
  let run = [];
  buckets.forEach((bucket, at) => {
    if (low(bucket) !== null) run.push([x(at), y(low(bucket)), y(high(bucket))]);
    if (low(bucket) !== null && at < buckets.length - 1) return;
    const edges = [...run.map(([along, , to]) => [along, to]), ...run.map(([along, from]) => [along, from]).reverse()];
    if (run.length) svg.append(s("polygon", { class: "k6", points: edges.map((point) => point.map((value) => value.toFixed(1)).join()).join(" "), fill: "currentColor", "fill-opacity": 0.22 }));
    run = [];
  });
}

function readout(buckets, x, series, form, legend) {
  const text = (each, bucket) => (each.form ?? form)(each.of(bucket) ?? null);
  const from = (bucket) => moment(bucket.start).textContent;
  const known = buckets.findLast((bucket) => series.some((each) => each.of(bucket) !== null && each.of(bucket) !== undefined));
  const summary = known ? `Last: ${series.map((each) => `${each.name} ${text(each, known)}`).join(", ")}.` : "";
  return {
    stops: buckets.map((_, at) => x(at)),
    tell: (at) => [from(buckets[at]), series.map((each) => [each.name, text(each, buckets[at]), each.k])],
    table: [[{ name: "From" }, ...series.map(({ name }) => ({ name, num: true }))], buckets.map((bucket) => [moment(bucket.start), ...series.map((each) => text(each, bucket))])],
    summary,
    legend,
  };
}

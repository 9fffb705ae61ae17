// Numbers, units and times for people. Unknown is a dash.

import { h } from "./dom.js";

const NONE = "—";
const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });
const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

export const count = (value) => (known(value) ? whole.format(value) : NONE);
/** A count with what is counted: "1 request", "2 requests". */
export const counted = (value, thing) => `${count(value)} ${thing}${value === 1 ? "" : "s"}`;
export const short = (value) => (!known(value) ? NONE : Math.abs(value) < 10_000 ? number(value) : compact.format(value));
export const percent = (share, digits = 1) => (known(share) ? `${(share * 100).toFixed(digits)} %` : NONE);

/** Three digits that matter, no exponent. */
export function number(value) {
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  if (size < 1e-9) return "0";
  if (size >= 100 || Number.isInteger(value)) return whole.format(value);
  if (size < 0.01) return value.toFixed(1 - Math.floor(Math.log10(size)));
  return value.toFixed(size >= 10 ? 1 : size >= 0.1 ? 2 : 3);
}

export function seconds(value) {
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  if (size === 0) return "0 ms";
  if (size < 0.01) return `${(value * 1000).toFixed(1)} ms`;
  if (size < 0.9995) return `${Math.round(value * 1000)} ms`;
  if (size < 9.995) return `${value.toFixed(2)} s`;
  if (size < 120) return `${value.toFixed(1)} s`;
  return size < 7200 ? `${(value / 60).toFixed(1)} min` : `${(value / 3600).toFixed(1)} h`;
}

export function usd(value) {
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  if (size === 0) return "$0";
  if (size >= 100) return `$${whole.format(value)}`;
  if (size >= 1) return `$${value.toFixed(2)}`;
  const digits = Math.min(10, Math.max(2, 2 - Math.floor(Math.log10(size))));
  const [point, rest] = value.toFixed(digits).split(".");
  return `$${point}.${rest.slice(0, 2)}${rest.slice(2).replace(/0+$/, "")}`;
}

export const ratio = (value) => (known(value) ? `×${value.toFixed(value < 10 ? 2 : 1)}` : NONE);

/** A moment in the zone of who reads; UTC in the title. `at` in seconds since the epoch. */
export function moment(at, { date = true } = {}) {
  if (!known(at)) return NONE;
  const when = new Date(at * 1000);
  const today = when.toDateString() === new Date().toDateString();
  const form = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23", ...(date && !today ? { month: "short", day: "numeric" } : {}) };
  return h("time", { datetime: when.toISOString(), title: utc(at), class: "nowrap" }, new Intl.DateTimeFormat("en-GB", form).format(when));
}

const utc = (at) => `${new Date(at * 1000).toISOString().replace("T", " ").slice(0, 23)} UTC`;

/** The label of a time on an axis that spans `span_s` seconds. */
export function tick(at, span_s) {
  const form = span_s > 2 * 86400 ? { month: "short", day: "numeric" } : { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  return new Intl.DateTimeFormat("en-GB", form).format(new Date(at * 1000));
}

export const words = (name) => name.replaceAll("_", " ");

const GOOD = new Set(["ok"]);
const WARN = new Set(["late", "client_cancelled", "budget_exhausted_mid_decode"]);
/** An outcome as a badge. */
export function outcome(name) {
  return h("span", { class: `badge ${GOOD.has(name) ? "good" : WARN.has(name) ? "warn" : "bad"}` }, words(name));
}

// Makes elements from plain values. Text is inserted as text only; the page's policy forbids HTML from strings anyway.

const SVG = "http://www.w3.org/2000/svg";

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** An HTML element: `h("p", {class: "soft"}, "text", node)`; attributes named on... are listeners. */
export function h(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function s(tag, attributes, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

/** Put text in only if it changed, so that what is selected or read aloud is left alone. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Make what is in `node` as `children`, which are elements. What is equal stays, so that it can be selected; sections and
 *  tables' regions stay too, with their focus and where they were scrolled to. */
export function renew(node, children) {
  children.forEach((child, at) => {
    const old = node.children[at];
    if (!old) node.append(child);
    else if (child.matches("section, .scroll, dl, .tile") && old.className === child.className) renew(old, [...child.children]);
    else if (!old.isEqualNode(child)) old.replaceWith(child);
  });
  while (node.childElementCount > children.length) node.lastElementChild.remove();
}

/** The head of a view: its name, a description, and controls. */
export function head(title, about, ...controls) {
  return h("div", { class: "head" }, h("div", null, h("h1", { tabindex: -1 }, title), about && h("p", null, about)), controls);
}

export function card(title, ...children) {
  return h("section", { class: "card" }, title && h("h2", null, title), children);
}

/** `columns`: [{name, num, title}]; `rows`: lists of cells (text or nodes), the first is the row's head. */
export function table(columns, rows, { caption, label } = {}) {
  const cell = (value, at) => {
    const kind = columns[at].num ? "num" : null;
    return at ? h("td", { class: kind }, value ?? "—") : h("th", { scope: "row", class: kind }, h("span", { class: "name" }, value ?? "—"));
  };
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": label ?? caption ?? "Table" },
    h(
      "table",
      null,
      caption && h("caption", null, caption),
      h("thead", null, h("tr", null, columns.map((each) => h("th", { scope: "col", class: each.num ? "num" : null, title: each.title }, each.name)))),
      h("tbody", null, rows.map((row) => h("tr", { class: row.mark ?? null }, (row.cells ?? row).map(cell)))),
    ),
  );
}

/** Names with their values, one below the other: [[name, value]]; rows without a value are left out. */
export function facts(rows) {
  return h("dl", { class: "facts" }, rows.filter(([, value]) => value).map(([name, value]) => [h("dt", null, name), h("dd", null, value)]));
}

/** Named figures in a row of tiles: [{name, value, small, title}]. */
export function tiles(figures) {
  return h("dl", { class: "tiles" }, figures.map(({ name, value, small, title }) =>
    h("div", { class: "tile", title }, h("dt", null, name), h("dd", null, value, small && h("small", null, ` ${small}`)))));
}

/** One of several, as buttons: [[value, text]]. */
export function choices(label, options, chosen, pick) {
  const buttons = options.map(([value, text]) =>
    h("button", {
      type: "button",
      "aria-pressed": String(value === chosen),
      onclick: () => {
        buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(options[at][0] === value)));
        pick(value);
      },
    }, text));
  return h("div", { class: "choices", role: "group", "aria-label": label }, buttons);
}

/** A labelled field. */
export function field(name, control) {
  return h("label", null, name, control);
}

/** `chosen` is an option also if it is not among `options`. */
export function select(name, options, chosen) {
  const all = options.some(([value]) => value === chosen) ? options : [...options, [chosen, chosen]];
  return h("select", { name }, all.map(([value, text]) => h("option", { value, selected: value === chosen }, text)));
}

// The API at /docs, from the gateway's OpenAPI document. Nothing is loaded from elsewhere.

import { card, h, head, table } from "./dom.js";

const METHODS = ["get", "post", "put", "patch", "delete"];

/** A schema in a few words; a named one is shown by name. */
function typeName(schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  const any = schema.anyOf ?? schema.oneOf;
  if (any) return any.map(typeName).join(" or ");
  if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(", ");
  if (schema.type === "array") return `list of ${typeName(schema.items) || "anything"}`;
  return [schema.type ?? "anything"].flat().join(" or ");
}

function members(schema, schemas) {
  const found = schema?.$ref ? schemas[typeName(schema)] : schema;
  return Object.entries(found?.properties ?? {}).map(([name, each]) => [
    h("code", null, name),
    typeName(each),
    (found.required ?? []).includes(name) ? "yes" : "",
    each.description ?? "",
  ]);
}

const COLUMNS = [{ name: "name" }, { name: "type" }, { name: "needed" }, { name: "meaning" }];

function operation(method, path, about, schemas) {
  const parameters = (about.parameters ?? []).map((each) => [
    h("code", null, each.name),
    `${typeName(each.schema)} (${each.in})`,
    each.required ? "yes" : "",
    each.description ?? "",
  ]);
  const body = about.requestBody?.content?.["application/json"]?.schema;
  const fields = members(body, schemas);
  const answers = Object.entries(about.responses ?? {}).map(([status, each]) => [status, each.description ?? ""]);
  return h(
    "details",
    { id: about.operationId },
    h("summary", null, h("code", null, `${method.toUpperCase()} ${path}`), ` ${about.summary ?? ""}`),
    about.description && h("p", null, about.description),
    parameters.length > 0 && table(COLUMNS, parameters, { caption: "Parameters" }),
    fields.length > 0 && table(COLUMNS, fields, { caption: `Body${body.$ref ? `: ${typeName(body)}` : ""}` }),
    table([{ name: "status" }, { name: "meaning" }], answers, { caption: "Answers" }),
  );
}

async function show() {
  const main = document.getElementById("main");
  try {
    const answer = await fetch("openapi.json");
    if (!answer.ok) throw new Error(`openapi.json: ${answer.status}`);
    const api = await answer.json();
    const schemas = api.components?.schemas ?? {};
    const groups = new Map();
    for (const [path, operations] of Object.entries(api.paths)) {
      for (const method of METHODS.filter((each) => operations[each])) {
        const tag = operations[method].tags?.[0] ?? "other";
        groups.set(tag, [...(groups.get(tag) ?? []), operation(method, path, operations[method], schemas)]);
      }
    }
    const named = Object.keys(schemas).map((name) => {
      const rows = members({ $ref: `#/${name}` }, schemas);
      return rows.length > 0 && h("details", null, h("summary", null, h("code", null, name)), table(COLUMNS, rows, { label: name }));
    });
    main.replaceChildren(
      head(`${api.info.title} ${api.info.version}`, "Every path of this gateway."),
      ...[...groups].map(([tag, found]) => card(tag, found)),
      card("schemas", named),
    );
  } catch (error) {
    main.replaceChildren(h("p", { class: "notice" }, `The document could not be read: ${error.message}`));
  }
}

show();

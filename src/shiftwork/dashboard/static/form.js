// A form generated from a JSON Schema: an agent's question, or the payload of a task. Values of other types are entered as
// JSON.

import { h } from "./dom.js";
import { label } from "./words.js";

export function schemaForm(schema, submit) {
  const simple = schema?.type === "object" && schema.properties && Object.keys(schema.properties).length;
  const fields = simple ? Object.entries(schema.properties).map(([name, part]) => field(name, part, schema.required?.includes(name))) : [whole(schema)];
  const wrong = h("p", { class: "wrong", role: "alert" });
  const form = h(
    "form",
    {
      class: "asked",
      onsubmit: (event) => {
        event.preventDefault();
        wrong.textContent = "";
        try {
          submit(simple ? collect(form, schema) : JSON.parse(form.elements.value.value));
        } catch (error) {
          wrong.textContent = error.message;
        }
      },
    },
    ...fields,
    wrong,
    h("div", { class: "row end" }, h("button", { class: "primary" }, "Answer")),
  );
  return form;
}

// A dialog with a field for each property of an object's schema. Returns the object, or null if it was closed.
export function askObject(title, schema, yes) {
  return new Promise((answer) => {
    const simple = Object.keys(schema.properties ?? {}).length;
    const fields = simple ? Object.entries(schema.properties).map(([name, part]) => field(name, part, schema.required?.includes(name))) : [whole(schema)];
    const wrong = h("p", { class: "wrong", role: "alert" });
    let found = null;
    const form = h(
      "form",
      {
        method: "dialog",
        onsubmit: (event) => {
          try {
            found = simple ? collect(form, schema) : JSON.parse(form.elements.value.value);
          } catch (error) {
            event.preventDefault();
            wrong.textContent = error.message;
          }
        },
      },
      h("h2", { id: "asked" }, title),
      fields,
      wrong,
      h("div", { class: "row end" }, h("button", { type: "button", onclick: () => dialog.close() }, "Back"), h("button", { class: "primary" }, yes)),
    );
    const dialog = h("dialog", { "aria-labelledby": "asked" }, form);
    dialog.addEventListener("close", () => {
      answer(found);
      dialog.remove();
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

// An optional or nullable property becomes a field that may stay empty.
function notNull(part) {
  const kinds = part.anyOf?.filter((each) => each.type !== "null") ?? [];
  if (kinds.length !== 1 || part.anyOf.length !== 2) return part;
  return { ...kinds[0], title: part.title, description: part.description, default: part.default ?? undefined };
}

function whole(schema) {
  const text = schema?.type === "string";
  const hint = schema ? `JSON that matches ${JSON.stringify(schema)}` : "JSON: put text in quotes";
  return h("label", {}, "Answer", h("textarea", { name: "value", rows: 3, required: true, value: text ? '""' : "" }), h("small", {}, hint));
}

function field(name, given, required) {
  const part = notNull(given);
  const common = { name, required };
  const title = h("span", {}, part.title ?? label(name), required && h("span", { class: "must", title: "required" }, " *"));
  const hint = part.description && h("small", {}, part.description);
  if (part.enum) {
    return h("label", {}, title, choice(common, part, part.enum.map((each) => [each, String(each)])), hint);
  }
  // A choice, not a checkbox: an untouched checkbox would answer no.
  if (part.type === "boolean") return h("label", {}, title, choice(common, part, [[true, "Yes"], [false, "No"]]), hint);
  if (part.type === "number" || part.type === "integer") {
    const bounds = { min: part.minimum, max: part.maximum, step: part.type === "integer" ? 1 : "any" };
    return h("label", {}, title, h("input", { ...common, ...bounds, type: "number", value: part.default ?? "" }), hint);
  }
  if (part.type === "string") {
    const long = (part.maxLength ?? 0) > 200 || part.format === "multiline";
    const bounds = { minlength: part.minLength, maxlength: part.maxLength, value: part.default ?? "" };
    return h("label", {}, title, long ? h("textarea", { ...common, ...bounds, rows: 4 }) : h("input", { ...common, ...bounds, type: "text" }), hint);
  }
  return h("label", {}, title, h("textarea", { ...common, rows: 3, "data-json": true, value: part.default === undefined ? "" : JSON.stringify(part.default) }), hint ?? h("small", {}, "JSON"));
}

// Nothing is preselected unless the schema has a default.
function choice(common, part, options) {
  return h("select", common, h("option", { value: "" }, "–"), options.map(([value, name]) => h("option", { value: JSON.stringify(value), selected: value === part.default }, name)));
}

function collect(form, schema) {
  const value = {};
  for (const [name, given] of Object.entries(schema.properties)) {
    const part = notNull(given);
    const input = form.elements[name];
    if (input.value === "") continue;
    if (part.enum || part.type === "boolean") value[name] = JSON.parse(input.value);
    else if (part.type === "number" || part.type === "integer") value[name] = Number(input.value);
    else if (part.type === "string") value[name] = input.value;
    else value[name] = JSON.parse(input.value);
  }
  return value;
}

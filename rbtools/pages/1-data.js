// The records as columns of numbers. Names come from untrusted files: they are only shown as text, and only
// looked up in Maps, where "__proto__" is an ordinary name.
const content = JSON.parse(document.getElementById("content").textContent);
const count = content.rows.length;
const byId = (id) => document.getElementById(id);

const numbers = (values) => Float64Array.from(values, (value) => (value === null ? NaN : value));
const fields = content.fields.map((field) => ({
  ...field, id: "field " + field.path, text: true, different: new Set(field.values).size,
}));
const metrics = content.columns.map((column) => ({
  ...column,
  id: "metric " + column.name,
  own: column.higher,
  values: numbers(column.values),
  lows: column.lows && numbers(column.lows),
  highs: column.highs && numbers(column.highs),
}));
const score = {
  id: "score", name: "score", title: "score", group: "score", higher: true,
  values: new Float64Array(count), lows: new Float64Array(count), highs: new Float64Array(count),
};
const byName = new Map([["score", score], ...metrics.map((metric) => [metric.name, metric])]);
const byKey = new Map([score, ...metrics, ...fields].map((column) => [column.id, column]));
const nameField = fields.find((field) => field.path === "arch.name");

// Characters that would change the line or the direction of the surrounding text.
const CONTROL = /[\u0000-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069]/g;
const plain = (text) => String(text).replace(CONTROL, "\ufffd");

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") made.textContent = value;
    else if (name === "on") for (const [event, work] of Object.entries(value)) made.addEventListener(event, work);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== undefined && value !== null) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// A number in readable form, as rb-rank writes it.
function figure(value) {
  if (Number.isNaN(value)) return "";
  const size = Math.abs(value);
  if (value === 0 || (size >= 5e-4 && size <= 1)) return (value + 0).toFixed(4);
  if (Number.isInteger(value) && size < 1e15) return value.toLocaleString("en-US");
  return String(Number(value.toPrecision(4)));
}

// The fields that distinguish a record. The page's first line names those that all records share.
const named = (row) => plain(nameField.values[row] ?? "unnamed");
const about = (row, least = 2) =>
  fields.filter((field) => field !== nameField && field.different >= least && field.values[row] !== null)
    .map((field) => (field.path === "train.seed" ? "seed " : "") + plain(field.values[row]));
const whole = (row) => [named(row), ...about(row)].join(", ");
const counted = (number, noun) => number.toLocaleString("en-US") + " " + noun + (number === 1 ? "" : "s");

// A command line that is broken between its words, but not after the hyphens of an option.
const typed = (text) => text.split(/(\s+)/).map((word) => (word.length > 60 || !word.trim() ? word : element("span", { class: "word", text: word })));

// The text quoted for a shell; null if it contains control characters for a terminal.
function quoted(text) {
  if (text.search(CONTROL) >= 0) return null;
  return /^[\w@%+=:,./-]+$/.test(text) ? text : "'" + text.replaceAll("'", "'\"'\"'") + "'";
}

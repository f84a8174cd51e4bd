// Downloads: the selected rows, or else the rows shown, in the order of the table.
const downloaded = () => (selected.size ? order.filter((row) => selected.has(row)).concat([...selected].filter((row) => !order.includes(row))) : order);

// A text that a spreadsheet would read as a formula gets a leading apostrophe; numbers stay numbers.
function csvText(text) {
  const guarded = /^[\s\u0000]*[=+\-@\t\r＝＋－＠]/.test(text) ? "'" + text : text;
  return /[",\r\n]/.test(guarded) ? '"' + guarded.replaceAll('"', '""') + '"' : guarded;
}
const csvNumber = (value) => (Number.isNaN(value) ? "" : String(value));

function csv() {
  const scored = terms.length ? [score] : [];
  const numeric = [...scored, ...metrics];
  const titles = ["rank", "band", "rank_low", "rank_high", ...fields.map((field) => field.path)];
  for (const column of numeric) titles.push(column.name, ...(column.lows ? [column.name + "_low", column.name + "_high"] : []));
  const lines = [titles.map(csvText).join(",")];
  for (const row of downloaded()) {
    const cells = [ranks[row], bands[row], firsts[row], lasts[row]].map((rank) => rank || "");
    for (const field of fields) cells.push(field.values[row] === null ? "" : csvText(field.values[row]));
    for (const column of numeric) {
      cells.push(csvNumber(column.values[row]));
      if (column.lows) cells.push(csvNumber(column.lows[row]), csvNumber(column.highs[row]));
    }
    lines.push(cells.join(","));
  }
  return lines.join("\n") + "\n";
}

// The whole record: its unchanged fields, its entries, and the score of this page.
function jsonLine(row) {
  const values = {}, parts = [];
  const put = (name, value) => Object.defineProperty(values, name, { value, enumerable: true, configurable: true });
  for (const metric of metrics) if (metric.metric && !Number.isNaN(metric.values[row])) put(metric.name, metric.values[row]);
  for (const entry of content.rows[row].evals) parts.push(entryText(row, entry));
  if (terms.length) {
    const value = Number.isNaN(score.values[row]) ? null : score.values[row];
    if (value !== null) put("score", value);
    const used = terms.filter((term) => term.weight > 0).map((term) => ({
      metric: term.metric.names ? term.metric.names[term.metric.which[row]] : term.metric.name, weight: term.weight, higher: term.higher,
    }));
    const { within, keys, groups } = content.scopes[scope];
    const compared = within.length ? { within: keys[groups[row]], compared: groups.filter((group) => group === groups[row]).length } : {};
    const reason = value === null ? { reason: "the record lacks a metric of the score" } : {};
    parts.push(JSON.stringify({ tool: "rb-plot", metric: "score", value, ...reason, terms: used, missing, ...compared }));
  }
  const base = content.rows[row].base.slice(0, -1);
  const rank = ranks[row] ? ',"rank":' + ranks[row] : "";
  return base + (base.length > 1 ? "," : "") + '"metrics":' + JSON.stringify(values) + ',"evals":[' + parts.join(",") + "]" + rank + "}";
}

function entryText(row, entry) {
  const [number, own] = Array.isArray(entry) ? entry : [entry, null];
  const protocol = content.protocols[number];
  const metric = byName.get(JSON.parse(protocol).metric);
  const value = metric ? metric.values[row] : NaN;
  let text = protocol.slice(0, -1) + (own === null ? "" : "," + own.slice(1, -1)) + ',"value":' + (Number.isNaN(value) ? "null" : JSON.stringify(value));
  if (metric?.lows && !Number.isNaN(metric.lows[row])) text += ',"ci95":' + JSON.stringify([metric.lows[row], metric.highs[row]]);
  return text + "}";
}

const jsonLines = () => downloaded().map((row) => jsonLine(row) + "\n").join("");

function save(text, kind, name) {
  const address = URL.createObjectURL(new Blob([text], { type: kind }));
  const link = element("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

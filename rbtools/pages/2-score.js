// The composite score (min-max, weighted mean), as rb-score computes it.
const terms = []; // {metric, weight, higher, given}; weight 0 leaves a metric out
let missing = content.missing;
let scope = 0;
const sameList = (a, b) => a.length === b.length && a.every((one, place) => one === b[place]);
const givenScope = () => Math.max(0, content.scopes.findIndex((one) => sameList(one.within, content.within)));

// A term is a column of the table, or has its own values: for an expression, or if its name differs by data set.
function columnOf(term) {
  if (!term.values) return byName.get(term.metric);
  return {
    ...term, id: "term " + term.metric, name: term.metric,
    values: numbers(term.values), lows: numbers(term.lows), highs: numbers(term.highs),
  };
}
const scaledBefore = new Map();

// worst and span of a term in each group; n = |value - worst| / span
function scales(term) {
  const key = scope + " " + term.higher + " " + term.metric.id;
  if (scaledBefore.has(key)) return scaledBefore.get(key);
  const { groups, keys } = content.scopes[scope];
  const size = keys.length;
  const least = new Float64Array(size).fill(Infinity);
  const greatest = new Float64Array(size).fill(-Infinity);
  const values = term.metric.values;
  for (let row = 0; row < count; row++) {
    const value = values[row];
    if (Number.isNaN(value)) continue;
    if (value < least[groups[row]]) least[groups[row]] = value;
    if (value > greatest[groups[row]]) greatest[groups[row]] = value;
  }
  const found = {
    worst: term.higher ? least : greatest,
    span: greatest.map((value, group) => value - least[group]),
    sign: term.higher ? 1 : -1,
  };
  scaledBefore.set(key, found);
  return found;
}

const within01 = (share) => Math.min(1, Math.max(0, share));

function computeScore() {
  const active = terms.filter((term) => term.weight > 0);
  const groups = content.scopes[scope].groups;
  const sums = new Float64Array(count), totals = new Float64Array(count);
  const lows = new Float64Array(count), highs = new Float64Array(count);
  const lacking = new Uint8Array(count), measured = new Uint8Array(count);
  for (const term of active) {
    const { worst, span, sign } = scales(term);
    const { values, lows: below, highs: above } = term.metric;
    for (let row = 0; row < count; row++) {
      const value = values[row], group = groups[row];
      if (Number.isNaN(value)) {
        lacking[row] = 1;
        if (missing === "worst") totals[row] += term.weight;
        continue;
      }
      totals[row] += term.weight;
      const scaled = span[group] ? Math.abs(value - worst[group]) / span[group] : 0.5;
      sums[row] += scaled * term.weight;
      let low = scaled, high = scaled;
      if (below && !Number.isNaN(below[row]) && span[group]) {
        measured[row] = 1;
        low = within01((sign * ((sign > 0 ? below : above)[row] - worst[group])) / span[group]);
        high = within01((sign * ((sign > 0 ? above : below)[row] - worst[group])) / span[group]);
      }
      lows[row] += low * term.weight;
      highs[row] += high * term.weight;
    }
  }
  forget(score);
  for (let row = 0; row < count; row++) {
    const none = !totals[row] || (missing === "refuse" && lacking[row]);
    score.values[row] = none ? NaN : sums[row] / totals[row];
    // As for a mean of accuracies on the same images: correct if their errors coincide, else too wide.
    score.lows[row] = none || !measured[row] ? NaN : lows[row] / totals[row];
    score.highs[row] = none || !measured[row] ? NaN : highs[row] / totals[row];
  }
}

// The command line for the same scores; null if there is none. A direction is only written if it was
// changed from the metric's own.
function scoreCommand() {
  const listed = [];
  const weights = [];
  const directions = { lower: [], higher: [] };
  const preset = terms.some((term) => term.metric.names) ? content.preset : null;
  for (const term of terms) {
    const name = term.metric.name;
    if (preset && !(term.weight > 0)) return null; // a preset's metrics cannot be left out
    if (!(term.weight > 0)) continue;
    if (/[:?[\]]/.test(name) || (/[,*]/.test(name) && !term.metric.id.startsWith("term "))) return null;
    listed.push(name);
    if (term.weight !== 1) weights.push(name + "=" + term.weight);
    if (term.higher !== term.metric.own) directions[term.higher ? "higher" : "lower"].push(name);
  }
  const text = quoted(listed.join(","));
  if (!listed.length || text === null) return null;
  const chosen = preset ? " --preset " + quoted(preset) : "";
  const within = content.scopes[scope].within.length ? " --within " + quoted(content.scopes[scope].within.join(",")) : "";
  const changed = weights.map((weight) => " --weight " + quoted(weight)).join("")
    + ["lower", "higher"].filter((way) => directions[way].length)
      .map((way) => " --" + way + " " + quoted(directions[way].join(","))).join("");
  const lacks = missing === "refuse" ? "" : " --missing " + missing;
  return "rb-score" + chosen + " --metric " + text + changed + within + lacks + " records.jsonl | rb-rank";
}

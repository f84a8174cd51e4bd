// Which rows are shown, in which order, with which ranks.
const state = { sort: score, best: true, ranked: score, words: "", picks: new Map() };
const ranks = new Int32Array(count), bands = new Int32Array(count);
const firsts = new Int32Array(count), lasts = new Int32Array(count);
let order = [];

const haystack = content.rows.map((_, row) => fields.map((field) => field.values[row] ?? "").join("\n").toLowerCase());
const CONDITION = /^(.+?)(>=|<=|!=|=|>|<)(.+)$/;
const HOLDS = {
  ">": (a, b) => a > b, "<": (a, b) => a < b, ">=": (a, b) => a >= b, "<=": (a, b) => a <= b,
  "=": (a, b) => a === b, "!=": (a, b) => a !== b,
};

// The tests in a filter text; `wrong` describes a part that is not a test.
function filterOf(text) {
  const tests = [];
  let wrong = "";
  for (const word of text.split(/\s+/).filter(Boolean)) {
    const [, name, sign, right] = CONDITION.exec(word) ?? [];
    const column = name && byName.get(name);
    const value = Number(right);
    if (column && !Number.isNaN(value)) tests.push((row) => HOLDS[sign](column.values[row], value));
    else if (name && !column) wrong = "There is no metric " + plain(name) + ".";
    else if (column) wrong = plain(right) + " is not a number.";
    else {
      const part = word.toLowerCase();
      tests.push((row) => haystack[row].includes(part));
    }
  }
  return { tests, wrong };
}

const collator = new Intl.Collator("en", { numeric: true });
const places = new Map();
// Texts as numbers in their order, found once for each field.
function placesOf(field) {
  if (!places.has(field)) {
    const texts = [...new Set(field.values)].filter((text) => text !== null).sort(collator.compare);
    const place = new Map(texts.map((text, number) => [text, number]));
    places.set(field, Float64Array.from(field.values, (text) => place.get(text) ?? NaN));
  }
  return places.get(field);
}

const orders = new Map(); // maps a column and a direction to all rows in order
function forget(column) {
  orders.delete(column.id + " up");
  orders.delete(column.id + " down");
}

// All rows sorted by value. Rows without a value are last in both directions. Equal rows keep the records' order.
function sorted(column, ascending) {
  const key = column.id + (ascending ? " up" : " down");
  if (!orders.has(key)) {
    const values = column.text ? placesOf(column) : column.values;
    const sign = ascending ? 1 : -1;
    const valued = [], without = [];
    for (let row = 0; row < count; row++) (Number.isNaN(values[row]) ? without : valued).push(row);
    valued.sort((a, b) => sign * (values[a] - values[b]) || a - b);
    orders.set(key, valued.concat(without));
  }
  return orders.get(key);
}

function arrange() {
  const { tests, wrong } = filterOf(state.words);
  for (const [field, wanted] of state.picks) tests.push((row) => field.values[row] === wanted);
  const shown = new Uint8Array(count).fill(1);
  if (tests.length) for (let row = 0; row < count; row++) if (!tests.every((test) => test(row))) shown[row] = 0;
  const those = (rows) => (tests.length ? rows.filter((row) => shown[row]) : rows);
  rankRows(those(sorted(state.ranked, !state.ranked.higher)));
  order = those(sorted(state.sort, state.sort.text ? state.best : state.sort.higher !== state.best));
  return wrong;
}

// Equal values share a rank, and the next rank counts all of them. A rank interval follows from the numbers
// of rows that are certainly better, and that may be better, by their 95 % intervals.
function rankRows(all) {
  const { values, lows, highs, higher } = state.ranked;
  for (const list of [ranks, bands, firsts, lasts]) list.fill(0);
  const rows = all.filter((row) => !Number.isNaN(values[row]));
  rows.forEach((row, place) => {
    ranks[row] = place && values[rows[place - 1]] === values[row] ? ranks[rows[place - 1]] : place + 1;
  });
  if (!lows || !rows.some((row) => !Number.isNaN(lows[row]))) return;
  const end = (side, row) => (Number.isNaN(side[row]) ? values[row] : side[row]);
  const sign = higher ? 1 : -1;
  const worst = (row) => sign * end(higher ? lows : highs, row);
  const best = (row) => sign * end(higher ? highs : lows, row);
  const worsts = Float64Array.from(rows, worst).sort();
  const bests = Float64Array.from(rows, best).sort();
  for (const row of rows) {
    firsts[row] = 1 + rows.length - above(worsts, best(row));
    lasts[row] = rows.length - below(bests, worst(row));
  }
  bandRows(rows, worst, best);
}

// A band consists of the best row without a band, and of later rows whose interval overlaps its interval.
function bandRows(rows, worst, best) {
  const next = Int32Array.from(rows, (_, place) => place + 1); // the next place without a band
  const reach = new Float64Array(rows.length + 1).fill(-Infinity); // the best interval end among all rows from a place on
  for (let place = rows.length - 1; place >= 0; place--) reach[place] = Math.max(reach[place + 1], best(rows[place]));
  let band = 0;
  for (let first = 0; first < rows.length; first = next[first]) {
    const low = worst(rows[first]);
    bands[rows[first]] = ++band;
    for (let before = first, place = next[first]; place < rows.length && reach[place] >= low; place = next[place]) {
      if (best(rows[place]) < low) before = place;
      else {
        bands[rows[place]] = band;
        next[before] = next[place];
      }
    }
  }
}

// The number of elements of a sorted list that are at most, or less than, a value.
function above(list, value) {
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}
function below(list, value) {
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

const inBand = (row) => (bands[row] ? "band " + bands[row] : "");
const openPlaces = (row) => {
  if (!ranks[row]) return "Not ranked: it has no " + plain(state.ranked.title) + ".";
  const rank = "Rank " + ranks[row] + " by " + plain(state.ranked.title);
  if (!firsts[row]) return rank + ".";
  const open = firsts[row] === lasts[row] ? "only place " + firsts[row] + " is possible" : "places " + firsts[row] + " to " + lasts[row] + " are possible";
  return rank + ", band " + bands[row] + "; by the 95 % intervals " + open + ".";
};

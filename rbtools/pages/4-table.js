// The table. Only visible rows are in the document; aria-rowindex is their place in the whole table.
const scroller = byId("scroller"), table = byId("table"), head = byId("head"), body = byId("body");
const narrow = matchMedia("(max-width: 1000px)"); // as in style.css
const selected = new Set();
const hidden = new Set();
const kept = new Map(); // row -> its <tr>, for those in the document
const AROUND = 4;
let columns = [], rowHeight = 34, viewHeight = 0, template = null, bests = new Map(), filled = new Set();

const groupTitles = new Map(Object.entries(content.groups));
const present = [...groupTitles.keys()].filter((group) => metrics.some((metric) => metric.group === group));
const bracket = (low, high) => "[" + figure(low) + ", " + figure(high) + "]";

// Metrics that some row in the table has: a filter for one data set hides metrics of the others.
function findFilled() {
  return new Set(metrics.filter((metric) => order.some((row) => !Number.isNaN(metric.values[row]))));
}

function chooseColumns() {
  filled = findFilled();
  const chosen = metrics.filter((metric) => !hidden.has(metric.group) && (filled.has(metric) || !order.length));
  const scored = terms.length ? [score] : [];
  const others = narrow.matches ? [] : fields.filter((field) => field !== nameField && field.different > 1); // narrow pages show them below the name
  columns = [nameField, ...others, ...scored, ...chosen];
  rowHeight = narrow.matches ? 48 : columns.some((column) => column.lows) ? 40 : 32;
  table.style.setProperty("--row", rowHeight + "px");
}

function drawHead() {
  chooseColumns();
  const upper = element("tr"), lower = element("tr");
  upper.append(element("td", { class: "c-pick" }), element("td", { class: "c-rank" }));
  lower.append(
    element("th", { scope: "col", class: "c-pick" }, element("span", { class: "hidden", text: "Select" })),
    heading(rankColumn),
  );
  let before = null;
  for (const column of columns) {
    const group = column.text ? "text" : column.group;
    if (column === nameField) upper.append(element("td", { class: "c-name" }));
    else if (group === before) upper.lastChild.colSpan += 1;
    else {
      const title = { text: "Made from", score: "Score" }[group] ?? groupTitles.get(group);
      upper.append(element("th", { scope: "colgroup", class: "first" + pinned(column).replace(" c-pin", " c-pin c-last"), text: title, title }));
    }
    lower.append(heading(column, column !== nameField && group !== before));
    if (column !== nameField) before = group;
  }
  head.replaceChildren(upper, lower);
  widths();
  markSorted();
  kept.clear();
  body.replaceChildren();
  template = emptyRow();
  viewHeight = Math.max(innerHeight, 300);
}

const rankColumn = { id: "rank", title: "rank", isRank: true };

// Model, data set, training, seed: the columns that remain visible.
function pinned(column) {
  if (column === nameField) return " c-name";
  if (!column.text) return "";
  const place = columns.indexOf(column);
  return " c-pin c-pin-" + place + (columns[place + 1]?.text ? "" : " c-last");
}

function heading(column, first = false) {
  const style = (column.text ? "" : "number") + (column.isRank ? " c-rank" : pinned(column));
  const says = column.text || column.isRank ? column.title
    : column.name + ", " + (column.higher ? "more" : "less") + " is better";
  return element("th", { scope: "col", class: style + (first ? " first" : ""), "data-key": column.id },
    element("button", { type: "button", class: "sort", title: says, text: plain(column.title), on: { click: () => sortBy(column) } }));
}

function sortBy(column) {
  const wanted = column.isRank ? state.ranked : column;
  state.best = state.sort === wanted && !(column.isRank && !state.best) ? !state.best : true;
  state.sort = wanted;
  if (!wanted.text) state.ranked = wanted;
  refresh("Sorted by " + plain(wanted.title) + ", " + directionWords() + ". ");
}

const directionWords = () => (state.sort.text ? (state.best ? "A to Z" : "Z to A") : state.best ? "best first" : "worst first");

function markSorted() {
  const { sort, best } = state;
  const rising = sort.text ? best : sort.higher !== best;
  for (const cell of head.lastChild.children) {
    const key = cell.getAttribute("data-key");
    if (key === sort.id) cell.setAttribute("aria-sort", rising ? "ascending" : "descending");
    else if (key) cell.setAttribute("aria-sort", "none");
  }
}

// Each column has one width for all rows, so that nothing moves when rows change.
function widths() {
  const paper = document.createElement("canvas").getContext("2d");
  const style = getComputedStyle(document.body);
  const measure = (text, size, weight = 400) => {
    paper.font = weight + " " + size + "px " + style.fontFamily;
    return paper.measureText(text).width;
  };
  const size = parseFloat(style.fontSize);
  const rem = parseFloat(getComputedStyle(document.documentElement).fontSize); // for sizes that style.css gives in rem
  const alone = (column) => column !== nameField && columns.every((other) => other === column || other === nameField || other.group !== column.group);
  const of = (column) => {
    let longest = "", interval = 0;
    if (column.text) for (const text of column.values) if (text !== null && text.length > longest.length) longest = text;
    if (!column.text)
      for (let row = 0; row < count; row++) {
        const text = figure(column.values[row]);
        if (text.length > longest.length) longest = text;
        if (column.lows && !Number.isNaN(column.lows[row]) && interval < 20)
          interval = Math.max(interval, bracket(column.lows[row], column.highs[row]).length);
      }
    const title = plain(column.title);
    const words = (title.length < 10 ? [title] : title.split(/\s+/)).map((word) => measure(word, rem * 0.84, 600) + 22);
    if (alone(column)) words.push(measure(column.text ? "Made from" : groupTitles.get(column.group) ?? "Score", rem * 0.82, 600));
    if (column === nameField && narrow.matches) words.push(Math.max(...order.slice(0, 300).map((row) => measure(about(row).join(" · "), rem * 0.76)), 0));
    const cell = measure(longest, size, 700), small = measure("0".repeat(interval), rem * 0.74);
    const most = column !== nameField ? 200 : narrow.matches ? 205 : 280;
    return Math.ceil(Math.min(most, Math.max(cell, small, ...words) + 20));
  };
  const pick = 36;
  const rank = Math.ceil(measure("band " + "0".repeat(String(count).length), rem * 0.76) + 18);
  const all = [pick, Math.max(rank, narrow.matches ? 56 : 64), ...columns.map(of)];
  byId("widths").replaceChildren(...all.map((width) => {
    const made = element("col");
    made.style.width = width + "px";
    return made;
  }));
  table.style.width = all.reduce((a, b) => a + b) + "px";
  // The columns that distinguish rows do not scroll sideways, if there is enough room.
  let left = 0;
  all.slice(0, 2 + columns.filter((column) => column.text).length).forEach((width, place) => {
    table.style.setProperty("--left-" + place, left + "px");
    left += width;
  });
  table.classList.toggle("loose", left > 0.55 * innerWidth);
}

function findBests() {
  bests = new Map();
  for (const column of columns) {
    if (column.text) continue;
    let best = NaN;
    for (const row of order) {
      const value = column.values[row];
      if (!Number.isNaN(value) && !(column.higher ? value <= best : value >= best)) best = value;
    }
    bests.set(column, best);
  }
}

// A row without a record, from which all rows are copied.
function emptyRow() {
  const made = element("tr", {},
    element("td", { class: "c-pick" }, element("input", { type: "checkbox" })),
    element("td", { class: "number c-rank" }, "–", element("small")));
  for (const column of columns) {
    if (column === nameField)
      made.append(element("th", { scope: "row", class: "c-name" }, element("button", { type: "button", class: "name" }), element("small", { class: "about" })));
    else if (column.text) made.append(element("td", { class: pinned(column) }));
    else made.append(element("td", { class: "number" }, "–", ...(column.lows ? [element("small")] : [])));
  }
  return made;
}

function fill(line, row) {
  rowOf.set(line, row);
  const [pickCell, rankCell, ...cells] = line.cells;
  pickCell.firstChild.checked = selected.has(row);
  pickCell.firstChild.setAttribute("aria-label", "Select " + whole(row));
  rankCell.firstChild.data = ranks[row] || "–";
  rankCell.lastChild.textContent = inBand(row);
  rankCell.title = openPlaces(row);
  columns.forEach((column, place) => fillCell(cells[place], column, row));
  return line;
}

function fillCell(cell, column, row) {
  if (column === nameField) {
    cell.firstChild.textContent = named(row);
    cell.firstChild.title = whole(row);
    cell.lastChild.textContent = about(row).join(" · ");
  } else if (column.text) {
    const text = column.values[row];
    cell.textContent = cell.title = text === null ? "" : plain(text);
  } else {
    const value = column.values[row];
    cell.firstChild.data = figure(value);
    if (column.lows) cell.lastChild.textContent = Number.isNaN(column.lows[row]) ? "" : bracket(column.lows[row], column.highs[row]);
    cell.className = order.length > 1 && value === bests.get(column) ? "number best" : "number";
  }
}

const rowOf = new WeakMap();
body.addEventListener("change", (event) => pick(rowOf.get(event.target.closest("tr")), event.target.checked));
body.addEventListener("click", (event) => {
  if (event.target.className === "name") openRecord(rowOf.get(event.target.closest("tr")));
});

const gap = (rows) => {
  const made = element("tr", { class: "gap", "aria-hidden": "true" }, element("td", { colspan: columns.length + 2 }));
  made.firstChild.style.height = rows * rowHeight + "px";
  return made;
};

// `anew` fills every line again. Otherwise, rows that remain visible stay in the document and keep the focus.
function drawBody(anew) {
  const spare = anew ? [...kept.values()] : [];
  if (anew) kept.clear();
  const top = anew ? 0 : scroller.scrollTop;
  const few = order.length <= 150;
  const first = few ? 0 : Math.max(0, Math.floor(top / rowHeight) - AROUND);
  const last = few ? order.length : Math.min(order.length, first + Math.ceil(viewHeight / rowHeight) + 2 * AROUND);
  const rows = order.slice(first, last);
  const wanted = new Set(rows);
  for (const row of [...kept.keys()]) if (!wanted.has(row)) kept.delete(row);
  const made = rows.map((row, place) => {
    if (!kept.has(row)) kept.set(row, fill(spare.shift() ?? template.cloneNode(true), row));
    const line = kept.get(row);
    line.setAttribute("aria-rowindex", first + place + 3);
    line.className = ((first + place) % 2 ? "odd" : "") + (selected.has(row) ? " picked" : "");
    return line;
  });
  if (first > 0) made.unshift(gap(first));
  if (last < order.length) made.push(gap(order.length - last));
  put(made);
  table.setAttribute("aria-rowcount", order.length + 2);
}

function put(made) {
  const held = document.activeElement;
  const inside = body.contains(held);
  const staying = new Set(made);
  for (const line of [...body.children]) if (!staying.has(line)) line.remove();
  made.forEach((line, number) => {
    if (body.children[number] !== line) body.insertBefore(line, body.children[number] ?? null);
  });
  if (inside && !body.contains(held)) scroller.focus({ preventScroll: true });
  else if (inside && document.activeElement !== held) held.focus({ preventScroll: true });
}

function pick(row, on) {
  if (on) selected.add(row);
  else selected.delete(row);
  kept.get(row)?.classList.toggle("picked", on);
  selectionChanged();
}

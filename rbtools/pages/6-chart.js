// Lines over a radius or distance, for the selected rows, or else for the first rows shown.
const SVG = "http://www.w3.org/2000/svg";
const MOST = 12, FIRST = 5;
const DASHES = ["", "7 3", "2 3", "9 3 2 3"];
const small = matchMedia("(max-width: 700px)");
const boxed = () => ({ left: 56, right: 14, top: 12, bottom: 44, width: small.matches ? 420 : 760, height: small.matches ? 300 : 360 });

function drawing(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") made.textContent = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// Round steps that divide a range into about five parts.
function ticks(low, high) {
  const rough = (high - low) / 5 || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const found = [];
  for (let place = Math.ceil(low / step - 1e-9); place * step <= high + step * 1e-9; place++) found.push(Number((place * step).toPrecision(12)));
  return found;
}

// Five shapes, so that lines can be distinguished without colours.
function marker(number, x, y) {
  const style = { class: "point" };
  const path = (points) => drawing("path", { ...style, d: "M" + points.map(([a, b]) => x + a + " " + (y + b)).join("L") + "Z" });
  switch (number % 5) {
    case 0: return drawing("circle", { ...style, cx: x, cy: y, r: 4.5 });
    case 1: return drawing("rect", { ...style, x: x - 4, y: y - 4, width: 8, height: 8 });
    case 2: return path([[-5, 4], [5, 4], [0, -5]]);
    case 3: return path([[-5, 0], [0, -6], [5, 0], [0, 6]]);
    default: return path([[-5, -4], [5, -4], [0, 5]]);
  }
}

function charted() {
  const rows = selected.size ? [...selected].sort((a, b) => (ranks[a] || count) - (ranks[b] || count)) : order.slice(0, FIRST);
  return rows.slice(0, MOST);
}

function drawChart() {
  const curve = content.curves[Number(byId("curve").value)];
  byId("chart-section").hidden = !content.curves.length;
  if (!curve) return;
  const points = curve.points.map(([x, name]) => ({ x, metric: byName.get(name) }));
  const lines = charted().map((row) => ({
    row,
    points: points.filter(({ metric }) => !Number.isNaN(metric.values[row])).map(({ x, metric }) => ({
      x, y: metric.values[row], low: metric.lows ? metric.lows[row] : NaN, high: metric.highs ? metric.highs[row] : NaN,
    })),
  }));
  const drawn = lines.filter((line) => line.points.length), bare = lines.length - drawn.length;
  byId("chart-hint").textContent =
    (selected.size ? (selected.size > MOST ? "The first " + MOST + " of " + selected.size + " selected rows. " : "")
      : "No row is selected, so the first " + Math.min(FIRST, order.length) + " rows are shown. ") +
    (bare ? counted(bare, "row") + " without these metrics left out. " : "") +
    (drawn.some((line) => line.points.some((point) => !Number.isNaN(point.low))) ? "Whiskers are 95 % intervals." : "");
  byId("chart").replaceChildren(...(drawn.length ? [picture(curve, drawn), legend(drawn)] : []));
  byId("chart-table").replaceChildren(chartTable(curve, lines));
}

function picture(curve, lines) {
  const every = lines.flatMap((line) => line.points);
  const xs = every.map((point) => point.x);
  const ys = every.flatMap((point) => [point.y, point.low, point.high]).filter((value) => !Number.isNaN(value));
  const across = [Math.min(...xs), Math.max(...xs)];
  const low = Math.min(...ys), high = Math.max(...ys), room = (high - low) * 0.06 || 0.05;
  const up = [Math.max(0, low - room), Math.min(1, high + room)];
  if (across[0] === across[1]) across[1] += across[1] * 0.1 || 1;
  const { left, right, top, bottom, width, height } = boxed();
  const at = (x) => left + ((x - across[0]) / (across[1] - across[0])) * (width - left - right - 32) + 16;
  const to = (y) => height - bottom - ((y - up[0]) / (up[1] - up[0])) * (height - top - bottom);
  const round = (value) => Math.round(value * 10) / 10;
  const made = drawing("svg", { viewBox: "0 0 " + width + " " + height, role: "img", "aria-label": curve.title + ", " + counted(lines.length, "row") + "; the values are in the table below" });
  for (const y of ticks(...up)) {
    made.append(drawing("line", { class: "grid", x1: left, x2: width - right, y1: round(to(y)), y2: round(to(y)) }),
      drawing("text", { x: left - 8, y: round(to(y)) + 4, "text-anchor": "end", text: y }));
  }
  for (const x of ticks(...across)) {
    made.append(drawing("line", { class: "axis", x1: round(at(x)), x2: round(at(x)), y1: height - bottom, y2: height - bottom + 5 }),
      drawing("text", { x: round(at(x)), y: height - bottom + 19, "text-anchor": "middle", text: x }));
  }
  made.append(drawing("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }),
    drawing("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle", text: curve.x }));
  // Whiskers are drawn a little beside each other, so that they do not cover each other.
  const step = every.some((point) => !Number.isNaN(point.low)) ? 2.5 : 0;
  lines.forEach((line, number) => {
    const beside = (x) => at(x) + (number - (lines.length - 1) / 2) * step;
    made.append(drawnLine(line, number, beside, to, round));
  });
  return made;
}

function drawnLine(line, number, at, to, round) {
  const part = drawing("g", { class: "s" + (number % 7) });
  const path = line.points.map((point) => round(at(point.x)) + " " + round(to(point.y))).join("L");
  part.append(drawing("path", { class: "curve", d: "M" + path, "stroke-dasharray": DASHES[number % 4] }));
  for (const point of line.points) {
    if (!Number.isNaN(point.low))
      part.append(drawing("line", { class: "whisker", x1: round(at(point.x)), x2: round(at(point.x)), y1: round(to(point.low)), y2: round(to(point.high)) }));
    const mark = marker(number, round(at(point.x)), round(to(point.y)));
    mark.append(drawing("title", { text: whole(line.row) + ": " + figure(point.y) + " at " + point.x }));
    part.append(mark);
  }
  return part;
}

function legend(lines) {
  return element("ul", { class: "legend" }, ...lines.map((line, number) => {
    const sample = drawing("svg", { viewBox: "0 0 44 14", class: "s" + (number % 7), "aria-hidden": "true" },
      drawing("path", { class: "curve", d: "M1 7L43 7", "stroke-dasharray": DASHES[number % 4] }), marker(number, 22, 7));
    return element("li", {}, sample, element("span", { text: whole(line.row) }));
  }));
}

function chartTable(curve, lines) {
  const xs = [...new Set(curve.points.map(([x]) => x))];
  const top = [element("th", { scope: "col", text: curve.x }), ...lines.map((line) => element("th", { scope: "col", text: whole(line.row) }))];
  const rows = xs.map((x) => element("tr", {}, element("th", { scope: "row", text: x }), ...lines.map((line) => {
    const point = line.points.find((one) => one.x === x);
    const cell = element("td", { text: point ? figure(point.y) : "" });
    if (point && !Number.isNaN(point.low)) cell.append(element("small", { text: bracket(point.low, point.high) }));
    return cell;
  })));
  return element("table", { class: "plain" }, element("thead", {}, element("tr", {}, ...top)), element("tbody", {}, ...rows));
}

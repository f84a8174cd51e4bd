// The weights of the score, the groups in which it is scaled, and its means.
const formatWeight = (weight) => String(Math.round(weight * 100) / 100);

function addTerm(metric, weight, higher, given) {
  terms.push({ metric, weight, higher, given });
}

function drawWeights() {
  byId("weights").replaceChildren(...terms.map((term, number) => {
    const out = element("output", { for: "weight-" + number, text: formatWeight(term.weight) });
    const most = Math.max(5, Math.ceil(term.weight));
    const slider = element("input", {
      type: "range", id: "weight-" + number, min: 0, max: most, step: Number.isInteger(term.weight * 10) ? 0.1 : "any",
      value: term.weight, "data-metric": term.metric.name, "aria-valuetext": "weight " + formatWeight(term.weight),
      on: {
        input: () => {
          term.weight = Math.round(Number(slider.value) * 1e6) / 1e6;
          out.textContent = formatWeight(term.weight);
          slider.setAttribute("aria-valuetext", "weight " + formatWeight(term.weight));
          rescore(false);
        },
        change: () => rescore(true),
      },
    });
    const label = element("label", { for: "weight-" + number, text: plain(term.metric.title) + " ", title: plain(term.metric.name) });
    if (!term.higher) label.append(element("small", { text: "lower is better" }));
    return element("div", { class: "weight" }, label, slider, out);
  }));
  const used = new Set(terms.flatMap((term) => [term.metric.name, ...(term.metric.names ?? [])]));
  const rest = metrics.filter((metric) => metric.metric && !used.has(metric.name));
  byId("add").replaceChildren(element("option", { value: "", text: "choose …" }),
    ...rest.map((metric) => element("option", { value: metric.name, text: plain(metric.title) })));
  byId("add").parentElement.hidden = !rest.length;
}

// After a weight was moved, rows are ranked by the score.
function rescore(told) {
  computeScore();
  state.sort = state.ranked = score;
  state.best = true;
  refresh(told ? "Ranked by score with the new weights. " : null);
}

function drawScoreTexts() {
  const command = scoreCommand();
  byId("score-command").replaceChildren(...typed(command ?? "There is no command line for this score, because no weight is above 0, a metric of a preset is left out, or a name cannot be typed."));
  byId("score-copy").disabled = command === null;
  const stored = content.score;
  const asGiven = terms.every((term) => term.weight === term.given) && missing === content.missing && scope === givenScope();
  const differs = asGiven &&
    stored.some((value, row) => value !== null && !(Math.abs(value - score.values[row]) < 1e-9));
  byId("score-notice").hidden = !differs;
  byId("score-notice").textContent =
    "The records contain scores that were computed over other records or in a different way. The scores on this page are computed over its own records.";
}

function drawMeans() {
  const field = fields.find((one) => one.path === byId("mean-field").value);
  if (!field) return;
  const sums = new Map();
  for (const row of order) {
    const value = score.values[row], key = field.values[row];
    if (Number.isNaN(value) || key === null) continue;
    const found = sums.get(key) ?? { sum: 0, rows: 0 };
    found.sum += value;
    found.rows += 1;
    sums.set(key, found);
  }
  const rows = [...sums].map(([key, { sum, rows }]) => ({ key, mean: sum / rows, rows })).sort((a, b) => b.mean - a.mean);
  const most = Math.max(...rows.map((row) => row.mean), 1e-9);
  const lines = rows.map(({ key, mean, rows }) => {
    const bar = element("span", { class: "bar", "aria-hidden": "true" });
    bar.style.width = (100 * mean) / most + "%";
    return element("tr", {}, element("th", { scope: "row", class: "text", text: plain(key) }),
      element("td", { text: figure(mean) }), element("td", { text: rows }), element("td", { class: "share" }, bar));
  });
  const titles = [field.title, "mean score", "rows"].map((text) => element("th", { scope: "col", text }));
  byId("mean-table").replaceChildren(element("table", { class: "plain" },
    element("thead", {}, element("tr", {}, ...titles, element("td", {}))), element("tbody", {}, ...lines)));
}

function startPanel() {
  for (const term of content.terms) addTerm(columnOf(term), term.weight, term.higher, term.weight);
  scope = givenScope();
  byId("missing").value = missing;
  const scopeTitles = (within) => (!within.length ? "all records"
    : "records of one " + within.map((path) => (fields.find((field) => field.path === path)?.title ?? plain(path)).toLowerCase()).join(" and "));
  byId("scope").append(...content.scopes.map((one, number) => element("option", { value: number, text: scopeTitles(one.within) })));
  byId("scope").value = scope;
  byId("scope").parentElement.hidden = content.scopes.length < 2;
  byId("scope").addEventListener("change", () => { scope = Number(byId("scope").value); rescore(true); });
  byId("missing").addEventListener("change", () => { missing = byId("missing").value; rescore(true); });
  byId("equal").addEventListener("click", () => { for (const term of terms) term.weight = 1; drawWeights(); rescore(true); });
  byId("given").addEventListener("click", () => {
    for (const term of terms) term.weight = term.given;
    byId("scope").value = scope = givenScope();
    byId("missing").value = missing = content.missing;
    drawWeights();
    rescore(true);
  });
  byId("add").addEventListener("change", () => {
    const metric = byName.get(byId("add").value);
    if (!metric) return;
    const first = !terms.length;
    addTerm(metric, 1, metric.higher, 0);
    drawWeights();
    if (first) drawHead();
    rescore(true);
    byId("weight-" + (terms.length - 1)).focus();
  });
  byId("score-copy").addEventListener("click", () => copy(scoreCommand(), byId("score-copy")));
  const groupable = fields.filter((field) => {
    const different = new Set(field.values).size;
    return different > 1 && different <= 60 && different < count;
  });
  byId("means").hidden = !groupable.length;
  byId("mean-field").append(...groupable.map((field) => element("option", { value: field.path, text: field.title.toLowerCase() })));
  if (groupable.some((field) => field.path === "train.method")) byId("mean-field").value = "train.method";
  byId("mean-field").addEventListener("change", drawMeans);
  drawWeights();
  computeScore();
}

// The reactions to events, and the start of the page.
function refresh(told) {
  if (scroller.scrollTop) scroller.scrollTop = 0;
  const wrong = arrange();
  const now = findFilled();
  if (!columns.length || now.size !== filled.size || [...now].some((metric) => !filled.has(metric))) drawHead();
  else markSorted();
  findBests();
  drawBody(true);
  drawMeans();
  drawChart();
  drawScoreTexts();
  drawMixed();
  drawButtons();
  if (told !== null) tell(told, wrong);
}

function tell(told, wrong) {
  const shown = order.length === count ? counted(count, "record") : order.length.toLocaleString("en-US") + " of " + counted(count, "record");
  const leader = order.find((row) => ranks[row] === 1);
  const first = leader === undefined ? "" : " First by " + plain(state.ranked.title) + ": " + whole(leader) + ".";
  byId("status").textContent = (wrong ? wrong + " " : "") + told + shown + "." + first;
}

// Numbers on different data sets cannot be compared, unless the score was scaled within each data set.
function drawMixed() {
  const field = fields.find((one) => one.path === "dataset");
  const sets = [...new Set(order.map((row) => field?.values[row] ?? null))].filter((text) => text !== null).sort(collator.compare);
  const apart = state.ranked === score && content.scopes[scope].within.includes("dataset");
  byId("mixed").hidden = sets.length < 2 || apart;
  byId("mixed").textContent = counted(sets.length, "data set") + " are ranked together: " + plain(sets.slice(0, 8).join(", ")) +
    (sets.length > 8 ? " …" : "") + ". Choose one above, or rank by a score that is scaled within each data set.";
}

function drawButtons() {
  const what = selected.size ? " (" + selected.size + " selected)" : " (" + counted(order.length, "row") + ")";
  byId("csv").textContent = "Download CSV" + what;
  byId("jsonl").textContent = "Download JSON Lines" + what;
  byId("csv").disabled = byId("jsonl").disabled = !downloaded().length;
  byId("clear").disabled = !selected.size;
}

function selectionChanged() {
  drawChart();
  drawButtons();
}

function startFilters() {
  for (const field of fields) {
    const values = [...new Set(field.values)].filter((text) => text !== null).sort(collator.compare);
    if (values.length < 2 || values.length > 60) continue;
    const select = element("select", { "data-path": field.path }, element("option", { value: "", text: "all" }),
      ...values.map((text, number) => element("option", { value: number + 1, text: plain(text) })));
    select.addEventListener("change", () => {
      if (select.value) state.picks.set(field, values[Number(select.value) - 1]);
      else state.picks.delete(field);
      refresh("");
    });
    byId("pickers").append(element("label", {}, field.title + " ", select));
  }
  byId("words").addEventListener("input", () => { state.words = byId("words").value; refresh(""); });
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
}

function startGroups() {
  const whatElse = (group) => present.some((other) => other !== group && other !== "splits");
  for (const group of present) {
    if ((group === "splits" || (group === "severities" && present.includes("corruptions"))) && whatElse(group)) hidden.add(group);
    const box = element("input", { type: "checkbox", "data-group": group });
    box.checked = !hidden.has(group);
    box.addEventListener("change", () => {
      if (box.checked) hidden.delete(group);
      else hidden.add(group);
      drawHead();
      refresh((box.checked ? "Columns shown: " : "Columns hidden: ") + groupTitles.get(group) + ". ");
    });
    byId("groups").append(element("label", {}, box, " " + groupTitles.get(group)));
  }
  byId("groups").hidden = present.length < 2;
}

function startTheme() {
  const root = document.documentElement, button = byId("theme");
  const dark = () => (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const say = () => { button.textContent = dark() ? "Light colours" : "Dark colours"; };
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; say(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", say);
  say();
}

function start() {
  const different = (path, noun) => {
    const values = [...new Set(fields.find((one) => one.path === path)?.values.filter((text) => text !== null))];
    return values.length > 1 ? [counted(values.length, noun)] : values.map((text) => noun + " " + plain(text));
  };
  byId("title").textContent = plain(content.title);
  byId("summary").textContent = [counted(count, "record"), ...different("dataset", "data set"), ...different("arch.name", "model"),
    ...different("train.method", "training method")].join(" · ");
  byId("version").textContent = content.version;
  startTheme();
  startFilters();
  startGroups();
  startPanel();
  const ranked = terms.length ? score : byName.get(content.ranked) ?? metrics[0];
  if (ranked) state.sort = state.ranked = ranked;
  byId("curve").append(...content.curves.map((curve, number) => element("option", { value: number, text: curve.title })));
  byId("curve").addEventListener("change", drawChart);
  byId("clear").addEventListener("click", () => {
    selected.clear();
    drawBody(true);
    selectionChanged();
  });
  byId("csv").addEventListener("click", () => save(csv(), "text/csv;charset=utf-8", "leaderboard.csv"));
  byId("jsonl").addEventListener("click", () => save(jsonLines(), "application/x-ndjson", "leaderboard.jsonl"));
  byId("record-close").addEventListener("click", () => byId("record").close());
  scroller.addEventListener("scroll", () => requestAnimationFrame(() => drawBody(false)), { passive: true });
  narrow.addEventListener("change", () => { drawHead(); refresh(null); });
  small.addEventListener("change", drawChart);
  addEventListener("resize", () => { viewHeight = Math.max(innerHeight, 300); drawBody(false); });
  if (small.matches) byId("score-panel").open = false;
  refresh("");
}

start();
